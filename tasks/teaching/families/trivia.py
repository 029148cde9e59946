"""General-knowledge questions that no context of the grounded families answers: the right reply is
a refusal, so no answers are kept."""

_CAPITALS = (
    "France", "Italy", "Spain", "Japan", "Egypt", "Peru", "Kenya", "Cuba", "India", "China",
    "Norway", "Greece",
    "Canada", "Brazil", "Poland", "Chile", "Ghana", "Ireland", "Nepal", "Turkey", "Germany",
    "Portugal", "Vietnam", "Austria",
)  # fmt: skip
_WORKS = (
    "Hamlet", "Don Quixote", "The Odyssey", "War and Peace", "Moby Dick", "Faust", "The Hobbit",
    "Emma",
    "Dracula", "Ulysses", "Frankenstein", "The Trial", "Jane Eyre", "Walden", "Candide",
    "Oliver Twist",
)  # fmt: skip
_ELEMENTS = (
    "hydrogen", "helium", "carbon", "oxygen", "sodium", "neon", "chlorine", "calcium", "argon",
    "uranium",
    "platinum", "mercury", "sulfur", "iodine", "radium", "potassium",
)  # fmt: skip
_EVENTS = (
    "did World War I begin", "did World War II end", "did the Titanic sink",
    "did people first walk on the Moon",
    "did the Berlin Wall fall", "did Columbus reach America", "was the French Revolution",
    "was the printing press invented",
    "did the Roman Empire fall in the west", "was the telephone patented",
    "did Everest first get climbed", "was penicillin discovered",
)  # fmt: skip
_OTHER = (
    "Who painted the Mona Lisa?", "Who discovered gravity?", "Who invented the light bulb?",
    "Who composed the Ninth Symphony?",
    "Who was the first president of the United States?", "Who developed the theory of relativity?",
    "Who discovered radioactivity?",
    "Which planet is the largest?", "Which planet is nearest to the Sun?",
    "Which ocean is the deepest?", "Which river is the longest?",
    "Which mountain is the highest?", "Which continent is the smallest?",
    "Which country has the most people?", "Which metal is liquid?",
    "How many continents are there?", "How many planets orbit the Sun?",
    "How many bones has a human?", "How many strings has a violin?",
    "How many sides has a hexagon?", "How many chromosomes do humans have?",
    "How many players are in a soccer team?",
    "How fast does light travel?", "How far away is the Moon?",
    "How hot is the surface of the Sun?", "How deep is the Mariana Trench?",
    "What is the square root of 144?", "What is the boiling point of water?",
    "What is the value of pi?", "What is the currency of Japan?",
    "What is photosynthesis?", "What does DNA stand for?", "What causes the tides?",
    "What is the speed of sound?",
    "What language do people speak in Brazil?", "What is the hardest natural substance?",
    "What gas do plants absorb?",
    "Why is the sky blue?", "Why do leaves change color in autumn?", "Why does iron rust?",
    "Why do we have leap years?",
    "Where is the Eiffel Tower?", "Where is the Great Barrier Reef?",
    "Where were the first Olympic Games held?", "Where is Machu Picchu?",
)  # fmt: skip

TRIVIA: tuple[str, ...] = (
    *(f"What is the capital of {country}?" for country in _CAPITALS),
    *(f"Who wrote {work}?" for work in _WORKS),
    *(f"What is the chemical symbol of {element}?" for element in _ELEMENTS),
    *(f"In which year {event}?" for event in _EVENTS),
    *_OTHER,
)
