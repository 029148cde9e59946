r"""Declarative mapping from a record's columns to text: where a recipe finds prompts, traces and
answers.

A column path walks into objects and lists: `question`, `instances.0.output`, `turns.0`. A text is
one of

    "question"                                      the column as it is
    { column = "answer", before = "####" }          the part before the first (or `after` the last)
                                                    such marker, without the matches of a regular
                                                    expression (`without = "<<.*?>>"`)
    { column = "source", where = "source_labels" }  of a list, the items whose place in another list
                                                    is true (1, true)
    { column = "question", found_in = "context" }   its words, each with whether another column has
                                                    it: "aspirin yes, colonoscopy no"
    { template = "{instruction}[\n\n{input}]" }     columns in a text; a part in square brackets
                                                    vanishes with an empty column, and brackets
                                                    without a column stay
    [ "solution", { template = "..." } ]            the first of these that is not empty

A template may quote: `{quote}` is the sentence of one column that shares most words with another,

    { template = 'The context says: "{quote}" {LONG_ANSWER}',
      quote = { column = "CONTEXTS", like = "LONG_ANSWER" } }

and have parts, each of them a text of its own,

    { template = "Context: {context}\nQuestion: {question}", parts = {
      context = { column = "said", after = "<context>", before = "</context>" },
      question = { column = "said", after = "<question>", before = "</question>" } } }

Lists become their items joined by `join`. A missing marker, or an empty column outside square
brackets, makes the text empty.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from schemas.base import InputError, StrictModel, nearest

_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9(])")
_FEWEST_SHARED = 2
_TELLING = re.compile(r"\w{5,}")
_MOST_TELLING = 8
QUOTE = "quote"
_OPTIONAL = re.compile(r"\[([^\[\]]*\{[^\[\]]*)\]")


class Quote(StrictModel):
    """The sentence of `column` that is most similar to another column's text: by the cosine of
    their sets of words of four letters or more, at least two of which must agree. A sentence that
    would end a quotation or looks like a tag is not quoted."""

    column: str
    like: str

    def text(self, row: Mapping[str, Any], join: str) -> str:
        """The sentence as written in the column, or ""."""
        said = _words(_as_text(lookup(row, self.like), join))

        def likeness(sentence: str) -> float:
            words = _words(sentence)
            shared = len(words & said)
            quotable = shared >= _FEWEST_SHARED and not re.search('["\u201c\u201d<>]', sentence)
            return shared / math.sqrt(len(words) * len(said)) if quotable else 0.0

        best = max(_SENTENCE.split(_as_text(lookup(row, self.column), join)), key=likeness)
        return best.strip() if likeness(best) else ""


def _regex(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    return pattern


class Pick(StrictModel):
    """Text made from one column, or from several by a template."""

    column: str | None = None
    template: str | None = None
    before: str | None = Field(default=None, min_length=1)
    after: str | None = Field(default=None, min_length=1)
    where: str | None = None
    found_in: str | None = None
    without: Annotated[str, AfterValidator(_regex)] | None = Field(default=None, min_length=1)
    quote: Quote | None = None
    parts: "dict[str, Pick]" = Field(default_factory=dict)
    join: str = " "

    @model_validator(mode="after")
    def _one_way_to_pick(self) -> Self:
        if (self.column is None) == (self.template is None):
            raise ValueError("give either a column or a template")
        of_a_column = (self.before, self.after, self.where, self.found_in, self.without)
        if self.template is not None and any(of_a_column):
            raise ValueError(
                "before, after, where, found_in and without are for a column; a template has none"
                " of them"
            )
        if self.template is not None and re.search(r"[{}]", _PLACEHOLDER.sub("", self.template)):
            raise ValueError(
                f"template {self.template!r} has a brace without its partner; write {{column}}"
            )
        for text in filter(None, (self.template, self.before, self.after)):
            if mark := re.search(r"\\[nt](?![a-z])", text):
                raise ValueError(
                    f"{text!r} has a backslash before {mark[0][1]!r}: TOML keeps it between single"
                    " quotes; write the text between double quotes"
                )
        if (self.quote is None) == (QUOTE in _PLACEHOLDER.findall(self.template or "")):
            raise ValueError(f"a template that has {{{QUOTE}}} and the table `{QUOTE}` go together")
        if unused := self.parts.keys() - set(_PLACEHOLDER.findall(self.template or "")):
            raise ValueError(
                f"part {min(unused)!r} is not in the template; write {{{min(unused)}}} there, or"
                " leave it out"
            )
        return self

    def columns(self) -> list[str]:
        """The column paths that this text reads."""
        if self.template is not None:
            named = _PLACEHOLDER.findall(self.template)
            columns = [path for path in named if path != QUOTE and path not in self.parts]
            quoted = [self.quote.column, self.quote.like] if self.quote else []
            return [*columns, *quoted, *(c for part in self.parts.values() for c in part.columns())]
        paths = (self.column, self.where, self.found_in)
        return [path for path in paths if path is not None]

    def text(self, row: Mapping[str, Any]) -> str:
        """The text for one record, stripped; empty when the record lacks it."""
        if self.template is not None:
            # odd parts of the split are those in square brackets; each part is filled by itself,
            # since values may contain brackets and braces
            parts = [self._filled(part, row) for part in _OPTIONAL.split(self.template)]
            return "" if None in parts[::2] else "".join(part or "" for part in parts).strip()
        assert self.column is not None
        value = lookup(row, self.column)
        if self.where is not None:
            flags = lookup(row, self.where)
            lists = isinstance(value, list) and isinstance(flags, list)
            value = list(compress(value, flags)) if lists else None
        text = _as_text(value, self.join)
        if self.after is not None:
            text = text.rpartition(self.after)[2] if self.after in text else ""
        if self.before is not None:
            text = text.partition(self.before)[0] if self.before in text else ""
        text = (re.sub(self.without, "", text) if self.without else text).strip()
        place = self.found_in and _as_text(lookup(row, self.found_in), self.join)
        return text if place is None else _found(text, place)

    def _filled(self, template: str, row: Mapping[str, Any]) -> str | None:
        """The template with its columns filled in, or None when one of them is empty."""
        texts = {path: self._named(path, row) for path in _PLACEHOLDER.findall(template)}
        filled = _PLACEHOLDER.sub(lambda match: texts[match[1]], template)
        return None if "" in texts.values() else filled

    def _named(self, name: str, row: Mapping[str, Any]) -> str:
        """The value of a name in the template: a part, the quotation, or a column."""
        if name in self.parts:
            return self.parts[name].text(row)
        if self.quote and name == QUOTE:
            return self.quote.text(row, self.join)
        return _as_text(lookup(row, name), self.join).strip()


def _found(text: str, place: str) -> str:
    """The first eight words of `text` of five letters or more, each with "yes" or "no": whether
    `place` has it, in small or capital letters. Empty where `place` is."""
    there = _words(place)
    words = list(dict.fromkeys(_TELLING.findall(text)))[:_MOST_TELLING]
    found = (f"{word} {'yes' if word.lower() in there else 'no'}" for word in words)
    return ", ".join(found) if place else ""


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w{4,}", text.lower()))


def _as_picks(value: Any) -> Any:
    """Expand the short forms: a column's name, and one pick outside a list."""
    parts = value if isinstance(value, list | tuple) else [value]
    return tuple({"column": part} if isinstance(part, str) else part for part in parts)


def _not_empty(picks: tuple[Pick, ...]) -> tuple[Pick, ...]:
    if not picks:
        raise ValueError("an empty list names no column")
    return picks


Text = Annotated[tuple[Pick, ...], BeforeValidator(_as_picks), AfterValidator(_not_empty)]
"""Alternatives, in order of preference."""


def text_of(text: Sequence[Pick], row: Mapping[str, Any]) -> str:
    """The text of one record: the first alternative that is not empty, else ""."""
    return next((found for pick in text if (found := pick.text(row))), "")


def lookup(row: Mapping[str, Any], path: str) -> Any:
    """The value at a column path, or None. A column whose name contains dots is found by its whole
    name first."""
    if path in row:
        return row[path]
    value: Any = row
    for part in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            value = value[int(part)] if part.isdigit() and int(part) < len(value) else None
        else:
            return None
    return value


def _as_text(value: Any, join: str) -> str:
    """Strings as they are (line ends as \\n), lists joined, None and NaN (a table's empty cell)
    empty, decimals, dates and bytes of Parquet as text, anything else as JSON."""
    if value is None or value != value:
        return ""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if isinstance(value, str):
        return value.replace("\r\n", "\n")
    if isinstance(value, list):
        return join.join(_as_text(item, join) for item in value)
    if isinstance(value, dict | tuple | int | float):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


class Columns:
    """Checks that a file's rows have the columns of a mapping, row by row; only the first few rows
    are stored.

    A column exists when some row has a value there, or has that key. Of several alternatives at
    least one must exist as a whole.
    """

    _KEPT = 100
    """First rows, kept for the message that names the columns there are."""

    _PATIENCE = 100_000
    """Rows after which a column that none of them has is taken for a wrong name: a mistake in a
    recipe must not cost a night's reading."""

    def __init__(self, name: str, wanted: Iterable[tuple[str, Sequence[Sequence[str]]]]) -> None:
        """`wanted`: (mapping key, the column paths of each alternative). `name`: the file's name in
        messages."""
        self._name = name
        self._missing = [(key, alternatives) for key, alternatives in wanted if all(alternatives)]
        self._first: list[Mapping[str, Any]] = []
        self._seen = 0

    def see(self, row: Mapping[str, Any]) -> None:
        """Look at the next row. Raises InputError when a column is still missing after very many
        rows."""
        if not self._missing:
            return
        self._seen += 1
        if len(self._first) < self._KEPT:
            self._first.append(row)
        left = [
            (key, [[path for path in paths if not _has(row, path)] for paths in alternatives])
            for key, alternatives in self._missing
        ]
        self._missing = [(key, alternatives) for key, alternatives in left if all(alternatives)]
        if self._seen == self._PATIENCE:
            self.require_all()

    def require_in(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Look at rows until each column was there. Raises as `see` and `require_all`."""
        for row in rows:
            self.see(row)
            if not self._missing:
                return
        self.require_all()

    def require_all(self) -> None:
        """Raise InputError if a column is missing, with its name and the existing ones. A file
        without a readable row passes."""
        for key, alternatives in self._missing if self._seen else ():
            path = alternatives[0][0]
            raise InputError(
                f"data file {self._name}, {key}: there is no column"
                f" {path!r}.{nearest(path, _available(self._first, path))}"
            )


def _has(row: Mapping[str, Any], path: str) -> bool:
    *above, last = path.split(".")
    parent = lookup(row, ".".join(above)) if above else row
    return (
        path in row
        or lookup(row, path) is not None
        or (isinstance(parent, Mapping) and last in parent)
    )


def _available(rows: Sequence[Mapping[str, Any]], path: str) -> list[str]:
    """The existing columns, for a message about a missing one: those of the deepest level that
    exists."""
    above = path.split(".")[:-1]
    while above:
        parents = (lookup(row, ".".join(above)) for row in rows)
        keys = {key for parent in parents if isinstance(parent, Mapping) for key in parent}
        if keys:
            return sorted(f"{'.'.join(above)}.{key}" for key in keys)
        above.pop()
    return sorted({key for row in rows for key in row})
