"""Records: what the readers of every format give."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Record:
    """One record: a JSON object, or a table's row by column name. `line` is where it starts, from
    1."""

    line: int
    row: dict[str, Any]


@dataclass(frozen=True)
class Unreadable:
    """A record that could not be read."""

    line: int
    cause: Literal["broken_row", "wrong_encoding"]
    detail: str


Records = Iterator[Record | Unreadable]


def json_records(lines: Iterable[bytes]) -> Records:
    """The records of JSONL: one JSON object per line; blank lines are passed over."""
    for line, raw in enumerate(lines, start=1):
        try:
            text = raw.decode("utf-8-sig" if line == 1 else "utf-8").strip()
            if text:
                value = json.loads(text)
                good = isinstance(value, dict)
                yield (
                    Record(line, value)
                    if good
                    else Unreadable(line, "broken_row", f"{type(value).__name__}, not an object")
                )
        except UnicodeDecodeError as error:
            yield Unreadable(
                line,
                "wrong_encoding",
                f"byte {error.object[error.start]:#04x} at position {error.start} is not UTF-8",
            )
        except (
            ValueError,
            RecursionError,
        ) as error:  # not JSON, or a number of thousands of digits, or nested too deeply
            yield Unreadable(line, "broken_row", f"not JSON: {error}")
