"""The words that the families share: few, short and common, so that a small vocabulary holds most
of them as one token."""

NAMES = (
    "Ana", "Ben", "Cara", "Dan", "Eva", "Finn", "Gina", "Hugo", "Iris", "Jack", "Leo", "Mia",
    "Noah", "Olga", "Sam", "Zoe",
)  # fmt: skip

CATEGORIES = {
    "animal": ("bear", "cat", "dog", "fox", "goat", "horse", "lion", "wolf"),
    "color": ("black", "blue", "brown", "green", "pink", "purple", "red", "white"),
    "fruit": ("apple", "cherry", "fig", "lemon", "mango", "melon", "peach", "plum"),
    "tool": ("axe", "brush", "drill", "hammer", "knife", "ladder", "rake", "saw"),
    "place": ("bank", "castle", "farm", "forest", "garden", "museum", "park", "tower"),
    "vehicle": ("boat", "bus", "car", "jet", "ship", "train", "truck", "van"),
}

THINGS = (
    "bag", "ball", "book", "box", "clock", "coat", "cup", "flag", "hat", "key", "kite", "lamp",
    "map", "pen", "ring", "vase",
)  # fmt: skip
JOBS = (
    "baker", "cook", "doctor", "farmer", "judge", "nurse", "painter", "pilot", "teacher", "writer",
)  # fmt: skip
CITIES = ("Cairo", "Delhi", "Lima", "London", "Oslo", "Paris", "Rome", "Tokyo")
MATERIALS = ("brass", "clay", "copper", "glass", "iron", "lead", "salt", "steel")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

RHYMES = {
    "-at": ("bat", "cat", "hat", "rat"),
    "-an": ("can", "fan", "man", "van"),
    "-ay": ("clay", "day", "hay", "way"),
    "-ed": ("bed", "fed", "led", "red"),
    "-ell": ("bell", "fell", "sell", "well"),
    "-ing": ("king", "ring", "sing", "wing"),
    "-og": ("dog", "fog", "frog", "log"),
    "-un": ("bun", "fun", "run", "sun"),
    "-ake": ("bake", "cake", "lake", "rake"),
    "-own": ("brown", "crown", "down", "town"),
}


_COLUMNS = ("ones", "tens", "hundreds")


def number_list(values: list[int]) -> str:
    return ", ".join(str(value) for value in values)


def column_addition(a: int, b: int) -> str:
    """a + b, column by column, with the carry written in each; b has no more digits than a, which
    has three at most."""
    steps, carry = [], 0
    for place, column in enumerate(_COLUMNS[: len(str(a))]):
        x, y = a // 10**place % 10, b // 10**place % 10
        total = x + y + carry
        steps.append(f"{column} {x}+{y}{f'+{carry}' if place else ''}={total}")
        carry = total // 10
    return f"{', '.join(steps)}, so {a + b}"


def added(a: int, b: int) -> str:
    """a + b as a step of other work: at once, or in columns where both have two digits or more."""
    more, less = max(a, b), min(a, b)
    return f"{a}+{b}={a + b}" if less < 10 else column_addition(more, less)


def yes_with(found: list[str], verdict: bool) -> str:
    """The verdict on one word of a walk; a yes with all that was found so far, so that the last one
    holds the answer."""
    return f"yes {' '.join(found)}" if verdict else "no"


def joined(words: list[str]) -> str:
    """`a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
