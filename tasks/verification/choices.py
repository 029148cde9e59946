"""The choices of a prompt, their text in it, and the letters that an answer can mean."""

import re
from collections.abc import Sequence
from string import ascii_uppercase
from unicodedata import combining

from schemas.examples import Constraint, Prompt
from tasks.verification.text import normalise_answer

CHOICES = "choices"
"""The name of the constraint."""

_WRAPPED = re.compile(r"[*_`$\"'“”]+|\\(?:boxed|text|textbf|mathrm)(?![A-Za-z])|[{}]")
_WIDE = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | str.maketrans("【】", "[]")
"""Full-width letters and marks, as those of ASCII."""
_PHRASE = re.compile(
    r"(?:the\s+)?(?:correct|right|best|final)?\s*(?:answer|choice|option)\s*(?:is\b|:|=)?\s*:?\s*",
    re.IGNORECASE,
)
_MOST_LETTERS = 3
"""An answer with its letter more often than this chooses nothing."""

_LETTER = re.compile(r"[(\[]?\s*([A-Za-z])\s*(?:[)\]][.:,]?|[.:,]|[-–—](?=\s)|$)\s*")
_AGAIN = re.compile(
    r"[\s.]*(?:(?i:or|and)\b|[/&])\s*(?:[(\[]?\s*([A-Za-z])\s*[)\]]|([A-Z])(?![\w'’]))"
    r"|\s*[,;]\s*[(\[]?([A-Z])[)\]:.](?!\w)"
)
"""Another letter: B) or C), B) Berlin, C)."""
_LIST = re.compile(r"(?:[\s,;.:/&()\[\]]|\b(?:or|and|[A-Z])\b)+")
_RIGHT = r" is (?:the )?(?:correct|right|best)(?: (?:answer|choice|option))?"
_LETTER_LAST = (
    re.compile(r"(?P<text>.+) \((?P<letter>[A-Z])\)\.?"),
    re.compile(r"(?P<letter>[A-Z]) \((?P<text>[^()]+)\)\.?"),
    re.compile(rf"(?P<letter>[A-Z])(?P<text>){_RIGHT}\.?"),
)


def choices_of(prompt: Prompt) -> tuple[str, ...]:
    """The texts to choose from; empty if the prompt has none."""
    values = (one.value for one in prompt.constraints if one.name == CHOICES)
    value = next(values, ())
    return value if isinstance(value, tuple) else ()


def letters(choices: Sequence[str]) -> str:
    return ascii_uppercase[: len(choices)]


def as_constraint(choices: Sequence[str]) -> tuple[Constraint, ...]:
    """The constraints of a prompt with these choices."""
    return (Constraint(name=CHOICES, value=tuple(choices)),)


def asked(question: str, choices: Sequence[str]) -> str:
    """The text of a prompt: the question, the choices with their letters, and how to answer."""
    named = zip(letters(choices), choices, strict=True)
    listed = "\n".join(f"{letter}. {text}" for letter, text in named)
    return f"{question}\n\n{listed}\n\nAnswer with the letter of the right choice."


def chosen(answer: str, choices: Sequence[str]) -> str:
    """The letters that an answer can mean: one, several where choices have the same text, none."""
    whole, letter = _without_phrase(_unwrapped(answer)), ""
    rest = whole if _with_text(answer, whole, choices) else _letter_first(whole)
    for _ in range(_MOST_LETTERS):
        match = _LETTER.match(rest)
        if match is None or match[1].upper() not in letters(choices):
            break
        if letter and match[1].upper() != letter:
            return ""
        letter, rest = match[1].upper(), rest[match.end() :]
        begun, behind = _of_text(rest, choices)
        if begun:
            return letter if letter in begun and not _goes_on(behind, letter, choices) else ""
        rest = _without_phrase(rest)
    else:
        return ""
    if not letter:
        return _with_text(answer, whole, choices)
    if _goes_on(rest, letter, choices):
        return ""
    said = _with_text(rest, rest, choices)
    return letter if letter in said or not said else ""


def _letter_first(text: str) -> str:
    """`Berlin (B)`, `B (Berlin)` and `B is the right answer` as `B. Berlin` and `B.`"""
    found = next((match for one in _LETTER_LAST if (match := one.fullmatch(text))), None)
    return f"{found['letter']}. {found['text']}" if found else text


def _goes_on(rest: str, letter: str, choices: Sequence[str]) -> bool:
    """Whether another letter is chosen as well by what follows a chosen letter, or its text:
    `and C`, `C and D`, `C. Rome`."""
    others = set(letters(choices)) - {letter}
    while True:
        if again := _AGAIN.match(rest):
            return (again[1] or again[2] or again[3]).upper() in others
        if _LIST.fullmatch(rest):
            return not others.isdisjoint(re.findall(r"\b[A-Z]\b", rest))
        named = _LETTER.match(rest.lstrip(" .;"))
        if named is None or named[1] not in others:
            return False
        begun, rest = _of_text(named.string[named.end() :], choices)
        if named[1] not in begun or not rest.strip(" ."):
            return named[1] in begun


def _without_phrase(text: str) -> str:
    phrase = _PHRASE.match(text)
    return text[phrase.end() :] if phrase else text


def _with_text(answer: str, plain: str, choices: Sequence[str]) -> str:
    """The letters of the choices equal to a text: exactly, or after folding if that leaves one
    text."""
    for fold, text in ((str.strip, answer), (normalise_answer, answer), (_folded, plain)):
        named = zip(letters(choices), choices, strict=True)
        same = {name: one.strip() for name, one in named if fold(one) == fold(text) != ""}
        if same:
            return "".join(same) if len(set(same.values())) == 1 else ""
    return ""


def _of_text(text: str, choices: Sequence[str]) -> tuple[str, str]:
    """The letters of the choices with which a text begins (the longest of them, compared exactly
    where that separates them), and what follows."""
    named = dict(zip(letters(choices), choices, strict=True))
    folded = {name: _folded(one) for name, one in named.items()}
    beginning = _folded(text[: 4 * max(map(len, folded.values()), default=0)])
    begun = {
        name: len(one)
        for name, one in folded.items()
        if one and re.match(rf"{re.escape(one)}(?!\w)", beginning)
    }
    most = max(begun.values(), default=0)
    longest = [name for name, length in begun.items() if length == most]
    written = [name for name in longest if text.startswith(_unwrapped(named[name]))]
    cut = most  # unless folding changed the length: of ß, or an accent of its own
    while len(_folded(text[:cut])) > most:
        cut -= 1
    while cut < len(text) and (len(_folded(text[:cut])) < most or combining(text[cut])):
        cut += 1
    return "".join(written or longest), text[cut:]


def _unwrapped(text: str) -> str:
    return " ".join(_WRAPPED.sub(" ", text.translate(_WIDE)).split())


def _folded(text: str) -> str:
    return normalise_answer(_unwrapped(text))
