"""Whole trees to a bucket and back: several files or slices of files at a time, in bounded memory, going on where a broken transfer ended.

Up: a small file is one request. A large one is a resumable upload in chunks: after a failure the service is asked how much it has. Both are
created only if nothing is there, and the service compares the bytes with the crc32c of the file's entry before it makes them an object.

Down: files are fetched in slices, a few in flight at any time, hashed and appended in order to a part file. Whoever comes after a killed
process goes on where its part file ends. One generation of each object is read, however long it takes.
"""

import errno
import fcntl
import hashlib
import itertools
import logging
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from infra.files import file_entry, is_disk_full
from infra.gcs_requests import Changed, Missing, Timeout, Unusable
from infra.objects import Damaged
from schemas.artifact import FileEntry
from schemas.base import InputError, digest

if TYPE_CHECKING:
    from infra.gcs import Bucket

log = logging.getLogger("lyceum.gcs")
T = TypeVar("T")
R = TypeVar("R")

PARALLEL = 8
SMALL = 4 << 20  # bytes: uploaded in one request
CHUNK = 32 << 20  # bytes of a resumable upload in one request; a multiple of 256 KiB
PIECE = 1 << 18  # bytes read from a file and sent at once
SLICE = 8 << 20  # bytes downloaded in one request
_UPLOADS = 3  # attempts, should the service lose an upload or find its bytes damaged


@dataclass(frozen=True)
class Stored:
    """What the service knows of an object: size in bytes, crc32c as in FileEntry, generation."""

    size: int
    crc32c: str
    generation: int


def in_parallel(call: Callable[[T], R], items: Iterable[T], stop: threading.Event | None = None) -> list[R]:
    """`call(item)` for each item, a few at a time, in the order of items. The first exception sets `stop` and ends the rest."""
    with ThreadPoolExecutor(PARALLEL) as pool:
        futures = [pool.submit(call, item) for item in items]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            if stop is not None:
                stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in futures]


# Up


def send_tree(bucket: "Bucket", directory: Path, name: str, entries: Sequence[FileEntry]) -> None:
    """See Bucket.put_tree."""
    stop = threading.Event()
    sent: set[str] = set()

    def send(entry: FileEntry) -> None:
        path = f"{name}/{entry.path}"
        sent.add(path)
        upload = _send_small if entry.size <= SMALL else _send_large
        try:
            stored = upload(bucket, directory, path, entry, stop)
        except Changed as error:  # somebody else's, unless the answer to our own upload was lost
            found = bucket.stored(path)
            if found is None or (found.size, found.crc32c) != (entry.size, entry.crc32c):
                sent.discard(path)
                raise InputError(
                    f"{bucket.uri}/{path} is there already, and is another file. If nobody is writing it, remove it: "
                    f"gcloud storage rm {bucket.uri}/{path}"
                ) from error
            stored = found
        if (stored.size, stored.crc32c) != (entry.size, entry.crc32c):
            raise Damaged([f"{entry.path}: the service stored {stored.size} bytes with crc32c {stored.crc32c}"])

    try:
        in_parallel(send, sorted(entries, key=lambda entry: -entry.size), stop)
    except BaseException:
        try:
            bucket.delete_uploaded(sent)
        except (OSError, InputError) as error:
            log.warning("%s/%s: files of a failed upload may be left there: %s", bucket.uri, name, error)
        raise
    shutil.rmtree(directory)


def _send_small(bucket: "Bucket", directory: Path, path: str, entry: FileEntry, stop: threading.Event) -> Stored:
    data = (directory / entry.path).read_bytes()
    return bucket.ask(lambda timeout: bucket.upload_whole(path, data, timeout), stop=stop, of_bucket=True)


def _send_large(bucket: "Bucket", directory: Path, path: str, entry: FileEntry, stop: threading.Event) -> Stored:
    with (directory / entry.path).open("rb", buffering=0) as file:
        for _ in range(_UPLOADS):
            url = bucket.ask(lambda timeout: bucket.begin_upload(path, entry, timeout), stop=stop, of_bucket=True)
            try:
                return _Upload(bucket, url, file, entry).send(stop)
            except Missing as error:
                log.info("%s/%s: the upload begins anew: %s", bucket.uri, path, error)
    if file_entry(directory, entry.path) != entry:
        raise Damaged([f"{entry.path}: changed on this machine before it was uploaded"])
    raise ConnectionError(f"{bucket.uri}/{path}: the service has given up {_UPLOADS} uploads.")


class _Upload:
    """A resumable upload of one file to `url`."""

    def __init__(self, bucket: "Bucket", url: str, file: BinaryIO, entry: FileEntry) -> None:
        self._bucket = bucket
        self._url = url
        self._file = file
        self._entry = entry
        self._arrived: int | None = 0  # None: not known, after a failure

    def send(self, stop: threading.Event) -> Stored:
        """Every chunk may take as long as the settings say. Raises Missing when the upload is not known any more."""
        while True:
            stored = self._bucket.ask(self._send_chunk, stop=stop)
            if stored is not None:
                return stored

    def _send_chunk(self, timeout: Timeout) -> Stored | None:
        size = self._entry.size
        before, self._arrived = self._arrived, None
        answer = before if before is not None else self._bucket.upload_part(self._url, b"", f"bytes */{size}", timeout)
        if isinstance(answer, int):
            start, stop = answer, min(answer + CHUNK, size)
            body = _Section(self._file, start, stop)
            answer = self._bucket.upload_part(self._url, body, f"bytes {start}-{stop - 1}/{size}", timeout)
            if answer == start:
                raise Unusable("nothing of what was sent has arrived")
        if isinstance(answer, Stored):
            return answer
        self._arrived = answer
        return None


class _Section:
    """Bytes `start` to `stop` of a file as a request body that is read piece by piece, again for every attempt."""

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


# Down


class Receiver:
    """Makes the cache hold files of the tree `name`: `<cache>/trees/<name>/` and, while they arrive, `<cache>/parts/<name>/`."""

    def __init__(self, bucket: "Bucket", cache: Path, name: str) -> None:
        self._bucket = bucket
        self._name = name
        self._cache = cache
        self._files = cache / "trees" / name
        self._parts = cache / "parts" / name

    def receive(self, entries: Sequence[FileEntry]) -> Path:
        """The directory with these files. Raises Damaged when they are not in the bucket, or are not what their entries say."""
        with self._explained():
            self._files.mkdir(parents=True, exist_ok=True)
            if absent := self._absent(entries):
                with self._alone():
                    self._fetch(self._absent(absent))
        return self._files

    def _absent(self, entries: Sequence[FileEntry]) -> list[FileEntry]:
        """Entries whose files are not in the cache with the right bytes."""
        intact = in_parallel(lambda entry: _is_intact(self._files / entry.path, entry), entries)
        return [entry for entry, here in zip(entries, intact, strict=True) if not here]

    def _fetch(self, entries: Sequence[FileEntry]) -> None:
        """Download files, and once more those that could not be had or whose bytes were not right."""
        failed = self._attempt(entries)
        if failed:
            failed = self._attempt(list(failed))
        if failed:
            raise Damaged([f"{entry.path}: {problem}" for entry, problem in failed.items()])

    def _attempt(self, entries: Sequence[FileEntry]) -> dict[FileEntry, str]:
        """Download files; returns what is wrong with those that could not be had."""
        stored, problems = self._bucket.examine(self._name, entries, extra=False)
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
        """What the part file lacks; an empty slice if it lacks nothing."""
        part = self._part(entry)
        have = part.stat().st_size if part.exists() else 0
        if have > entry.size:
            part.unlink()
            have = 0
        return [(start, min(start + SLICE, entry.size)) for start in range(have, entry.size, SLICE)] or [(have, have)]

    def _in_flight(self, plan: Sequence["_Span"]) -> Generator[tuple["_Span", memoryview | None], None, None]:
        """Each slice with its bytes, which are valid until the next one is asked for; None where that generation is gone.

        They come in order, while the next few are being fetched. Buffers are used again: fresh memory costs as much as receiving into it.
        """
        largest = max((span.stop - span.start for span in plan), default=0)
        free = [bytearray(largest) for _ in range(min(PARALLEL + 1, len(plan)))]
        flying: deque[tuple[_Span, bytearray, Future[memoryview | None]]] = deque()
        coming, giving_up = iter(plan), threading.Event()

        def fetch(span: _Span, buffer: memoryview) -> memoryview | None:
            if span.start == span.stop:
                return buffer
            path = f"{self._name}/{span.entry.path}"
            try:
                self._bucket.ask(
                    lambda timeout: self._bucket.download_slice(path, span.generation, span.start, buffer, timeout), stop=giving_up
                )
            except Missing:
                return None
            return buffer

        with ThreadPoolExecutor(PARALLEL) as pool:
            try:
                while True:
                    while free and (span := next(coming, None)):
                        memory = free.pop()
                        flying.append((span, memory, pool.submit(fetch, span, memoryview(memory)[: span.stop - span.start])))
                    if not flying:
                        return
                    span, memory, future = flying.popleft()
                    yield span, future.result()
                    free.append(memory)
            finally:
                giving_up.set()
                pool.shutdown(wait=False, cancel_futures=True)

    def _assemble(self, entry: FileEntry, slices: Iterable[memoryview | None]) -> str | None:
        """Append slices to the part file, which becomes the file if its bytes are right; else what is wrong with them."""
        part, target = self._part(entry), self._files / entry.path
        with part.open("a+b") as file, ThreadPoolExecutor(1) as beside:
            file.seek(0)
            sha256 = hashlib.file_digest(file, "sha256")
            for data in slices:
                if data is None:
                    return "was removed while it was read"
                hashed = beside.submit(sha256.update, data)
                file.write(data)
                hashed.result()
        if sha256.hexdigest() != entry.sha256:
            part.unlink()
            return f"has sha256 {sha256.hexdigest()} instead of {entry.sha256}"
        target.parent.mkdir(parents=True, exist_ok=True)
        part.replace(target)
        return None

    def _part(self, entry: FileEntry) -> Path:
        return self._parts / f"{digest([entry.path, entry.sha256])}.part"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Of all processes on this machine only one downloads a tree; the others wait, and find it in the cache."""
        self._parts.mkdir(parents=True, exist_ok=True)
        with (self._parts / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("%s/%s: another process is downloading it; waiting", self._bucket.uri, self._name)
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn this machine's refusals into InputError. A ConnectionError has no errno and passes."""
        try:
            yield
        except OSError as error:
            if is_disk_full(error):
                raise InputError(
                    f"the cache {self._cache} cannot hold {self._bucket.uri}/{self._name}: no space is left on its disk. Free some, or set "
                    "LYCEUM_CACHE to a directory on another disk."
                ) from error
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
                raise InputError(
                    f"the cache {self._cache} cannot be written ({error.strerror}). Set LYCEUM_CACHE to a directory that you may write."
                ) from error
            raise


@dataclass(frozen=True)
class _Span:
    """Bytes `start` to `stop` of the object that `entry` describes."""

    entry: FileEntry
    generation: int
    start: int
    stop: int


def _is_intact(path: Path, entry: FileEntry) -> bool:
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size == entry.size and hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256
    except FileNotFoundError:
        return False
