"""Read records from JSONL, JSON, CSV, TSV and Parquet files (the text formats also as .gz), and
from remote JSONL and Parquet files.

Text formats are read here, since Hugging Face `datasets` stops at the first broken line without
naming it, and infers types: a bad record must be counted with its line, and text must stay text
(the CSV field 007). Local Parquet is read by `pyarrow` alone: `datasets` takes a file's name for a
pattern, and opens the paths and URLs in an image column.

Remote files are streamed by `datasets`: neither a file nor all its rows are in memory or on disk.
It is used for bytes (JSONL is parsed here, since its `text` builder ignores the encoding of remote
files) and for undecoded Arrow tables only.
"""

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

from schemas.base import InputError
from tasks.data.records import (
    MOST_LINE,
    Record,
    Records,
    Twice,
    Unreadable,
    check_ratio,
    each_once,
    json_records,
    lines,
    record_of,
    unpacked,
)
from tasks.data.remote_files import RemoteFile, explained, remote_files, storage_options

_BATCH = 1000
"""Rows of a Parquet file that are held in memory at a time."""

_BUFFER = 1 << 20
"""Bytes of a remote stream that are held besides what its file system reads ahead."""

_TABLES = {".csv": ",", ".tsv": "\t"}
"""Tables of text by suffix, with what is between their columns."""

_SPACE = re.compile(r"[ \t\r\n]*")
_NOT_UTF8 = re.compile("[\udc80-\udcff]")
"""The characters that bytes become which are not UTF-8 (`surrogateescape`)."""

_MOST_JSON = 1 << 28
"""Bytes of a .json file: one document, so it cannot be streamed."""


def read_records(name: str, file: Path | RemoteFile, *, header: Sequence[str] = ()) -> Records:
    """Read the records of a file, in file order.

    Args:
        name: the file's name in messages.
        file: its format is its suffix: .jsonl, .json, .csv, .tsv (also with .gz after it) or
            .parquet.
        header: the columns of a CSV or TSV file without a header line.

    Raises:
        InputError: an unknown suffix, or a file that is damaged as a whole (not gzip, not Parquet,
            truncated JSON).
    """
    if isinstance(file, RemoteFile):
        yield from read_remote(file)
        return
    suffix = Path(file.name.removesuffix(".gz")).suffix.lower()
    if suffix not in _READERS or (suffix == ".parquet" and file.name.endswith(".gz")):
        raise InputError(
            f"data file {name}: the suffix of {file.name!r} is no known format. "
            f"Valid: {', '.join(sorted(_READERS))}; the text formats also as .gz."
        )
    try:
        if header and suffix in _TABLES:
            yield from _read_table(name, file, _TABLES[suffix], header)
        else:
            yield from _READERS[suffix](name, file)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(
            f"data file {name} is no valid gzip file: {error}. Fetch it again or unpack it."
        ) from error
    except OSError as error:
        raise InputError(
            f"cannot read data file {name} ({file}): {error.strerror or error}."
        ) from error


def most_records(file: Path | RemoteFile) -> int | None:
    """At most how many records a file has, found without parsing it: its lines, or what Parquet
    says. None: only reading it would tell, or it cannot be read."""
    suffix, rows = Path(file.name).suffix.lower(), 0
    if isinstance(file, RemoteFile) or suffix not in (".jsonl", ".parquet", *_TABLES):
        return None
    if suffix == ".parquet":
        import pyarrow.parquet

        try:
            return int(pyarrow.parquet.read_metadata(file).num_rows)
        except (OSError, pyarrow.ArrowException):
            return None
    last = b"\n"
    with file.open("rb") as stream:
        while block := stream.read(_BUFFER):
            rows, last = rows + block.count(b"\n"), block[-1:]
    return max(0, rows + (last != b"\n") - (suffix in _TABLES))


def _open(name: str, file: Path) -> AbstractContextManager[IO[bytes]]:
    return unpacked(file.open("rb"), name) if file.name.endswith(".gz") else file.open("rb")


def _read_jsonl(name: str, file: Path) -> Records:
    with _open(name, file) as stream:
        yield from json_records(lines(stream, name))


def _read_json(name: str, file: Path) -> Records:
    """A list of objects, or an object of objects, whose keys become the column `key` (unless the
    objects have one)."""
    with _open(name, file) as stream:
        raw = stream.read(_MOST_JSON + 1)
    if len(raw) > _MOST_JSON:
        raise InputError(
            f"data file {name} has more than {_MOST_JSON >> 20} MiB of JSON, which is read as a"
            " whole. Write one object per line and call it .jsonl."
        )
    try:
        text = raw.decode("utf-8-sig")
        for line, key, value in _items(text):
            keyed = key is not None and isinstance(value, dict)
            yield record_of(line, {"key": key, **value} if keyed else value)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"data file {name}, line {line}: byte {raw[error.start]:#04x} is not UTF-8. Convert the"
            " file to UTF-8."
        ) from error
    except json.JSONDecodeError as error:
        raise InputError(
            f"data file {name}, line {error.lineno}, column {error.colno}: not a JSON list of"
            f" objects: {error.msg}. If it has one object per line, call it .jsonl."
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"data file {name}: not a JSON list of objects: {error}.") from error


def _items(text: str) -> Iterator[tuple[int, str | None, Any]]:
    """(line, key, value) of the items of a JSON list (key None) or object. Raises
    json.JSONDecodeError."""
    decoder = json.JSONDecoder(object_pairs_hook=each_once)
    position = _after(text, 0, "")
    opening = text[position : position + 1]
    if opening not in ("[", "{"):
        raise json.JSONDecodeError("expected [ or {", text, position)
    closing = "]" if opening == "[" else "}"
    position = _after(text, position, opening)
    line, counted, key = 1, 0, None
    while text[position : position + 1] != closing:
        if opening == "{":
            key, position = decoder.raw_decode(text, position)
            position = _after(text, _after(text, position, ""), ":")
        line, counted = line + text.count("\n", counted, position), position
        try:
            value, position = decoder.raw_decode(text, position)
        except Twice as error:
            raise json.JSONDecodeError(str(error), text, position) from error
        yield line, key, value
        position = _after(text, position, "")
        if text[position : position + 1] != closing:
            position = _after(text, position, ",")
    if _after(text, position, closing) != len(text):
        raise json.JSONDecodeError("more text after the end", text, position + 1)


def _after(text: str, position: int, character: str) -> int:
    """The position after a required character and white space."""
    if not text.startswith(character, position):
        raise json.JSONDecodeError(f"expected {character!r}", text, position)
    space = _SPACE.match(text, position + len(character))
    return space.end() if space else len(text)


def _read_table(name: str, file: Path, delimiter: str, header: Sequence[str] = ()) -> Records:
    """RFC 4180; the first line is the header unless one is given. Every value is text, a missing
    one is ""."""
    with _open(name, file) as stream:
        # bytes that are not UTF-8 become lone surrogates, so that one bad row does not end the
        # file
        text = (
            raw.decode("utf-8" if number else "utf-8-sig", "surrogateescape")
            for number, raw in enumerate(lines(stream, name))
        )
        csv.field_size_limit(MOST_LINE)  # 131,072 characters otherwise, for the whole process
        rows = csv.reader(text, delimiter=delimiter, strict=True)
        line = 1
        try:
            for row in rows:
                if not header:
                    if _NOT_UTF8.search("".join(row)):
                        raise InputError(
                            f"data file {name}, line 1: a byte of the header is not UTF-8; save the"
                            " file as UTF-8."
                        )
                    header = _each_once(row, f"{name}, line 1")
                    if len(header) == 1 and (other := re.search(r"[;,|\t]", header[0])):
                        raise InputError(
                            f"data file {name}, line 1: {other[0]!r} separates its columns; save it"
                            " with commas as .csv, or with tabs as .tsv."
                        )
                elif _NOT_UTF8.search("".join(row)):
                    yield Unreadable(line, "wrong_encoding", "a byte of this row is not UTF-8")
                elif row and len(row) != len(header):
                    fields = f"{len(row)} fields, the header has {len(header)}"
                    yield Unreadable(line, "broken_row", fields)
                elif row:
                    yield Record(line, dict(zip(header, row, strict=True)))
                line = rows.line_num + 1
        except csv.Error as error:
            raise InputError(
                f"data file {name}, line {line}: not valid {file.suffix[1:].upper()}:"
                f" {str(error).partition(' - ')[0]}. Check the quotes of that record (one inside a"
                " quoted field is written twice), and that lines end with LF or CRLF."
            ) from error


def _each_once(columns: Sequence[str], place: str) -> Sequence[str]:
    """The columns' names. Raises InputError: two have the same, so that one would be lost."""
    if twice := sorted({one for one in columns if one and columns.count(one) > 1}):
        raise InputError(
            f"data file {place}: two columns are called {twice[0]!r}; give each a name of its own."
        )
    return columns


def _read_parquet(name: str, file: Path) -> Records:
    """Rows of a Parquet file, streamed: neither the file nor all rows are held in memory."""
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with file.open("rb") as stream:
            parquet = pyarrow.parquet.ParquetFile(stream)
            _each_once(parquet.schema_arrow.names, name)
            about = parquet.metadata
            groups = map(about.row_group, range(about.num_row_groups))
            size = sum(group.total_byte_size for group in groups)
            check_ratio(max(size, about.num_rows), file.stat().st_size, name)
            for batch in parquet.iter_batches(batch_size=_BATCH):
                for row in _rows_of(batch):
                    number += 1
                    yield Record(number, row)
    except InputError:
        raise
    except (pyarrow.ArrowException, ValueError, KeyError) as error:  # a key twice in a map
        said = str(error).rstrip(".")
        raise InputError(f"data file {name} is no valid Parquet file: {said}.") from error


_READERS: dict[str, Callable[[str, Path], Records]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    **{suffix: partial(_read_table, delimiter=delimiter) for suffix, delimiter in _TABLES.items()},
    ".parquet": _read_parquet,
}


def read_remote(file: RemoteFile) -> Records:
    """The records of a remote file, in its order; a line number in Parquet is the row's.

    Raises:
        InputError: it is damaged, cannot be read, or changed since `file` was listed.
    """
    with explained(file.url, "teacher dataset"):
        import pyarrow

        try:
            if file.name.endswith(".parquet"):
                yield from (Record(number, row) for number, row in enumerate(_rows(file), start=1))
            else:
                with _opened(file) as stream:
                    yield from json_records(lines(stream, file.url))
        except (pyarrow.ArrowException, gzip.BadGzipFile, EOFError, zlib.error) as error:
            why = (str(error) or type(error).__name__).splitlines()[0][:300]
            raise InputError(f"data file {file.url} is damaged: {why}.") from error
    (now,) = remote_files(file.url, "teacher dataset")
    if now.digest != file.digest:
        raise InputError(
            f"{file.url} changed while it was read ({file.digest}, now {now.digest}). Run again"
            " when nobody writes to it."
        )


def _rows(file: RemoteFile) -> Iterator[dict[str, Any]]:
    import datasets

    datasets.disable_progress_bars()
    streamed = datasets.load_dataset(
        "parquet",
        data_files={"train": [file.url]},
        split="train",
        streaming=True,
        storage_options=storage_options(file.url),
        batch_size=_BATCH,
    )
    for table in streamed.decode(False).with_format("arrow").iter(batch_size=_BATCH):
        yield from _rows_of(table)


def _rows_of(table: Any) -> list[dict[str, Any]]:
    """The rows of an Arrow table; maps are objects. Raises KeyError: a map has a key twice."""
    rows: list[dict[str, Any]] = table.to_pylist(maps_as_pydicts="strict")
    short = [field for field in table.schema if re.search(r"\b(half)?float\b", str(field.type))]
    for row in rows if short else ():
        row.update({field.name: _as_written(row[field.name], field.type) for field in short})
    return rows


def _as_written(value: Any, kind: Any) -> Any:
    """A value of an Arrow type with the fewest digits that tell its numbers of 16 or 32 bits: 3.14,
    where the nearest one of 32 bits is 3.140000104904175."""
    from pyarrow import types

    if value is None:
        return None
    if types.is_float16(kind) or types.is_float32(kind):
        return float(str(kind.to_pandas_dtype()(value)))
    if types.is_map(kind):
        return {name: _as_written(one, kind.item_type) for name, one in value.items()}
    if isinstance(value, list):
        return [_as_written(one, kind.value_type) for one in value]
    if types.is_struct(kind):
        return {field.name: _as_written(value[field.name], field.type) for field in kind}
    return value


def _opened(file: RemoteFile) -> "closing[IO[bytes]]":
    """The file's bytes, unpacked. What `datasets` opens reads again what a lost connection cost."""
    from datasets import DownloadConfig
    from datasets.utils.file_utils import xopen

    options = {file.url.partition("://")[0]: storage_options(file.url)}
    opened = xopen(file.url, "rb", download_config=DownloadConfig(storage_options=options))
    stream = cast(IO[bytes], io.BufferedReader(opened, _BUFFER))
    return closing(unpacked(stream, file.url) if file.name.endswith(".gz") else stream)
