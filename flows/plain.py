"""Text on its way to a terminal. It comes from recipes, data, models and error messages; it is to be seen, not to act."""

import re

from infra.secrets import mask

_ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and line feed, those that turn the direction of text, and halves of characters, which cannot be printed."""


def plain(text: str) -> str:
    """`text` without secrets (`infra.secrets.mask`), and with control characters spelled out: an escape sequence shows as `\\x1b[...`."""
    return _ACTING.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), mask(text))
