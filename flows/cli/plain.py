"""Text on its way to a terminal. It comes from recipes, data, models and error messages; it is to be seen, not to act."""

from infra.secrets import mask
from infra.visible import visible


def plain(text: str) -> str:
    """`text` without secrets (`infra.secrets.mask`), and with what acts or is not seen spelled out (`infra.visible`)."""
    return visible(mask(text))
