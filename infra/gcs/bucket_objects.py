"""The objects below a prefix of a Cloud Storage bucket, one request each.

Everything that must happen once is a request with a precondition, which the service checks
atomically. If the answer to a successful request is lost, its repetition is refused. So each
created object has its writer's mark, and a refused writer looks for it before it counts as the
loser.

`STORAGE_EMULATOR_HOST` points the client library at a fake. Trees: `infra.gcs.bucket`.
"""

import base64
import functools
import hashlib
import mimetypes
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import google_crc32c

from infra.gcs.requests import Changed, Missing, Requests, Stored, Timeout, Unusable, in_parallel
from infra.settings import Settings
from infra.store.objects import Found, Objects, checked_name, name_problem
from schemas.artifact import FileEntry
from schemas.base import InputError

if TYPE_CHECKING:
    import google.cloud.storage as storage
    from google.auth.transport.requests import AuthorizedSession

_BUCKET = re.compile(
    r"(?=.{3,222}$)[a-z0-9][a-z0-9_-]{0,61}[a-z0-9](?:\.[a-z0-9][a-z0-9_-]{0,61}[a-z0-9])*"
)
_CONNECTIONS = 32  # kept open per host
_CLEAN_UP_SECONDS = 10.0
_WRITER = "lyceum-writer"
"""Key of the metadata in which `create` leaves its mark."""


class BucketObjects(Objects):
    """Objects below `gs://bucket/prefix`. Cheap to construct: the first request connects. Safe to
    use from several threads.

    Requests are repeated for `settings.store_seconds` while the service does not answer. After that
    a ConnectionError is raised, an OSError: callers that can wait longer may try again. A problem
    that a person must solve (bucket, permissions, credentials, quota) is an InputError.

    Args:
        prefix: a path, or "" for the whole bucket.
        cache: directory on this machine.

    Attributes:
        cache: this store's own directory below that: `trees/` and `parts/` are for `get_tree`.

    Raises:
        InputError: a name that no bucket or prefix can have.
    """

    def __init__(self, bucket: str, prefix: str, cache: Path, settings: Settings) -> None:
        if not _BUCKET.fullmatch(bucket):
            raise InputError(
                f"store gs://{bucket}/{prefix}: {bucket!r} is no name of a bucket: 3 to 63"
                " lower-case letters, digits, dashes and underscores, with a letter or digit at"
                " both ends."
            )
        if prefix and (problem := name_problem(prefix)):
            raise InputError(f"store gs://{bucket}/{prefix}: {problem}")
        self.uri = f"gs://{bucket}/{prefix}".rstrip("/")
        self.name = bucket
        self._root = f"{prefix}/" if prefix else ""
        self.cache = cache / f"{bucket}-{hashlib.sha256(self.uri.encode()).hexdigest()[:12]}"
        self._payer = settings.billing_project
        self.paid = {"userProject": self._payer} if self._payer else {}
        self._patience = settings.store_seconds
        self._requests = Requests(self.uri, bucket, self._patience, self._account)
        self.ask = self._requests.ask
        self._client: tuple[str, storage.Client] | None = None

    def prepare(self) -> None:
        """See Objects: creates, lists and deletes one object. The bucket must exist."""
        probe = f"{self._root}.probe-{uuid.uuid4().hex}"
        self.upload(probe, b"probe")
        next(self._pages(probe))
        self._delete(probe)

    def require(self) -> None:
        """See Objects: the bucket must exist."""
        next(self._pages(self._root, limit=1))

    def location(self) -> str:
        """The location of the bucket: a region (`US-CENTRAL1`), a multi-region (`US`), a
        dual-region (`NAM4`), or two regions joined by `+`."""
        handle = self._handle()
        self.ask(lambda timeout: handle.reload(timeout=timeout, retry=None), of_bucket=True)
        return "+".join(handle.data_locations or [handle.location])

    def read(self, name: str, seconds: float | None = None) -> bytes | None:
        """See Objects; the bytes are compared with the service's checksum."""
        path = self.path(name)
        try:
            return self.ask(lambda timeout: self._download(path, timeout), seconds=seconds)[0]
        except Missing:
            return None

    def read_all(self, names: Sequence[str]) -> list[bytes | None]:
        return in_parallel(self.read, names)

    def write(self, name: str, data: bytes, seconds: float | None = None) -> None:
        self.upload(self.path(name), data, seconds=seconds)

    def create(self, name: str, data: bytes) -> bool:
        path, writer = self.path(name), uuid.uuid4().hex
        try:
            self.upload(path, data, generation=0, writer=writer)
        except Changed:
            found = self._metadata(path)
            return found is not None and (found.metadata or {}).get(_WRITER) == writer
        return True

    def set_aside(self, name: str, aside: str, expected: bytes) -> bool:
        """See Objects: copies, then deletes that generation of the object.

        Should somebody else get in between, the copy stays: which of the two deleted the object
        cannot be told when answers are lost, and a copy too many does no harm.
        """
        path, tries = self.path(name), 0
        try:
            data, generation = self.ask(lambda timeout: self._download(path, timeout))
        except Missing:
            return False
        if data != expected:
            return False
        self.upload(self.path(aside), data)

        def delete(timeout: Timeout) -> None:
            nonlocal tries
            tries += 1
            self._blob(path).delete(if_generation_match=generation, timeout=timeout, retry=None)

        try:
            self.ask(delete)
        except Missing:
            return tries > 1
        except Changed:
            return False
        return True

    def children(self, name: str) -> list[str]:
        below = self.path(name) + "/"
        found: set[str] = set()
        for blobs, prefixes in self._pages(below, delimiter="/"):
            found |= {blob.name for blob in blobs} | set(prefixes)
        names = {path.removeprefix(below).removesuffix("/") for path in found}
        return sorted(name for name in names if name_problem(name) is None)

    def objects(self, name: str) -> Iterator[Found]:
        return self._found(self.path(name) + "/")

    def each(self, name: str, *files: str) -> Iterator[Found]:
        """See Objects: the service picks them out."""
        below, wanted = self.path(name), ",".join(map(checked_name, files))
        wanted = f"{{{wanted}}}" if files[1:] else wanted
        return self._found(f"{below}/", f"{below}/*/{wanted}")

    def _found(self, prefix: str, glob: str | None = None) -> Iterator[Found]:
        for blobs, _ in self._pages(prefix, fields="name,size,timeCreated", glob=glob):
            for blob in blobs:
                found = blob.name.removeprefix(self._root)
                if name_problem(found) is None:
                    yield Found(found, blob.size, blob.time_created.timestamp())

    def remove(self, name: str) -> None:
        path = self.path(name)
        below = [blob.name for blobs, _ in self._pages(f"{path}/") for blob in blobs]
        self._delete_all([path, *below])

    def check_tree(self, name: str, entries: Sequence[FileEntry]) -> list[str]:
        """See Objects: one listing, and one more look at whatever seems wrong in it, for listings
        may lag behind."""
        _, problems = self.examine(name, entries, extra=True)
        return [f"{path}: {problem}" for path, problem in problems.items()]

    # For infra.gcs.upload and infra.gcs.download

    def examine(
        self, name: str, entries: Sequence[FileEntry], *, extra: bool, listed: bool = True
    ) -> tuple[dict[str, Stored], dict[str, str]]:
        """The objects of a tree by their paths, and by path how they differ from `entries`; by a
        listing, or if not `listed`, by a look at each entry's object.

        An object without an entry differs if `extra`, unless it is one of those that stand for a
        folder in the Cloud console.
        """
        below, expected = self.path(name) + "/", {entry.path: entry for entry in entries}
        pages = self._pages(below, fields="name,size,crc32c,generation") if listed else ()
        found = {
            blob.name.removeprefix(below): _stored(blob)
            for blobs, _ in pages
            for blob in blobs
            if not blob.name.endswith("/")
        }
        paths = sorted(found.keys() | expected.keys() if extra else expected.keys())
        doubtful = [one for one in paths if _difference(expected.get(one), found.get(one))]
        again = in_parallel(lambda path: self.stored(f"{name}/{path}"), doubtful)
        problems = {}
        for path, stored in zip(doubtful, again, strict=True):
            if stored is not None:
                found[path] = stored
            if problem := _difference(expected.get(path), stored):
                problems[path] = problem
        return found, problems

    def stored(self, name: str) -> Stored | None:
        """The service's record of one object, or None if there is none."""
        found = self._metadata(self.path(name, checked=False))
        return None if found is None else _stored(found)

    def upload(
        self,
        path: str,
        data: bytes,
        *,
        generation: int | None = None,
        writer: str = "",
        seconds: float | None = None,
        stop: Event | None = None,
    ) -> Stored:
        """Write an object in one request; the service compares the bytes with their checksum.

        Args:
            path: its name in the bucket.
            generation: the one that must be there, 0 for none; None replaces any.
            writer: the mark to leave.
            seconds, stop: as in `ask`.
        """

        def request(timeout: Timeout) -> Stored:
            from google.cloud.storage.exceptions import DataCorruption

            blob = self._blob(path)
            if writer:
                blob.metadata = {_WRITER: writer}
            options: dict[str, Any] = {"if_generation_match": generation, "checksum": "crc32c"}
            options |= {"timeout": timeout, "retry": None}
            try:
                blob.upload_from_string(data, content_type(path), **options)
            except DataCorruption as error:
                raise Unusable("damaged bytes") from error
            return _stored(blob)

        return self.ask(request, seconds=seconds, stop=stop, of_bucket=True)

    def delete_uploaded(self, names: Iterable[str]) -> None:
        """Delete objects again, without much patience. Raises OSError or InputError if they may
        still be there."""
        seconds = min(_CLEAN_UP_SECONDS, self._patience)
        self._delete_all([self.path(name) for name in names], seconds)

    def path(self, name: str, *, checked: bool = True) -> str:
        """The object's name in the bucket."""
        return self._root + (checked_name(name) if checked else name)

    @property
    def session(self) -> "AuthorizedSession":
        return self._handle().client._http

    @property
    def endpoint(self) -> str:
        return self._handle().client.api_endpoint

    # The client library

    def _handle(self) -> "storage.Bucket":
        emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
        if self._client is None or self._client[0] != emulator:
            self._client = emulator, self.ask(lambda timeout: _client(emulator))
        return self._client[1].bucket(self.name, user_project=self._payer or None)

    def _blob(self, path: str) -> "storage.Blob":
        return self._handle().blob(path)

    def _account(self) -> str:
        credentials = self._handle().client._credentials
        names = (getattr(credentials, name, "") for name in ("service_account_email", "account"))
        return next((name for name in names if name and "@" in name), "")

    def _download(self, path: str, timeout: Timeout) -> tuple[bytes, int]:
        blob = self._blob(path)
        data = blob.download_as_bytes(
            raw_download=True, single_shot_download=True, checksum=None, timeout=timeout, retry=None
        )
        if blob.crc32c != crc32c(data):
            raise Unusable("damaged bytes")
        return data, int(blob.generation)

    def _metadata(self, path: str) -> "storage.Blob | None":
        blob = self._blob(path)
        try:
            self.ask(lambda timeout: blob.reload(timeout=timeout, retry=None))
        except Missing:
            return None
        return blob

    def _delete(self, path: str, seconds: float | None = None, stop: Event | None = None) -> None:
        def delete(timeout: Timeout) -> None:
            self._blob(path).delete(timeout=timeout, retry=None)

        with suppress(Missing):
            self.ask(delete, seconds=seconds, stop=stop)

    def _delete_all(self, paths: Iterable[str], seconds: float | None = None) -> None:
        stop = Event()
        in_parallel(lambda path: self._delete(path, seconds, stop), paths, stop)

    def _pages(
        self,
        prefix: str,
        *,
        fields: str = "name",
        delimiter: str | None = None,
        glob: str | None = None,
        limit: int | None = None,
    ) -> Iterator[tuple[list["storage.Blob"], set[str]]]:
        """Objects whose names begin with `prefix`, of which a glob (its `*` stands for no slash)
        picks some, and prefixes of names that go on after a delimiter; a thousand at a time."""
        token, handle = None, self._handle()

        def page(timeout: Timeout) -> Any:
            iterator = handle.client.list_blobs(
                handle,
                prefix=prefix,
                delimiter=delimiter,
                match_glob=glob,
                max_results=limit,
                fields=f"items({fields}),prefixes,nextPageToken",
                page_token=token,
                timeout=timeout,
                retry=None,
            )
            return list(next(iterator.pages)), iterator

        while True:
            blobs, iterator = self.ask(page, of_bucket=True)
            yield blobs, iterator.prefixes
            token = iterator.next_page_token
            if not token or limit:
                return


def crc32c(data: bytes) -> str:
    """The checksum as Cloud Storage writes it: base64 of the big-endian 32 bits."""
    return base64.b64encode(google_crc32c.Checksum(data).digest()).decode("ascii")


@functools.lru_cache(4096)
def content_type(name: str) -> str:
    """By the name's suffix, for the Cloud console and browsers."""
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


def _difference(entry: FileEntry | None, stored: Stored | None) -> str | None:
    """How an object differs from its entry in the manifest, or None. A missing object or entry is
    given as None."""
    if entry is None:
        return None if stored is None else "is not in the manifest"
    if stored is None:
        return "is missing"
    if stored.size != entry.size:
        return f"has {stored.size} bytes instead of {entry.size}"
    if stored.crc32c != entry.crc32c:
        return f"has crc32c {stored.crc32c} instead of {entry.crc32c}"
    return None


def _stored(blob: "storage.Blob") -> Stored:
    return Stored(blob.size, blob.crc32c, int(blob.generation))


@functools.lru_cache
def _client(emulator: str) -> "storage.Client":
    """The one client of this process. Raises DefaultCredentialsError when there are none."""
    import google.cloud.storage as storage
    from requests.adapters import HTTPAdapter

    client = storage.Client(project=None)
    # it starts threads that ask for the bucket's metadata, for traces that nobody records
    client._bucket_metadata_cache = None
    adapter = HTTPAdapter(pool_connections=_CONNECTIONS, pool_maxsize=_CONNECTIONS)
    client._http.mount("https://", adapter)
    client._http.mount("http://", adapter)
    return client
