"""Blocks as one self-contained HTML page that loads nothing and runs no script: a
Content-Security-Policy forbids both, beside the escaping of every text."""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from markupsafe import Markup, escape

from flows.report.blocks import (
    Block,
    Box,
    Cell,
    Code,
    Column,
    Details,
    Figure,
    Heading,
    Paragraph,
    Raw,
    Sentences,
    Span,
    Table,
    Text,
    spans,
)
from infra.visible import visible

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(
    title: str,
    header: Sequence[Block],
    main: Sequence[Block],
    footer: Sequence[Block] = (),
    style: str = "",
) -> str:
    """A whole page, in which no character acts or hides (`infra.visible`), wherever it comes
    from. `style` is CSS beside the style sheet's."""
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("title", title),
        tag("style", Markup(style_sheet() + style)),
    ]
    body = [
        tag("header", html(header)),
        tag("main", html(main)),
        tag("footer", tag("main", html(footer))),
    ]
    whole = tag("html", tag("head", *head), tag("body", *body), lang="en")
    return visible(f"<!doctype html>\n{whole}\n")


@cache
def style_sheet() -> str:
    """The style of all pages."""
    return files("flows.report").joinpath("style.css").read_text(encoding="utf-8")


def tag(element: str, *inside: str, **attributes: str | bool) -> Markup:
    """An element. Text that is not Markup is escaped; empty attributes are left out."""
    said = [
        Markup(" {}").format(key) if value is True else Markup(' {}="{}"').format(key, value)
        for key, value in ((key.strip("_").replace("_", "-"), of) for key, of in attributes.items())
        if value
    ]
    opened = Markup("<{}{}>").format(element, Markup().join(said))
    if element in ("meta", "input", "img"):
        return opened
    return opened + Markup().join(inside) + Markup("</{}>").format(element)


def html(blocks: Sequence[Block]) -> Markup:
    """Blocks, one below the other."""
    return Markup("\n").join(_block(block) for block in blocks)


def inline(text: Text) -> Markup:
    """Text within a line."""
    return Markup().join(
        tag(one.tag, one.text, class_=one.classes) if isinstance(one, Span) else escape(one)
        for one in spans(text)
    )


def _block(block: Block) -> Markup:
    match block:
        case str():
            return tag("p", block)
        case Heading():
            return tag(f"h{block.level}", inline(block.text), id=block.name)
        case Paragraph():
            return tag("p", inline(block.text), class_=block.classes)
        case Code():
            return tag("pre", block.text, class_=block.classes)
        case Table():
            return _table(block)
        case Figure():
            return tag("figure", tag("figcaption", block.title), block.svg, class_="plot")
        case Sentences():
            items = [tag("li", inline(text), class_=tone) for tone, text in block.items]
            return tag("ul", *items, class_="sentences")
        case Details():
            inside = tag("summary", inline(block.summary)), html(block.blocks)
            return tag("details", *inside, class_=block.classes, open=block.open)
        case Box():
            return tag("div", html(block.blocks), class_=block.classes)
        case Raw():
            return block.html


def _table(table: Table) -> Markup:
    columns = [one if isinstance(one, Column) else Column(one) for one in table.columns]
    words = {"number": "", "text": "text", "wrap": "text", "control": "control"}
    titles = [tag("th", inline(one.title), class_=words[one.kind]) for one in columns]
    head = tag("thead", tag("tr", *titles)) if any(one.title for one in columns) else ""
    rows = [
        tag("tr", tag("th", row, colspan=str(len(columns))), class_="group")
        if isinstance(row, str)
        else tag("tr", *(_cell(cell, column) for cell, column in zip(row, columns, strict=True)))
        for row in table.rows
    ]
    inside = tag("table", head, tag("tbody", Markup("\n").join(rows)), class_=table.classes)
    title = tag("h3", table.title) if table.title else Markup()
    return title + tag("div", inside, class_="scroll")


def _cell(cell: Text | Cell, column: Column) -> Markup:
    known = "" if column.kind == "number" else column.kind
    if not isinstance(cell, Cell):
        return tag("td", inline(cell), class_=known)
    tone = "" if cell.tone == "plain" else cell.tone
    if cell.strength is None:
        return tag("td", inline(cell.text), class_=f"{known} {tone} {cell.classes}".strip())
    style = f"--tone: var(--{'muted' if tone in ('', 'flat') else tone})"
    return tag("td", inline(cell.text), style=f"{style}; --strength: {cell.strength}%")
