"""The choices of a prompt, their text in it, and the letters that an answer can mean."""

import re
from collections.abc import Sequence
from string import ascii_uppercase

from schemas.examples import Constraint, Prompt
from tasks.verification.text import normalise_answer

CHOICES = "choices"
"""The name of the constraint."""

_WRAPPED = re.compile(r"[*_`$\"'“”]+|\\(?:boxed|text|textbf|mathrm)\b|[{}]")
_PHRASE = re.compile(
    r"(?:the\s+)?(?:correct|right|best|final)?\s*(?:answer|choice|option)\s*(?:is\b|:|=)?\s*:?\s*",
    re.IGNORECASE,
)
_MOST_LETTERS = 3
"""An answer with its letter more often than this chooses nothing."""

_AGAIN = re.compile(r"(?:(?i:or|and)\b|[/&])\s*(?:[(\[]\s*([A-Za-z])\s*[)\]]|([A-Z])(?![\w'’]))")
"""A second letter: B) or C)."""
_LETTER = re.compile(r"[(\[]?\s*([A-Za-z])\s*(?:[)\]][.:,]?|[.:,]|[-–—](?=\s)|$)\s*")


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
    rest = _without_phrase(_unwrapped(answer))
    whole, letter = rest, ""
    for _ in range(_MOST_LETTERS):
        match = _LETTER.match(rest)
        if match is None or match[1].upper() not in letters(choices):
            break
        if letter and match[1].upper() != letter:
            return ""
        letter, rest = match[1].upper(), rest[match.end() :]
        if begun := _of_text(rest, choices):
            return letter if letter in begun else ""
        rest = _without_phrase(rest)
    else:
        return ""
    if not letter:
        return _with_text(answer, whole, choices)
    again = _AGAIN.match(rest)
    if again and (again[1] or again[2]).upper() in letters(choices).replace(letter, ""):
        return ""
    said = _with_text(rest, rest, choices)
    return letter if letter in said or not said else ""


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


def _of_text(text: str, choices: Sequence[str]) -> str:
    """The letters of the choices with which a text begins: the longest of them, compared exactly
    where that separates them."""
    folded = _folded(text)
    named = dict(zip(letters(choices), choices, strict=True))
    begun = {
        name: len(_folded(one)) for name, one in named.items() if _begins(folded, _folded(one))
    }
    longest = [name for name, length in begun.items() if length == max(begun.values())]
    written = [name for name in longest if text.startswith(_unwrapped(named[name]))]
    return "".join(written or longest)


def _begins(folded: str, choice: str) -> bool:
    return bool(choice) and re.match(rf"{re.escape(choice)}(?!\w)", folded) is not None


def _unwrapped(text: str) -> str:
    return " ".join(_WRAPPED.sub(" ", text).split())


def _folded(text: str) -> str:
    return normalise_answer(_unwrapped(text))
