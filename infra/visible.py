"""Spells out characters that act on a terminal or page, or that nobody sees, in text of models,
data, recipes and libraries.

A right-to-left override reverses the text after it; a zero-width space makes two different words
look alike; an escape sequence commands a terminal; tags (U+E0000 and on) are an invisible message.
Every page, card and line that we show goes through `visible` as a whole, so that the author of a
new section need not remember it. Files for programs (JSON, JSONL, Parquet) keep text unchanged.
"""

import re
from collections.abc import Callable, Sequence

from infra.secrets import mask

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ud800-\udfff\ufeff\uffa0\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
"""Control characters except tab and line feed, characters that format or reverse text, blanks of no
width, and halves of characters."""


def visible(text: str) -> str:
    """`text` with every character that acts, or that nobody sees, spelled out: an escape sequence
    shows as `\\x1b[...`.

    Line ends are line feeds afterwards; a carriage return elsewhere, which would write over its
    line, is spelled out.
    """
    return _UNSEEN.sub(
        lambda found: found[0].encode("unicode_escape").decode("ascii"), text.replace("\r\n", "\n")
    )


def plain(text: str) -> str:
    """`text` for a terminal: visible, and without secrets (`infra.secrets.mask`)."""
    return visible(mask(text))


def fence_of(text: str) -> str:
    """The fence of a Markdown code block that the text cannot close: longer than any in it."""
    return "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))


def aligned(
    rows: Sequence[Sequence[str]], others: Callable[[str, int], str] = str.ljust
) -> list[str]:
    """Rows of cells as lines with columns of equal width, two spaces apart; the first column stands
    on the left, `others` places the cells of the rest (str.rjust for numbers)."""
    first, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    return [
        "  ".join([one.ljust(first), *map(others, rest, widths)]).rstrip() for one, *rest in rows
    ]
