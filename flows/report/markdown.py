"""Blocks as Markdown, for Prefect: what the report shows as far as Markdown can, plots as images
within their own addresses. No text breaks out of its block."""

import base64
import re
from collections.abc import Sequence
from html import escape

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
    plain,
    spans,
    strong,
)
from flows.report.html import style_sheet
from infra.visible import visible


def markdown(blocks: Sequence[Block]) -> str:
    """A page of Markdown, in which no character acts or hides (`infra.visible`)."""
    return visible(_blocks(blocks)) + "\n"


def _blocks(blocks: Sequence[Block]) -> str:
    return "\n\n".join(text for block in blocks if (text := _block(block)))


def _block(block: Block) -> str:
    match block:
        case str():
            return _inline(block)
        case Heading():
            text = _inline(block.text)
            return f"**{text}**" if block.level > 3 else f"{'#' * block.level} {text}"
        case Paragraph():
            return _inline(block.text)
        case Code():
            return _fenced(block.text)
        case Table():
            return _table(block)
        case Figure():
            return f"### {_inline(block.title)}\n\n![{_inline(block.title)}]({_image(block)})"
        case Sentences():
            return "\n".join(f"- {_inline(text)}" for _, text in block.items)
        case Details():
            summary = f"<details><summary>{escape(plain(block.summary))}</summary>"
            return f"{summary}\n\n{_blocks(block.blocks)}\n\n</details>"
        case Box():
            return _blocks(block.blocks)
        case Raw():
            return ""


def _inline(text: Text) -> str:
    return re.sub(" +", " ", "".join(_span(one) for one in spans(text))).strip()


def _span(one: str | Span) -> str:
    text = re.sub(r"\s+", " ", one if isinstance(one, str) else one.text).replace("|", "\\|")
    if isinstance(one, str) or one.tag == "span":
        return escape(text, quote=False)
    if one.tag == "code":
        return f"`{text.replace('`', chr(39))}`"
    text = escape(text, quote=False)
    return f"**{text}**" if one.tag == "strong" else f" {text}"


def _table(table: Table) -> str:
    titles = [one.title if isinstance(one, Column) else one for one in table.columns]
    width = len(titles)
    filled = [""] * (width - 1)
    lines = [[_inline(one) for one in titles], ["---"] * width]
    for row in table.rows:
        cells: Sequence[Text | Cell] = row
        if isinstance(row, str):
            cells = [strong(row), *filled]
        lines.append([_inline(one.text if isinstance(one, Cell) else one) for one in cells])
    head = f"### {_inline(table.title)}\n\n" if table.title else ""
    return head + "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines)


def _image(figure: Figure) -> str:
    """The drawing as an address, with the page's colours in it."""
    colours = style_sheet().partition("*")[0]
    ours = "svg { background: var(--card); color: var(--ink); font-family: sans-serif }"
    drawn = str(figure.svg).replace("<defs>", f"<style>{colours} {ours}</style><defs>", 1)
    return f"data:image/svg+xml;base64,{base64.b64encode(drawn.encode()).decode()}"


def _fenced(text: str) -> str:
    """Text as it is, whatever it holds."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"
