"""Blocks as one self-contained HTML page that loads nothing and runs no script: a
Content-Security-Policy forbids both, beside the escaping of every text."""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from markupsafe import Markup, escape

from flows.report import blocks as ui
from flows.report.blocks import Block, Span, Text, formed, spans
from infra.store.store import Store
from infra.visible import visible

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(
    title: str,
    header: Sequence[Block],
    main: Sequence[Block],
    footer: Sequence[Block] = (),
) -> str:
    """A whole page without control or invisible characters (`infra.visible`)."""
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("title", title),
        tag("style", Markup(style_sheet())),
    ]
    body = [
        tag("header", html(header)),
        tag("main", html(main)),
        tag("footer", tag("main", html(footer))),
    ]
    whole = tag("html", tag("head", *head), tag("body", *body), lang="en")
    return visible(f"<!doctype html>\n{whole}\n")


def write_page(store: Store, name: str, text: str) -> str:
    """Write a page and return its place: a path, or a `gs://` URI. Raises InputError: the store is
    full or not writable."""
    store.write_bytes(name, text.encode())
    return store.location(name)


@cache
def style_sheet() -> str:
    return files("flows.report").joinpath("style.css").read_text(encoding="utf-8")


def tag(element: str, *inside: str, **attributes: str | bool) -> Markup:
    """An HTML element. It escapes text that is not Markup, and leaves out empty attributes."""
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
    return Markup("\n").join(formed(blocks, _FORMS))


def inline(text: Text) -> Markup:
    return Markup().join(
        tag(one.tag, one.text, class_=one.classes) if isinstance(one, Span) else escape(one)
        for one in spans(text)
    )


def _table(table: ui.Table) -> Markup:
    words = {"number": "", "text": "text", "wrap": "text", "control": "control"}
    titles = [tag("th", inline(one.title), class_=words[one.kind]) for one in table.heads]
    head = tag("thead", tag("tr", *titles)) if any(one.title for one in table.heads) else ""
    rows = [
        tag("tr", tag("th", row, colspan=str(len(titles))), class_="group")
        if isinstance(row, str)
        else tag("tr", *(_cell(*both) for both in zip(row, table.heads, strict=True)))
        for row in table.lines
    ]
    inside = tag("table", head, tag("tbody", Markup("\n").join(rows)), class_=table.classes)
    title = tag("h3", table.title) if table.title else Markup()
    return title + tag("div", inside, class_="scroll")


def _cell(cell: ui.Cell, column: ui.Column) -> Markup:
    known = "" if column.kind == "number" else column.kind
    tone = "" if cell.tone == "plain" else cell.tone
    if cell.strength is None:
        classes = " ".join(filter(None, (known, tone, cell.classes)))
        return tag("td", inline(cell.text), class_=classes)
    style = f"--tone: var(--{'muted' if tone in ('', 'flat') else tone})"
    return tag("td", inline(cell.text), style=f"{style}; --strength: {cell.strength}%")


def _sentences(found: ui.Sentences) -> Markup:
    items = [tag("li", inline(text), class_=tone) for tone, text in found.items]
    return tag("ul", *items, class_="sentences")


def _details(one: ui.Details) -> Markup:
    summary = tag("summary", inline(one.summary))
    return tag("details", summary, html(one.blocks), class_=one.classes, open=one.open)


_FORMS: ui.Forms[Markup] = {
    str: lambda one: tag("p", one),
    ui.Heading: lambda one: tag(f"h{one.level}", inline(one.text), id=one.name),
    ui.Paragraph: lambda one: tag("p", inline(one.text), class_=one.classes),
    ui.Code: lambda one: tag("pre", one.text, class_=one.classes),
    ui.Table: _table,
    ui.Figure: lambda one: tag("figure", tag("figcaption", one.title), one.svg, class_="plot"),
    ui.Sentences: _sentences,
    ui.Details: _details,
    ui.Box: lambda one: tag("div", html(one.blocks), class_=one.classes),
    ui.Raw: lambda one: one.html,
}
