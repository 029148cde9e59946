"""Blocks: the content of a page, a Prefect artifact and a terminal's output.

`flows.report.html`, `flows.report.markdown` and `flows.cli.show` render blocks (`Forms`). A string
alone is a paragraph. Text is a string, a `Span`, or a tuple of both, and never markup.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from markupsafe import Markup

from flows.runs.wording import Tone


@dataclass(frozen=True)
class Span:
    """A piece of text. `small` text goes below the text before it in a table's cell, and after it
    elsewhere. `classes` name rules of the style sheet."""

    text: str
    tag: Literal["strong", "code", "small", "span"]
    classes: str = ""


Text = str | Span | tuple[str | Span, ...]


def strong(text: str, classes: str = "") -> Span:
    return Span(text, "strong", classes)


def code(text: str) -> Span:
    return Span(text, "code")


def small(text: str, classes: str = "") -> Span:
    return Span(text, "small", classes)


def spans(text: Text) -> tuple[str | Span, ...]:
    return text if isinstance(text, tuple) else (text,)


def plain(text: Text) -> str:
    """A text without its styles."""
    found = ""
    for one in spans(text):
        gap = " " if isinstance(one, Span) and one.tag == "small" else ""
        found += gap + (one if isinstance(one, str) else one.text)
    return found.strip()


@dataclass(frozen=True)
class Heading:
    """A heading of a level from 1 to 4; `name` is the target of links."""

    text: Text
    level: int = 2
    name: str = ""


@dataclass(frozen=True)
class Paragraph:
    """A paragraph. A `note` explains; terminals leave it out."""

    text: Text
    classes: str = ""


@dataclass(frozen=True)
class Code:
    """Preformatted text, with its lines."""

    text: str
    classes: str = ""


@dataclass(frozen=True)
class Column:
    """A column of numbers (aligned right), words, texts that wrap, or a control's numbers."""

    title: Text = ""
    kind: Literal["number", "text", "wrap", "control"] = "number"


@dataclass(frozen=True)
class Cell:
    """A coloured cell; `strength` is in percent."""

    text: Text
    tone: Tone = "plain"
    strength: int | None = None
    classes: str = ""


@dataclass(frozen=True)
class Table:
    """A table; a column given as a text has numbers. A row of one string is the title of the group
    below it. A table without column titles has no head."""

    columns: Sequence[Column | Text]
    rows: Sequence[Sequence[Text | Cell] | str]
    title: str = ""
    classes: str = ""

    @property
    def heads(self) -> list[Column]:
        """All columns, as Column objects."""
        return [one if isinstance(one, Column) else Column(one) for one in self.columns]

    @property
    def lines(self) -> Iterator[str | list[Cell]]:
        """All rows: a group's title, or Cell objects."""
        for row in self.rows:
            cells = [one if isinstance(one, Cell) else Cell(one) for one in row]
            yield row if isinstance(row, str) else cells


@dataclass(frozen=True)
class Figure:
    """A drawing with its title."""

    title: str
    svg: Markup


@dataclass(frozen=True)
class Sentences:
    """Findings, each coloured by its tone."""

    items: Sequence[tuple[Tone, Text]]


@dataclass(frozen=True)
class Details:
    """Blocks folded below a summary unless `open`; terminals leave out folded ones."""

    summary: Text
    blocks: Sequence["Block"]
    open: bool = False
    classes: str = "card"


@dataclass(frozen=True)
class Box:
    """Blocks in a frame (`card`), side by side (`grid`), or in another class of the style sheet."""

    blocks: Sequence["Block"]
    classes: str = "card"


@dataclass(frozen=True)
class Raw:
    """HTML that only a page can show; foreign text in it is escaped."""

    html: Markup


Block = str | Heading | Paragraph | Code | Table | Figure | Sentences | Details | Box | Raw
Form = TypeVar("Form")
Forms = Mapping[type, Callable[[Any], Form]]
"""The renderer of each type of block in a medium."""


def formed(blocks: Iterable[Block], forms: Forms[Form]) -> Iterator[Form]:
    return (forms[type(block)](block) for block in blocks)


def card(*blocks: Block) -> Box:
    return Box(blocks)


def grid(blocks: Sequence[Block], classes: str = "", *, framed: bool = True) -> list[Block]:
    """Blocks side by side, each in a frame; nothing without blocks."""
    boxes = [Box([one], "card" if framed else "") for one in blocks]
    return [Box(boxes, f"grid {classes}".strip())] if boxes else []


def facts(rows: Sequence[tuple[Text, Text]], title: str = "") -> Table:
    return Table(("", Column(kind="wrap")), rows, title)


def words(*titles: Text) -> list[Column]:
    return [Column(title, "text") for title in titles]


def walk(blocks: Sequence[Block], *, folded: bool = True) -> Iterator[Block]:
    """All blocks, each before those inside it; without `folded` only the visible ones."""
    for block in blocks:
        yield block
        if isinstance(block, Box) or (isinstance(block, Details) and (folded or block.open)):
            yield from walk(block.blocks, folded=folded)
