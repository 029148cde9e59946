"""What a page, a Prefect artifact and a terminal show: blocks.

A block says what is to be seen; `flows.report.html`, `flows.report.markdown` and `flows.cli.show`
say how (`Forms`). A string alone is a paragraph. Text is a string, a `Span`, or a tuple of both;
nothing in it is interpreted.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from markupsafe import Markup

from flows.runs.wording import Tone


@dataclass(frozen=True)
class Span:
    """A piece of text. In a table's cell `small` text stands below the text before it, elsewhere
    behind it. `classes` name rules of the style sheet."""

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
    """The pieces of a text."""
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
    """A heading of a level from 1 to 4; `name` is what links lead to."""

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
    """Text as it is, with its lines."""

    text: str
    classes: str = ""


@dataclass(frozen=True)
class Column:
    """A column: of numbers (to the right), words, texts that wrap, or a control's numbers."""

    title: Text = ""
    kind: Literal["number", "text", "wrap", "control"] = "number"


@dataclass(frozen=True)
class Cell:
    """A cell that is coloured; `strength` is in percent."""

    text: Text
    tone: Tone = "plain"
    strength: int | None = None
    classes: str = ""


@dataclass(frozen=True)
class Table:
    """A table; a column that is a text has numbers. A row of one string stands over the rows of a
    group. Columns without any title have no head."""

    columns: Sequence[Column | Text]
    rows: Sequence[Sequence[Text | Cell] | str]
    title: str = ""
    classes: str = ""

    @property
    def heads(self) -> list[Column]:
        """Every column as one."""
        return [one if isinstance(one, Column) else Column(one) for one in self.columns]

    @property
    def lines(self) -> Iterator[str | list[Cell]]:
        """Every row: a group's title, or its cells as such."""
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
    """Blocks that are folded away below a summary, if not `open`; terminals leave those out."""

    summary: Text
    blocks: Sequence["Block"]
    open: bool = False
    classes: str = "card"


@dataclass(frozen=True)
class Box:
    """Blocks in a frame (`card`), side by side (`grid`), or what else the style sheet has."""

    blocks: Sequence["Block"]
    classes: str = "card"


@dataclass(frozen=True)
class Raw:
    """HTML that a page alone can show; what of it is not our own was escaped."""

    html: Markup


Block = str | Heading | Paragraph | Code | Table | Figure | Sentences | Details | Box | Raw
Form = TypeVar("Form")
Forms = Mapping[type, Callable[[Any], Form]]
"""How each type of block looks in a medium."""


def formed(blocks: Iterable[Block], forms: Forms[Form]) -> Iterator[Form]:
    """Blocks in a medium."""
    return (forms[type(block)](block) for block in blocks)


def card(*blocks: Block) -> Box:
    return Box(blocks)


def grid(blocks: Sequence[Block], classes: str = "", *, framed: bool = True) -> list[Block]:
    """Blocks side by side, each in a frame; nothing, where there are none."""
    boxes = [Box([one], "card" if framed else "") for one in blocks]
    return [Box(boxes, f"grid {classes}".strip())] if boxes else []


def facts(rows: Sequence[tuple[Text, Text]], title: str = "") -> Table:
    """Names and values."""
    return Table(("", Column(kind="wrap")), rows, title)


def walk(blocks: Sequence[Block], *, folded: bool = True) -> Iterator[Block]:
    """All blocks, those inside others after these; without `folded` what is seen at first sight."""
    for block in blocks:
        yield block
        if isinstance(block, Box) or (isinstance(block, Details) and (folded or block.open)):
            yield from walk(block.blocks, folded=folded)
