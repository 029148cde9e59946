"""A local tree to a bucket: several files at a time, in bounded memory, going on where a broken
upload ended.

A small file is one request. A large one is a resumable upload in chunks: after a failure the
service is asked how much it has. Both are created only if nothing is there, and the service
compares the bytes with the crc32c of the file's entry before it makes them an object.
"""

import logging
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO

from infra.gcs.bucket_objects import BucketObjects, content_type
from infra.gcs.requests import (
    DAMAGED_UPLOAD,
    Changed,
    Missing,
    Stored,
    Timeout,
    Unusable,
    in_parallel,
    raise_for,
)
from infra.store.local_objects import file_entry
from infra.store.objects import Damaged
from schemas.artifact import FileEntry
from schemas.base import InputError

log = logging.getLogger("lyceum.gcs")

SMALL = 4 << 20  # bytes: uploaded in one request
CHUNK = 32 << 20  # bytes of a resumable upload in one request; a multiple of 256 KiB
PIECE = 1 << 18  # bytes read from a file and sent at once
_UPLOADS = 3  # attempts, should the service lose an upload or find its bytes damaged


def send_tree(
    bucket: BucketObjects, directory: Path, name: str, entries: Sequence[FileEntry]
) -> None:
    """See Bucket.put_tree."""
    stop = threading.Event()
    sent: set[str] = set()

    def send(entry: FileEntry) -> None:
        path = f"{name}/{entry.path}"
        sent.add(path)
        upload = _send_small if entry.size <= SMALL else _send_large
        try:
            stored = upload(bucket, directory, path, entry, stop)
        except Changed as error:  # another process's, unless our own upload's answer was lost
            found = bucket.stored(path)
            if found is None or (found.size, found.crc32c) != (entry.size, entry.crc32c):
                sent.discard(path)
                raise InputError(
                    f"{bucket.uri}/{path} is there already, and is another file. If nobody is"
                    f" writing it, remove it: gcloud storage rm {bucket.uri}/{path}"
                ) from error
            stored = found
        if (stored.size, stored.crc32c) != (entry.size, entry.crc32c):
            there = f"{stored.size} bytes with crc32c {stored.crc32c}"
            raise Damaged([f"{entry.path}: the service stored {there}"])

    try:
        in_parallel(send, sorted(entries, key=lambda entry: -entry.size), stop)
    except BaseException:
        try:
            bucket.delete_uploaded(sent)
        except (OSError, InputError) as error:
            log.warning(
                "%s/%s: files of a failed upload may be left there: %s", bucket.uri, name, error
            )
        raise
    shutil.rmtree(directory, ignore_errors=True)  # it is sent: what NFS keeps of it is no failure


def _send_small(
    bucket: BucketObjects, directory: Path, path: str, entry: FileEntry, stop: threading.Event
) -> Stored:
    data = (directory / entry.path).read_bytes()
    return bucket.upload(bucket.path(path), data, generation=0, stop=stop)


def _send_large(
    bucket: BucketObjects, directory: Path, path: str, entry: FileEntry, stop: threading.Event
) -> Stored:
    with (directory / entry.path).open("rb", buffering=0) as file:
        for _ in range(_UPLOADS):
            url = bucket.ask(
                lambda timeout: _begin(bucket, path, entry, timeout), stop=stop, of_bucket=True
            )
            try:
                return _Upload(bucket, url, file, entry).send(stop)
            except Missing as error:
                log.info("%s/%s: the upload begins anew: %s", bucket.uri, path, error)
    if file_entry(directory, entry.path) != entry:
        raise Damaged([f"{entry.path}: changed on this machine before it was uploaded"])
    raise ConnectionError(f"{bucket.uri}/{path}: the service has given up {_UPLOADS} uploads.")


def _begin(bucket: BucketObjects, path: str, entry: FileEntry, timeout: Timeout) -> str:
    """Begin a resumable upload; returns its URL, a secret. The service will compare the bytes with
    the entry's checksum."""
    answer = bucket.session.post(
        f"{bucket.endpoint}/upload/storage/v1/b/{bucket.name}/o",
        params={"uploadType": "resumable", "ifGenerationMatch": "0"} | bucket.paid,
        json={"name": bucket.path(path), "contentType": content_type(path), "crc32c": entry.crc32c},
        headers={"X-Upload-Content-Length": str(entry.size)},
        timeout=timeout,
    )
    raise_for(answer)
    return answer.headers["Location"]


class _Upload:
    """A resumable upload of one file to `url`."""

    def __init__(self, bucket: BucketObjects, url: str, file: BinaryIO, entry: FileEntry) -> None:
        self._bucket = bucket
        self._url = url
        self._file = file
        self._entry = entry
        self._arrived: int | None = 0  # None: not known, after a failure

    def send(self, stop: threading.Event) -> Stored:
        """Every chunk may take as long as the settings say. Raises Missing when the upload is not
        known any more."""
        while True:
            stored = self._bucket.ask(self._send_chunk, stop=stop)
            if stored is not None:
                return stored

    def _send_chunk(self, timeout: Timeout) -> Stored | None:
        size = self._entry.size
        before, self._arrived = self._arrived, None
        answer = before if before is not None else self._put(b"", f"bytes */{size}", timeout)
        if isinstance(answer, int):
            start, stop = answer, min(answer + CHUNK, size)
            body = _Section(self._file, start, stop)
            answer = self._put(body, f"bytes {start}-{stop - 1}/{size}", timeout)
            if answer == start:
                raise Unusable("nothing of what was sent has arrived")
        if isinstance(answer, Stored):
            return answer
        self._arrived = answer
        return None

    def _put(self, body: Any, content_range: str, timeout: Timeout) -> int | Stored:
        """Send a chunk, or with no body ask for the state: how many bytes have arrived, or the
        object once it is complete."""
        headers = {"Content-Range": content_range}
        answer = self._bucket.session.put(
            self._url, data=body, headers=headers, timeout=timeout, allow_redirects=False
        )
        if answer.status_code == HTTPStatus.PERMANENT_REDIRECT:
            arrived = answer.headers.get("Range", "-")
            return int(arrived.rpartition("-")[2]) + 1 if arrived != "-" else 0
        if answer.status_code == HTTPStatus.BAD_REQUEST and DAMAGED_UPLOAD in answer.text:
            raise Missing("its bytes arrived damaged")
        raise_for(answer)
        made = answer.json()
        return Stored(int(made["size"]), made["crc32c"], int(made["generation"]))


class _Section:
    """Bytes `start` to `stop` of a file as a request body that is read piece by piece, again for
    every attempt."""

    def __init__(self, file: BinaryIO, start: int, stop: int) -> None:
        self._file = file
        self._start = start
        self._stop = stop

    def __len__(self) -> int:
        return self._stop - self._start

    def __iter__(self) -> Iterator[bytes]:
        position = self._start
        while position < self._stop:
            piece = os.pread(self._file.fileno(), min(PIECE, self._stop - position), position)
            if not piece:
                raise ValueError(f"{self._file.name} became shorter while it was uploaded")
            position += len(piece)
            yield piece
