"""Blocks as Markdown, for Prefect: the report as far as Markdown can show it, with plots as data
URIs. No text breaks out of its block."""

import base64
import re
from collections.abc import Sequence
from html import escape

from flows.report import blocks as ui
from flows.report.blocks import Block, Span, Text, formed, plain, spans, strong
from flows.report.html import style_sheet
from infra.visible import fence_of, visible


def markdown(blocks: Sequence[Block]) -> str:
    """A page of Markdown without control or invisible characters (`infra.visible`)."""
    return visible(_blocks(blocks)) + "\n"


def _blocks(blocks: Sequence[Block]) -> str:
    return "\n\n".join(filter(None, formed(blocks, _FORMS)))


def _inline(text: Text) -> str:
    return re.sub(" +", " ", "".join(_span(one) for one in spans(text))).strip()


def _span(one: str | Span) -> str:
    text = re.sub(r"\s+", " ", one if isinstance(one, str) else one.text)
    if isinstance(one, str) or one.tag == "span":
        return escape(text, quote=False)
    if one.tag == "code":
        return f"`{text.replace('`', chr(39))}`"
    text = escape(text, quote=False)
    return f"**{text}**" if one.tag == "strong" else f" {text}"


def _cell(text: Text) -> str:
    """Text of a table, whose columns end at a bar even within code."""
    return _inline(text).replace("|", "\\|")


def _table(table: ui.Table) -> str:
    width = len(table.columns)
    lines = [[_cell(one.title) for one in table.heads], ["---"] * width]
    for row in table.lines:
        group = [_cell(strong(row)), *[""] * (width - 1)] if isinstance(row, str) else []
        lines.append(group or [_cell(one.text) for one in row if isinstance(one, ui.Cell)])
    head = f"### {_inline(table.title)}\n\n" if table.title else ""
    return head + "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines)


def _heading(heading: ui.Heading) -> str:
    text = _inline(heading.text)
    return f"**{text}**" if heading.level > 3 else f"{'#' * heading.level} {text}"


def _details(details: ui.Details) -> str:
    summary = f"<details><summary>{escape(plain(details.summary))}</summary>"
    return f"{summary}\n\n{_blocks(details.blocks)}\n\n</details>"


def _image(figure: ui.Figure) -> str:
    """The drawing as a data URI, with the page's colours in it."""
    colours = style_sheet().partition("*")[0]
    ours = "svg { background: var(--card); color: var(--ink); font-family: sans-serif }"
    drawn = str(figure.svg).replace("<defs>", f"<style>{colours} {ours}</style><defs>", 1)
    return f"data:image/svg+xml;base64,{base64.b64encode(drawn.encode()).decode()}"


def _fenced(text: str) -> str:
    """Text in a code fence that it cannot close."""
    fence = fence_of(text)
    return f"{fence}text\n{text}\n{fence}"


_FORMS: ui.Forms[str] = {
    str: _inline,
    ui.Heading: _heading,
    ui.Paragraph: lambda one: _inline(one.text),
    ui.Code: lambda one: _fenced(one.text),
    ui.Table: _table,
    ui.Figure: lambda one: f"### {_inline(one.title)}\n\n![{_inline(one.title)}]({_image(one)})",
    ui.Sentences: lambda found: "\n".join(f"- {_inline(text)}" for _, text in found.items),
    ui.Details: _details,
    ui.Box: lambda one: _blocks(one.blocks),
    ui.Raw: lambda one: "",
}
