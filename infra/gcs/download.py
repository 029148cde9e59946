"""A tree from a bucket to this machine's cache: slices of files, several at a time, in bounded
memory, resumed across processes.

Slices are hashed and appended in order to a part file. Whoever comes after a killed process goes on
where its part file ends. One generation of each object is read, however long it takes.
"""

import base64
import errno
import fcntl
import hashlib
import itertools
import logging
import os
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import google_crc32c

from infra.gcs.bucket_objects import BucketObjects
from infra.gcs.requests import PARALLEL, Missing, Timeout, Unusable, in_parallel, raise_for
from infra.store.local_objects import is_disk_full
from infra.store.objects import Damaged
from schemas.artifact import FileEntry
from schemas.base import InputError, digest

log = logging.getLogger("lyceum.gcs")

SLICE = 8 << 20  # bytes downloaded in one request
ATTEMPTS = 3  # to have a file whose bytes are right
PIECE = 1 << 18  # bytes received at once
WRITE = 1 << 14
"""Bytes written to the disk at once. Of more the kernel makes large pages, which virtual machines
seldom have: 3 to 7 times as slow."""


class Receiver:
    """Makes this machine hold files of the tree `name`.

    Args:
        files: the directory for them.
        parts: a directory for them while they arrive.
    """

    def __init__(self, bucket: BucketObjects, name: str, files: Path, parts: Path) -> None:
        self._bucket, self._name = bucket, name
        self._files, self._parts = files, parts

    def receive(self, entries: Sequence[FileEntry]) -> Path:
        """The directory with these files. Raises Damaged when they are not in the bucket, or are
        not what their entries say: of an entry without a sha256 the crc32c counts."""
        with self._explained():
            self._files.mkdir(parents=True, exist_ok=True)
            if absent := self.absent(entries):
                with self._alone():
                    self._fetch(self.absent(absent))
        return self._files

    def absent(self, entries: Sequence[FileEntry]) -> list[FileEntry]:
        """Entries whose files are not here with the right bytes."""
        intact = in_parallel(lambda entry: _is_intact(self._files / entry.path, entry), entries)
        return [entry for entry, here in zip(entries, intact, strict=True) if not here]

    def _fetch(self, entries: Sequence[FileEntry]) -> None:
        """Download files, and up to ATTEMPTS times those that could not be had or whose bytes
        were not right; again by a look at each, for a listing may lag behind."""
        left, failed = entries, dict[FileEntry, str]()
        for attempt in range(ATTEMPTS):
            failed = self._attempt(left, listed=attempt == 0)
            if not failed:
                return
            left = list(failed)
        raise Damaged([f"{entry.path}: {problem}" for entry, problem in failed.items()])

    def _attempt(self, entries: Sequence[FileEntry], *, listed: bool) -> dict[FileEntry, str]:
        """Download files; returns what is wrong with those that could not be had."""
        stored, problems = self._bucket.examine(self._name, entries, extra=False, listed=listed)
        failed = {entry: problems[entry.path] for entry in entries if entry.path in problems}
        plan = [
            _Span(entry, stored[entry.path].generation, start, stop)
            for entry in entries
            if entry not in failed
            for start, stop in self._missing_slices(entry)
        ]
        with closing(self._in_flight(plan)) as arriving:
            for entry, slices in itertools.groupby(arriving, key=lambda pair: pair[0].entry):
                if problem := self._assemble(entry, (data for _, data in slices)):
                    failed[entry] = problem
        return failed

    def _missing_slices(self, entry: FileEntry) -> list[tuple[int, int]]:
        """The slice that the part file lacks; empty if it lacks nothing, or is too long, which its
        digest will tell."""
        part = self.part(entry)
        have = part.stat().st_size if part.exists() else 0
        return [
            (start, min(start + SLICE, entry.size)) for start in range(have, entry.size, SLICE)
        ] or [(have, have)]

    def _in_flight(
        self, plan: Sequence["_Span"]
    ) -> Generator[tuple["_Span", memoryview | None], None, None]:
        """Each slice with its bytes, which are valid until the next one is asked for; None where
        that generation is gone.

        They come in order, while the next few are being fetched. Buffers are used again: fresh
        memory costs as much as receiving into it.
        """
        largest = max((span.stop - span.start for span in plan), default=0)
        free = [bytearray(largest) for _ in range(min(PARALLEL + 1, len(plan)))]
        flying: deque[tuple[_Span, bytearray, Future[memoryview | None]]] = deque()
        coming, giving_up = iter(plan), threading.Event()

        def fetch(span: _Span, buffer: memoryview) -> memoryview | None:
            try:
                if span.start < span.stop:
                    self._bucket.ask(
                        lambda timeout: self._download(span, buffer, timeout), stop=giving_up
                    )
            except Missing:
                return None
            return buffer

        with ThreadPoolExecutor(PARALLEL) as pool:
            try:
                while True:
                    while free and (span := next(coming, None)):
                        memory = free.pop()
                        buffer = memoryview(memory)[: span.stop - span.start]
                        flying.append((span, memory, pool.submit(fetch, span, buffer)))
                    if not flying:
                        return
                    span, memory, future = flying.popleft()
                    yield span, future.result()
                    free.append(memory)
            finally:
                giving_up.set()
                pool.shutdown(wait=False, cancel_futures=True)

    def _download(self, span: "_Span", buffer: memoryview, timeout: Timeout) -> None:
        """Fill the buffer. Not by the client library: it receives 8 kB at a time, or else allocates
        every slice three times over."""
        name = quote(self._bucket.path(f"{self._name}/{span.entry.path}", checked=False), safe="")
        filled, size = 0, span.stop - span.start
        with self._bucket.session.get(
            f"{self._bucket.endpoint}/download/storage/v1/b/{self._bucket.name}/o/{name}",
            params={"alt": "media", "generation": str(span.generation)} | self._bucket.paid,
            headers={
                "Range": f"bytes={span.start}-{span.stop - 1}",
                "Accept-Encoding": "identity",
            },
            timeout=timeout,
            stream=True,
        ) as answer:
            raise_for(answer)
            part = f"bytes {span.start}-{span.stop - 1}/"
            if not answer.headers.get("Content-Range", "").startswith(part):
                raise Unusable("another part of a download came than was asked for")
            while filled < size and (piece := answer.raw.read(min(PIECE, size - filled))):
                buffer[filled:][: len(piece)] = piece
                filled += len(piece)
        if filled < size:
            raise Unusable(f"{size - filled} bytes of a download did not come")

    def _assemble(self, entry: FileEntry, slices: Iterable[memoryview | None]) -> str | None:
        """Append slices to the part file, which becomes the file if its bytes are right; else what
        is wrong with them."""
        part, target = self.part(entry), self._files / entry.path
        with part.open("a+b", buffering=0) as file, ThreadPoolExecutor(1) as beside:
            file.seek(0)
            checksum = _Checksum(entry, file)
            for data in slices:
                if data is None:
                    return "was removed while it was read"
                hashed = beside.submit(checksum.update, data)
                for start in range(0, len(data), WRITE):
                    _write(file, data[start : start + WRITE])
                hashed.result()
        if problem := checksum.problem():
            part.unlink()
            return problem
        target.parent.mkdir(parents=True, exist_ok=True)
        part.replace(target)
        return None

    def part(self, entry: FileEntry) -> Path:
        """The path of a file while it arrives."""
        return self._parts / f"{digest([entry.path, entry.sha256, entry.crc32c])}.part"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Only one process of this machine downloads a tree; the others wait, and find it in the
        cache."""
        self._parts.mkdir(parents=True, exist_ok=True)
        with (self._parts / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info(
                    "%s/%s: another process is downloading it; waiting",
                    self._bucket.uri,
                    self._name,
                )
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn this machine's refusals into InputError. A ConnectionError has no errno and
        passes."""
        try:
            yield
        except OSError as error:
            if is_disk_full(error):
                raise InputError(
                    f"the cache {self._files} cannot hold {self._bucket.uri}/{self._name}: no space"
                    " is left on its disk. Free some, or set LYCEUM_CACHE to a directory on"
                    " another disk."
                ) from error
            if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise InputError(
                    f"the cache {self._files} lies on a file system without locks"
                    f" ({error.strerror}). Set LYCEUM_CACHE to a directory on another disk."
                ) from error
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
                raise InputError(
                    f"the cache {self._files} cannot be written ({error.strerror}). Set"
                    " LYCEUM_CACHE to a directory that you may write."
                ) from error
            raise


@dataclass(frozen=True)
class _Span:
    """Bytes `start` to `stop` of the object that `entry` describes."""

    entry: FileEntry
    generation: int
    start: int
    stop: int


def _write(file: BinaryIO, data: memoryview) -> None:
    while data:
        data = data[file.write(data) :]


class _Checksum:
    """The digest by which an entry's file is compared: its sha256, or where that is not known its
    crc32c. Begins with the bytes of `file`."""

    def __init__(self, entry: FileEntry, file: BinaryIO) -> None:
        self._entry = entry
        self._sha256, self._crc32c = hashlib.sha256(), google_crc32c.Checksum()
        while piece := file.read(PIECE):
            self.update(piece)

    def update(self, data: bytes | memoryview) -> None:
        if self._entry.sha256:
            self._sha256.update(data)
        else:
            self._crc32c.update(bytes(data))

    def problem(self) -> str | None:
        """How the bytes differ from what the entry says, or None."""
        if self._entry.sha256:
            kind, found, expected = "sha256", self._sha256.hexdigest(), self._entry.sha256
        else:
            found = base64.b64encode(self._crc32c.digest()).decode("ascii")
            kind, expected = "crc32c", self._entry.crc32c
        return None if found == expected else f"has {kind} {found} instead of {expected}"


def _is_intact(path: Path, entry: FileEntry) -> bool:
    try:
        with path.open("rb", buffering=0) as file:
            same_size = os.fstat(file.fileno()).st_size == entry.size
            return same_size and _Checksum(entry, file).problem() is None
    except FileNotFoundError:
        return False
