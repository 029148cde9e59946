"""TOML of people: read from a file that can be one, and refused in a sentence when it cannot be
worked with."""

import math
import os
import stat
import tomllib
from collections.abc import Iterator
from datetime import date, time
from pathlib import Path
from typing import Any

from schemas.base import InputError

MOST_BYTES = 1 << 20
"""A recipe takes a few KiB."""

MOST_LEVELS = 32
"""How deep tables and lists may lie in each other; what reads them goes down by recursion."""

MOST_VALUES = 10_000
"""Each may be wrong in a way of its own, which takes time to say."""

MOST_INTEGER = 2**31 - 1
"""No count, length or seed is larger; arrays are indexed with 32 bits."""


_DEEP = f"it nests deeper than {MOST_LEVELS} levels"


class NotToml(InputError):
    """Text that is not TOML, or too much of it; `why` says in which way."""

    def __init__(self, where: str, why: object) -> None:
        super().__init__(f"{where} is not valid TOML: {why}. Fix that line and run again.")
        self.why = why


def toml_text(path: Path, what: str) -> str:
    """The text of a TOML file. Raises InputError, which calls it `what`: it is missing, unreadable,
    no file, too large or not UTF-8."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would wait for ever, and /dev/zero never ends
            raise OSError(
                f"it is {'a directory' if stat.S_ISDIR(status.st_mode) else 'a pipe or a device'},"
                " not a file"
            )
        if status.st_size > MOST_BYTES:
            raise OSError(f"it has {status.st_size} bytes, and may have {MOST_BYTES}")
        with open(path, "rb", opener=_without_waiting) as file:
            # files of /proc say that they have 0 bytes, and may wait for more
            # editors on Windows begin UTF-8 with a byte order mark
            return (file.read(MOST_BYTES) or b"").decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read {what} {path}: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"cannot read {what} {path}: byte {error.start} is not UTF-8; save it as UTF-8 text."
        ) from error
    except ValueError as error:  # a path that no system has
        raise InputError(f"cannot read {what} {path}: {error}.") from error


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def require_utf_8(text: str, where: str) -> None:
    """Raises InputError: an argument, or a file's name, held bytes that are not UTF-8, which Python
    hands on as lone surrogates; no file and no key can be made from them."""
    for line in text.splitlines():
        if line.encode("utf-8", "replace").decode("utf-8") != line:
            raise InputError(f"{where}: {line.strip()!r} is not valid UTF-8 text.")


def toml_table(text: str, where: str) -> dict[str, Any]:
    """TOML as a plain table. Raises NotToml, or InputError for a value that cannot be kept; the
    message begins with `where`."""
    require_utf_8(text, where)
    try:
        table = tomllib.loads(text)
    except RecursionError as error:
        raise NotToml(where, _DEEP) from error
    except ValueError as error:  # TOMLDecodeError, or a number of thousands of digits
        raise NotToml(where, error) from error
    level: list[tuple[tuple[str, ...], Any]] = [((), table)]
    values = level[:0]
    for _ in range(MOST_LEVELS):
        level = [inner for path, value in level for inner in _inside(path, value)]
        values += level
    if len(values) > MOST_VALUES:
        raise NotToml(where, f"it holds {len(values)} values, and may hold {MOST_VALUES}")
    if level:
        raise NotToml(where, _DEEP)
    for path, value in values:
        _refuse_what_cannot_be_kept(value, where, ".".join(path))
    return table


def _inside(path: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """What a table or a list holds, each with its path."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*path, str(key)), inner


def _refuse_what_cannot_be_kept(value: Any, where: str, path: str) -> None:
    """TOML has dates, infinite numbers and integers of any size; stage keys are made from JSON, and
    sizes are counted with 32 bits. Raises InputError, which says where."""
    if isinstance(value, (date, time)):
        raise InputError(
            f"{where}: {path} = {value} is a date or time; write it as a string, in quotes."
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{where}: {path} = {value} is not a finite number; give one.")
    if isinstance(value, int) and abs(value) > MOST_INTEGER:
        said = str(value) if value.bit_length() < 200 else f"a number of {value.bit_length()} bits"
        raise InputError(
            f"{where}: {path} = {said} is too large: no integer may be beyond {MOST_INTEGER}."
        )
