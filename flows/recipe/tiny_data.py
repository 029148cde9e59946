"""`data = "procedural"` in a recipe's `[tiny]`: the procedural teacher poses all problems, and
nothing is read from a hub, a bucket or a file."""

from typing import Any

from schemas.base import InputError
from tasks.contract.kinds import stage_kind

KEY = "data"
PROCEDURAL = "procedural"
_INSTEAD: dict[str, Any] = {
    "teachers": [{"name": PROCEDURAL}],
    # problems of one template differ by a name or a number: that is what is taught
    "near_duplicates": False,
    "contamination": False,
}
"""Of every stage whose config has such a field."""


def replace_data(table: dict[str, Any], value: Any) -> None:
    """Have a recipe's table, in place, need no data of others: also suites that read a file go.

    Raises:
        InputError: another value than `procedural`.
    """
    if value != PROCEDURAL:
        raise InputError(f"[tiny] {KEY} = {value!r}: the valid value is {PROCEDURAL!r}.")
    for stage in table["stages"].values():
        fields = stage_kind(stage["kind"]).config.model_fields
        config = stage.setdefault("config", {})
        config |= {name: new for name, new in _INSTEAD.items() if name in fields}
        if "suites" in config:
            config["suites"] = [suite for suite in config["suites"] if "path" not in suite]
