"""Reading remote files by Hugging Face `datasets`, streamed: neither a file nor all its rows are
held, and nothing is written to disk.

`datasets` is asked for bytes and for columns only, never for what they mean. JSONL is parsed here:
its `json` builder gives up at the first broken line without naming it, and infers types, and its
`text` builder forgets the encoding of remote files, so that one byte that is not UTF-8 ends them.
Parquet comes as Arrow tables, undecoded: a file may declare an image column, and to decode one is
to open the paths and URLs that its rows name.
"""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import closing
from typing import IO, Any, cast

from schemas.base import InputError
from tasks.data.records import Record, Records, json_records
from tasks.data.remote import RemoteFile, explained, remote_files, storage_options
from tasks.data.unpacked import lines, unpacked

_BATCH = 1000
"""Rows of Parquet that are held in memory at a time."""

_BUFFER = 1 << 20
"""Bytes of a stream that are held besides what its file system reads ahead."""


def read_remote(file: RemoteFile) -> Records:
    """The records of a remote file, in its order; a line number in Parquet is the row's.

    Raises:
        InputError: it is damaged, cannot be read, or changed since `file` was listed.
    """
    import pyarrow

    with explained(file.url, "teacher dataset"):
        try:
            if file.name.endswith(".parquet"):
                yield from (Record(number, row) for number, row in enumerate(_rows(file), start=1))
            else:
                with _opened(file) as stream:
                    yield from json_records(lines(stream, file.url))
        except (pyarrow.ArrowException, gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InputError(
                f"data file {file.url} is damaged:"
                f" {(str(error) or type(error).__name__).splitlines()[0][:300]}."
            ) from error
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
        yield from table.to_pylist()


def _opened(file: RemoteFile) -> "closing[IO[bytes]]":
    """The file's bytes, unpacked. What `datasets` opens reads again what a lost connection cost."""
    from datasets import DownloadConfig
    from datasets.utils.file_utils import xopen

    options = {file.url.partition("://")[0]: storage_options(file.url)}
    stream = io.BufferedReader(
        xopen(file.url, "rb", download_config=DownloadConfig(storage_options=options)), _BUFFER
    )
    return closing(
        unpacked(cast(IO[bytes], stream), file.url)
        if file.name.endswith(".gz")
        else cast(IO[bytes], stream)
    )
