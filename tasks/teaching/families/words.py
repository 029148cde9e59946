"""The words that the families share: few, short and common, so that a small vocabulary holds most
of them as one token."""

from collections.abc import Iterable

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

KINDS = {word: kind for kind, words in CATEGORIES.items() for word in words}

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


def walk(pairs: Iterable[tuple[str, str]], wanted: str) -> tuple[str, list[str]]:
    """Compare words, each with its kind, with the wanted kind.

    The compared words stand side by side, and each yes repeats all words found so far, so that the
    last yes holds the answer.

    Returns:
        the steps, and the words of the wanted kind.
    """
    steps, found = [], list[str]()
    for word, its in pairs:
        if its == wanted:
            found.append(word)
        verdict = f"yes {' '.join(found)}" if its == wanted else "no"
        steps.append(f"{word} {its} {wanted} {verdict}")
    return ", ".join(steps), found


def joined(words: list[str]) -> str:
    """`a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
