"""Records, as the readers of every format yield them; and the bytes of data files, line by line,
with a limit to what a small file can unpack to."""

import gzip
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any, Literal, cast

from schemas.base import InputError

MOST_LINE = 1 << 24
"""The most bytes of a line, and so of a row: ten times the longest documents that models read."""

MOST_RATIO = 400
"""The most that a file may grow by unpacking. Human text packs to a third, one row repeated to a
three-hundredth."""

UNPACKED_BEFORE_ASKED = 1 << 22
"""Bytes that every file may unpack to."""


def unpacked(stream: IO[bytes], name: str) -> IO[bytes]:
    """The content of the gzip file `stream`. Reading it soon raises InputError when that is out of
    proportion."""
    return cast(IO[bytes], io.BufferedReader(_Unpacked(stream, name), 1 << 17))


class _Unpacked(io.RawIOBase):
    """Closing it closes the file below it."""

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self._packed, self._name, self._given = stream, name, 0
        self._stream = gzip.GzipFile(fileobj=stream)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._stream.readinto(buffer)
        self._given += count
        if self._given > UNPACKED_BEFORE_ASKED:
            check_ratio(self._given, self._packed.tell(), self._name)
        return count

    def close(self) -> None:
        self._stream.close()
        self._packed.close()
        super().close()


def check_ratio(size: int, packed: int, name: str) -> None:
    """Raise InputError when `packed` bytes of a file stand for `size` bytes, more than any data
    would."""
    if size > max(UNPACKED_BEFORE_ASKED, MOST_RATIO * packed):
        raise InputError(
            f"data file {name} unpacks to more than {MOST_RATIO} times its size, as no rows of text"
            " do: a file made to fill the memory, or zeros. Fetch it again or leave it out."
        )


def lines(stream: IO[bytes], name: str) -> Iterator[bytes]:
    """The lines of a stream. Raises InputError for one that is longer than any row."""
    number = 0
    while line := stream.readline(MOST_LINE + 1):
        number += 1
        if len(line) > MOST_LINE:
            raise InputError(
                f"data file {name}, line {number}: it has more than {MOST_LINE >> 20} MiB, and a"
                " line is one row. Is this a file of rows?"
            )
        yield line


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
    """The records of JSONL: one JSON object per line; blank lines are skipped."""
    for line, raw in enumerate(lines, start=1):
        try:
            text = raw.decode("utf-8-sig" if line == 1 else "utf-8").strip()
            if text:
                yield record_of(line, json.loads(text, object_pairs_hook=each_once))
        except UnicodeDecodeError as error:
            byte = f"byte {error.object[error.start]:#04x} at position {error.start}"
            yield Unreadable(line, "wrong_encoding", f"{byte} is not UTF-8")
        except Twice as error:
            yield Unreadable(line, "broken_row", str(error))
        # not JSON, or a number of thousands of digits, or nested too deeply
        except (ValueError, RecursionError) as error:
            yield Unreadable(line, "broken_row", f"not JSON: {error}")


class Twice(ValueError):
    """An object of JSON with a key twice, so that one of two values would be lost."""


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs. Raises Twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        name = next(name for name in names if names.count(name) > 1)
        raise Twice(f"the key {name[:80]!r} is there twice; write it once")
    return found


def record_of(line: int, value: Any) -> Record | Unreadable:
    if isinstance(value, dict):
        return Record(line, value)
    return Unreadable(line, "broken_row", f"{type(value).__name__}, not an object")
