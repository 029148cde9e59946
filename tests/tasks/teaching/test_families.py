"""The families of the procedural teacher: every answer is recomputed from the prompt's text alone,
and every step of every trace is checked."""

import re
from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from schemas.examples import GROUNDED_REFUSAL, Domain, Example, parse_trace
from tasks.data.tokens import response_tokens
from tasks.models.tiny import tiny_tokenizer
from tasks.teachers import procedural
from tasks.teaching.families import drawn_domains, families
from tasks.teaching.families.trivia import TRIVIA
from tests.tasks.teachers.test_procedural import PER_DOMAIN, PER_GROUNDING, taught

# Solvers: prompt -> answer, written from the English of the prompt and sharing nothing with the
# families.


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"-?\d+", text)]


def _arithmetic(prompt: str) -> str:
    return str(eval(re.search(r"[\d+-]+(?=[?.]$)", prompt)[0]))


def _digit_sum(prompt: str) -> str:
    return str(sum(map(int, re.sub(r"\D", "", prompt))))


def _groups(prompt: str) -> str:
    bags, each, more = _numbers(prompt)
    return str(bags * each + more)


def _python(prompt: str) -> str:
    return str(eval(re.fullmatch(r"What is (.*) in Python\?", prompt)[1]))


def _loop(prompt: str) -> str:
    start, loop, variable = re.fullmatch(r"(.*); (for .*)\. What is (\w)\?", prompt).groups()
    namespace: dict[str, int] = {}
    exec(f"{start}\n{loop}", namespace)
    return str(namespace[variable])


def _unit_conversion(prompt: str) -> str:
    given, asked = prompt.split(". ")
    (_, factor), amounts = _numbers(given), _numbers(asked)
    return str(amounts[0] * factor + sum(amounts[1:]))


def _formula(prompt: str) -> str:
    given = {name: int(value) for name, value in re.findall(r"(?:has|and) (\w+) (\d+)", prompt)}
    wanted = re.search(r"What is its (\w+)\?", prompt)[1]
    formula = {
        "speed": "distance / time",
        "density": "mass / volume",
        "power": "energy / time",
        "force": "mass * acceleration",
        "voltage": "current * resistance",
        "charge": "current * time",
    }[wanted]
    assert set(given) == set(re.findall(r"\w+", formula))
    value = eval(formula, given)
    assert value == int(value), prompt
    return str(int(value))


def _state_of_matter(prompt: str) -> str:
    melts, boils, *asked = _numbers(prompt)
    return " then ".join(
        "solid" if now < melts else "gas" if now > boils else "liquid"
        for now in asked
        if now not in (melts, boils)
    )


def _legs(prompt: str) -> str:
    from reasoning_gym.arithmetic.leg_counting import ANIMALS

    counted = re.findall(r"(\d+) x (\w+)", prompt)
    return str(sum(int(count) * ANIMALS[animal] for count, animal in counted))


def _one_each(groups: Iterable[Iterable[str]]) -> str:
    """Each group has one member."""
    return " ".join(member for (member,) in groups)


def _acrostic(prompt: str) -> str:
    asked = r"Write an acrostic for (.*) with the words (.*)\."
    letters, bank = (part.split(", ") for part in re.fullmatch(asked, prompt).groups())
    return _one_each([word for word in bank if word.startswith(letter)] for letter in letters)


def _rhyme(prompt: str) -> str:
    """Pronunciation cannot be computed: rhyming words share their last two letters, and no other
    choice shares them."""
    given, choices = re.fullmatch(r"What rhymes with (.*): (.*)\?", prompt).groups()
    return _one_each(
        [word for word in choices.split(", ") if word[-2:] == target[-2:]]
        for target in given.split(" and then ")
    )


KINDS = {
    "animal": "bear cat dog fox goat horse lion wolf",
    "color": "black blue brown green pink purple red white",
    "fruit": "apple cherry fig lemon mango melon peach plum",
    "tool": "axe brush drill hammer knife ladder rake saw",
    "place": "bank castle farm forest garden museum park tower",
    "vehicle": "boat bus car jet ship train truck van",
}
KIND_OF = {word: kind for kind, words in KINDS.items() for word in words.split()}


def _story_line(prompt: str) -> str:
    frame, bank = re.fullmatch(r"\w+ writes: (.*) Fill it with (.*)\.", prompt).groups()
    words = bank.split(", ")

    def fill(gap: re.Match) -> str:
        (word,) = [word for word in words if KIND_OF[word] == gap[1]]
        return word

    return re.sub(r"\((\w+)\)", fill, frame)


def _palindrome(prompt: str) -> str:
    letters = prompt.removeprefix("Complete the palindrome ").split()
    return " ".join(letters[min(place, len(letters) - 1 - place)] for place in range(len(letters)))


def _events(prompt: str) -> list[tuple[str, str, str]]:
    return re.findall(r"([A-Z]\w+) (\w+) the (\w+)\.", prompt.removeprefix("Text: "))


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _topic(prompt: str) -> str:
    text, question = prompt.removeprefix("Text: ").split(" Sum up ")
    return _one_each(
        [found.strip() for found in re.findall(r"[^.]+\.", text) if topic in found]
        for topic in re.findall(r"the (\w+)", question)
    )


def _people(prompt: str) -> str:
    words = re.findall(r"(?<=[:.] )[A-Z]\w+", prompt.removesuffix(" Name the people."))
    return _listed([word for word in words if word != "The"])


def _merge(prompt: str) -> str:
    deeds = Counter(event[1:] for event in _events(prompt))
    (deed,) = [deed for deed, count in deeds.items() if count > 1]
    people = [who for who, *did in _events(prompt) if tuple(did) == deed]
    return f"{_listed(people)} {' the '.join(deed)}."


def _order(prompt: str) -> str:
    things = [thing for _, _, thing in _events(prompt)]
    return ", ".join(things if prompt.endswith("from first to last.") else things[::-1])


def _weekday(prompt: str) -> str:
    days = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
    (today,) = [number for number, day in enumerate(days) if day in prompt]
    (offset,) = _numbers(prompt)
    return days[(today - offset if "ago" in prompt else today + offset) % 7]


def _odd_one_out(prompt: str) -> str:
    words = prompt.rpartition(": ")[2].removesuffix("?").split(", ")
    counts = Counter(KIND_OF[word] for word in words)
    (odd,) = [word for word in words if counts[KIND_OF[word]] == 1]
    assert len(counts) == 2
    return f"{odd} {KIND_OF[odd]}" if "what is it" in prompt else odd


def _members(prompt: str) -> str:
    kind, words = re.fullmatch(r"Find the (\w+) in: (.*)\.", prompt).groups()
    return ", ".join(word for word in words.split(", ") if KIND_OF[word] == kind)


def _definition_chain(prompt: str) -> str:
    follows = dict(re.findall(r"Every (\w+) is a (\w+)\.", prompt))
    kind = re.search(r"[A-Z]\w+ is a (\w+)\. What", prompt)[1]
    while kind in follows:
        kind = follows.pop(kind)
    assert not follows
    return kind


_addition = _running_total = _arithmetic
_list_item = _sort_list = _filter_list = _python


def solver(family: str) -> Callable[[str], str]:
    """The solver of a family is called as it is."""
    return globals()[f"_{family}"]


@pytest.mark.parametrize("domain", list(Domain))
def test_every_answer_agrees_with_a_recomputation_from_the_prompt(domain):
    rows = [row for row in taught() if row.domain == domain and row.grounding is None]
    assert len(rows) == PER_DOMAIN
    assert len({row.family for row in rows}) == len(families(domain)) >= 3
    for row in rows:
        assert solver(row.family.partition(".")[2])(row.prompt) == row.answer, row


def test_a_domain_without_a_file_has_no_families():
    """As one that somebody has just added to `Domain`."""
    assert families("law") == {}
    assert drawn_domains() == tuple(Domain)


def test_every_equation_of_a_trace_is_true():
    checked = 0
    for row in taught():
        for left, right in re.findall(r"(?<![\w.])(-?\d+(?:[-+*/]-?\d+)+)=(-?\d+)", row.reasoning):
            assert eval(left) == int(right), row
            checked += 1
        for left, right, said in re.findall(r"(\d+)>(\d+) (yes|no)", row.reasoning):
            assert (int(left) > int(right)) == (said == "yes"), row
    assert checked > PER_DOMAIN


def test_traces_are_short_and_end_with_a_number_or_hold_every_word_of_the_answer():
    connecting = set("The and the then sleeps took to ran left by".split())  # noqa: SIM905
    tokenizer, checks = tiny_tokenizer(), Counter(row.check for row in taught())
    assert checks["numeric"] > 2 * PER_DOMAIN * 0.8
    for row in taught():
        trace = parse_trace(row.response(), row.channels)
        assert (trace.reasoning, trace.answer) == (row.reasoning, row.answer)
        assert len(row.prompt.split()) <= 40
        assert len(row.response()) <= 250
        assert len(response_tokens(tokenizer, row.response())) <= 60  # the quickstart's length
        if row.check == "numeric":
            assert re.findall(r"(?:(?<![\w)])-)?\d+", row.reasoning)[-1] == row.answer, row
        elif row.check == "exact" and row.grounding is None and row.family != "coding.filter_list":
            missing = set(re.findall(r"\w+", row.answer)) - set(re.findall(r"\w+", row.reasoning))
            assert missing <= connecting, row


def _grounded(grounding: str) -> list[tuple[Example, list[str], str]]:
    """(example, facts of its context, question)."""
    rows = [row for row in taught() if row.grounding == grounding]
    assert len(rows) == PER_GROUNDING
    return [
        (row, re.findall(r"[^.]+\.", row.context), row.prompt.partition("\nQuestion: ")[2])
        for row in rows
    ]


QUESTIONS = {
    r"Where does (\w+) live\?": "{0} lives in (.*).",
    r"What is the job of (\w+)\?": "{0} works as a (.*).",
    r"Which color does (\w+) like\?": "{0} likes (.*).",
    r"Which fruit does (\w+) eat\?": "{0} eats (.*).",
    r"Which pet does (\w+) have\?": "{0} has a pet (.*).",
    r"When does the (\w+) open\?": "The {0} opens on (.*).",
    r"Which color is the (\w+)\?": r"The {0} is ([a-z]+).",
    r"What does the (\w+) have\?": r"The {0} has a (.*).",
    r"Who runs the (\w+)\?": "The {0} is run by (.*).",
    r"Where is the (\w+)\?": "The {0} is in (.*).",
}


def _lookup(facts: list[str], question: str) -> list[str]:
    """All answers that the facts give to the question."""
    ((pattern, subject),) = [
        (pattern, match[1]) for pattern in QUESTIONS if (match := re.fullmatch(pattern, question))
    ]
    matches = (re.fullmatch(QUESTIONS[pattern].format(subject), fact.strip()) for fact in facts)
    return [match[1] for match in matches if match]


def test_answerable_questions_have_exactly_one_answer_in_the_context():
    for row, facts, question in _grounded("answerable"):
        assert _lookup(facts, question) == [row.answer], row


def test_unanswerable_questions_are_of_the_right_kind_but_have_no_answer_in_the_context():
    asked_of_the_other = 0
    for row, facts, question in _grounded("unanswerable"):
        assert _lookup(facts, question) == []
        assert row.answer == GROUNDED_REFUSAL
        subject = re.search(r"\w+(?=\?| live| like| eat| have| open)", question)[0]
        assert any(re.search(rf"\b{subject}\b", fact) for fact in facts), row
        pattern = next(pattern for pattern in QUESTIONS if re.fullmatch(pattern, question))
        asked_of_the_other += any(
            re.fullmatch(QUESTIONS[pattern].format(r"\w+"), fact.strip()) for fact in facts
        )
    assert asked_of_the_other > PER_GROUNDING / 5


def test_out_of_domain_questions_are_many_and_all_are_refused():
    rows = _grounded("out_of_domain")
    assert {question for _, _, question in rows} <= set(TRIVIA)
    assert len({question for _, _, question in rows}) >= 80
    assert len({row.context for row, _, _ in rows}) == len(rows)
    assert all(row.answer == GROUNDED_REFUSAL for row, _, _ in rows)
    assert "What is the capital of France?" in TRIVIA
    assert len(set(TRIVIA)) == len(TRIVIA)


def test_grounded_prompts_hold_their_context_of_two_to_four_facts():
    for grounding in procedural.GROUNDINGS:
        for row, facts, _ in _grounded(grounding):
            assert row.context in row.prompt
            assert 2 <= len(facts) <= 4
            assert row.domain == Domain.GENERAL
