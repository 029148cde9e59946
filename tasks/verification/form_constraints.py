"""The constraints of form that a prompt can have."""

import json
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from schemas.base import InputError, nearest
from schemas.examples import Constraint

Value = Any  # of the type that the constraint's `form` says


@dataclass(frozen=True)
class Rule:
    """A constraint: the form of its value, its meaning, and its test of an answer.

    Attributes:
        form: a name in `_FORMS`.
        holds: (answer, value) -> whether it holds, and what the answer has.
    """

    form: str
    meaning: str
    holds: Callable[[str, Value], tuple[bool, object]]


def validate(constraints: Iterable[Constraint], where: str) -> None:
    """Raises InputError for an unknown constraint (it lists the valid ones) or a value of another
    form."""
    for constraint in constraints:
        rule = CONSTRAINTS.get(constraint.name)
        if rule is None:
            valid = nearest(constraint.name, CONSTRAINTS)
            raise InputError(f"{where}: unknown constraint {constraint.name!r}.{valid}")
        if not _FORMS[rule.form](constraint.value):
            raise InputError(
                f"{where}: constraint {constraint.name!r} takes {rule.form}, not"
                f" {shown(constraint.value)}: {rule.meaning}."
            )


def shown(value: Value) -> str:
    """A constraint's value in a message."""
    return json.dumps(value, ensure_ascii=False)


_COUNTED = re.compile(r"(?P<word>.*\S)\s*:\s*(?P<count>\d{1,6})")

_FORMS: dict[str, Callable[[Value], bool]] = {
    "true": lambda value: value is True,
    "a whole number from 0": lambda value: (
        isinstance(value, int) and not isinstance(value, bool) and value >= 0
    ),
    "a text": lambda value: isinstance(value, str) and bool(value.strip()),
    "a list of texts": lambda value: (
        isinstance(value, tuple) and bool(value) and all(item.strip() for item in value)
    ),
    'a list of texts that end in a count ("rain: 2")': lambda value: (
        isinstance(value, tuple) and bool(value) and all(_COUNTED.fullmatch(item) for item in value)
    ),
    "an ISO 639-1 code of two letters": lambda value: (
        isinstance(value, str) and re.fullmatch("[a-z]{2}", value) is not None
    ),
}
_TRUE, _COUNT, _TEXT, _TEXTS, _COUNTS, _LANGUAGE = _FORMS

_WORD = re.compile(r"[^\W_]+(?:['’\-][^\W_]+)*")
_SENTENCE_END = re.compile(r"[.!?]+[\"'”’)\]]*(?=\s|$)|[。！？]+")
_LINE = re.compile(r"^.*\S", re.MULTILINE)
_BULLET = re.compile(r"^[ \t]*(?:[-*•]|\d+[.)])[ \t]+\S", re.MULTILINE)
_TITLE = r"<<[ \t]*[^<>\s][^<>\n]*>>|^[ \t]*#{1,6}[ \t]+\S|^[ \t]*\*\*[^*\n]+\*\*[ \t]*$"
_PLACEHOLDER = re.compile(r"\[[^\[\]\n]+\]")
_HIGHLIGHT = re.compile(r"\*\*[^*\s][^*\n]*\*\*|(?<!\*)\*[^*\s][^*\n]*\*(?!\*)")


def words(text: str) -> list[str]:
    return _WORD.findall(text)


def sentences(text: str) -> list[str]:
    """Pieces with a word in them, between the ends of sentences; a last one without its end
    counts."""
    return [piece for piece in _SENTENCE_END.split(text) if _WORD.search(piece)]


def paragraphs(text: str) -> list[str]:
    """Pieces between empty lines or lines of `***` and `---`."""
    pieces = re.split(r"\n(?:[ \t]*(?:(?:\*\*\*|---)[ \t]*)?\n)+", text.strip())
    return [piece for piece in pieces if piece.strip()]


def occurrences(text: str, phrase: str) -> int:
    """How often a word or phrase occurs in a text as whole words, in any case."""
    spaced = r"\s+".join(re.escape(part) for part in phrase.casefold().split())
    return len(re.findall(rf"(?<!\w){spaced}(?!\w)", text.casefold()))


_COUNTS_OF: dict[str, tuple[str, Callable[[str], int]]] = {
    "words": ("words", lambda text: len(words(text))),
    "characters": ("characters", len),
    "sentences": ("sentences", lambda text: len(sentences(text))),
    "paragraphs": ("paragraphs", lambda text: len(paragraphs(text))),
    "lines": ("lines that are not empty", lambda text: len(_LINE.findall(text))),
    "bullets": ("bullets or numbered points", lambda text: len(_BULLET.findall(text))),
    "highlights": ("*highlighted* or **bold** parts", lambda text: len(_HIGHLIGHT.findall(text))),
    "placeholders": ("[placeholders] in brackets", lambda text: len(_PLACEHOLDER.findall(text))),
}
_BOUNDS: dict[str, tuple[str, Callable[[int, int], bool]]] = {
    "max": ("at most", operator.le),
    "min": ("at least", operator.ge),
    "": ("exactly", operator.eq),
}


def _count_rule(name: str) -> "Rule":
    """The rule of a name such as `max_words` or `lines`."""
    bound, _, thing = name.rpartition("_")
    (words_of_bound, holds), (things, count) = _BOUNDS[bound], _COUNTS_OF[thing]

    def compared(text: str, most: int) -> tuple[bool, int]:
        found = count(text)
        return holds(found, most), found

    return Rule(_COUNT, f"{words_of_bound} so many {things}", compared)


def _without(find: Callable[[str], list[str]]) -> Callable[[str, bool], tuple[bool, list[str]]]:
    return lambda text, _: (not (found := find(text)), found[:5])


def _counted(
    compare: Callable[[int, int], bool],
) -> Callable[[str, tuple[str, ...]], tuple[bool, dict[str, int]]]:
    def holds(text: str, value: tuple[str, ...]) -> tuple[bool, dict[str, int]]:
        matches = [match for item in value if (match := _COUNTED.fullmatch(item))]
        wanted = {match["word"]: int(match["count"]) for match in matches}
        found = {word: occurrences(text, word) for word in wanted}
        return all(compare(found[word], count) for word, count in wanted.items()), found

    return holds


def _json_of(text: str) -> Any:
    """The JSON value of a text, in a fence or not. Raises ValueError for other texts, also those
    nested too deep."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        text = text.partition("\n")[2][:-3]
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _is_json(text: str, _: bool) -> tuple[bool, str]:
    try:
        _json_of(text)
    except ValueError as error:
        return False, str(error)
    return True, ""


def _has_keys(text: str, keys: tuple[str, ...]) -> tuple[bool, object]:
    try:
        value = _json_of(text)
    except ValueError as error:
        return False, str(error)
    if not isinstance(value, dict):
        return False, f"JSON of type {type(value).__name__}"
    return set(keys) <= value.keys(), sorted(value)


def _in_language(text: str, code: str) -> tuple[bool, str | None]:
    from tasks.cleaning.filters import language_of

    found = language_of(text)
    return found == code, found


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).strip(".\"'* ")


def _lacks_none(text: str, value: tuple[str, ...]) -> tuple[bool, str]:
    lacks = [word for word in value if not occurrences(text, word)]
    return not lacks, f"no {', no '.join(map(repr, lacks))}"


def _has_none(text: str, value: tuple[str, ...]) -> tuple[bool, list[str]]:
    has = [word for word in value if occurrences(text, word)]
    return not has, has


def _matches(pattern: str) -> Callable[[str, bool], tuple[bool, str]]:
    compiled = re.compile(pattern, re.MULTILINE)
    return lambda text, _: (compiled.search(text) is not None, text[:40])


def _is_one_of(text: str, value: tuple[str, ...]) -> tuple[bool, str]:
    return _plain(text) in {_plain(item) for item in value}, text[:80]


def _bare(text: str) -> str:
    """A text for comparison, without the marks around it."""
    return text.strip().strip("\"'*").strip().casefold()


def _beginning(text: str, value: str) -> tuple[bool, str]:
    return _bare(text).startswith(_bare(value) or value), text.strip()[: len(value) + 10]


def _ending(text: str, value: str) -> tuple[bool, str]:
    return _bare(text).endswith(_bare(value) or value), text.strip()[-len(value) - 10 :]


_COUNT_RULES = """
    max_words min_words max_characters min_characters max_sentences min_sentences sentences
    paragraphs max_paragraphs min_paragraphs lines bullets max_bullets min_bullets min_highlights
    min_placeholders
"""
CONSTRAINTS: dict[str, Rule] = {
    **{name: _count_rule(name) for name in _COUNT_RULES.split()},
    "includes": Rule(_TEXTS, "each of the words or phrases", _lacks_none),
    "excludes": Rule(_TEXTS, "none of the words or phrases", _has_none),
    "min_counts": Rule(_COUNTS, "each word at least so often",
                       _counted(lambda found, wanted: found >= wanted)),
    "max_counts": Rule(_COUNTS, "each word at most so often",
                       _counted(lambda found, wanted: found <= wanted)),
    "counts": Rule(_COUNTS, "each word exactly so often",
                   _counted(lambda found, wanted: found == wanted)),
    "starts_with": Rule(_TEXT, "the text begins so, in any case", _beginning),
    "ends_with": Rule(_TEXT, "the text ends so, in any case", _ending),
    "lower_case": Rule(_TRUE, "no capital letter", _without(
        lambda text: [word for word in words(text) if word != word.lower()])),
    "upper_case": Rule(_TRUE, "no small letter", _without(
        lambda text: [word for word in words(text) if word != word.upper()])),
    "no_commas": Rule(_TRUE, "no comma of any script",
                      _without(lambda text: re.findall("[,，、،]", text))),
    "no_digits": Rule(_TRUE, "no digit", _without(lambda text: re.findall(r"\d", text))),
    "quoted": Rule(_TRUE, "the whole text in double quotes",
                   _matches(r'\A\s*["“](?s:.+)["”]\s*\Z')),
    "json": Rule(_TRUE, "valid JSON, in a fence or not", _is_json),
    "json_keys": Rule(_TEXTS, "a JSON object that has these keys", _has_keys),
    "title": Rule(_TRUE, "a title: <<title>>, a Markdown heading or a line in bold",
                  _matches(_TITLE)),
    "one_of": Rule(_TEXTS, "the text is one of these, case and a last period aside", _is_one_of),
    "language": Rule(_LANGUAGE, "in this language; a text too short to say is in none",
                     _in_language),
}  # fmt: skip
"""Name -> rule. A constraint of a `min_`, `max_` pair may stand beside its partner."""
