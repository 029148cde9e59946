"""A bucket of Cloud Storage, and the client library in front of it, as `infra.gcs` uses it: what
`google.cloud.storage.Client` offers, with the service's preconditions, generations, checksums."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, TypeVar
from urllib.parse import unquote

from google.api_core import exceptions
from requests.exceptions import ConnectionError as BrokenConnection

from infra.gcs.bucket_objects import crc32c
from infra.gcs.requests import DAMAGED_UPLOAD
from tests.fakes.gcs_buckets import glob
from tests.simulation.faults import Faults, Refused
from tests.simulation.naming import operation
from tests.simulation.world import EPOCH, World

T = TypeVar("T")
PREFIX = "lyceum"
MODEL = "gs://simulated/models/tiny"
WEIGHTS = {"config.json": b"{}", "weights": b"weights " * 20}
"""A model that somebody else keeps in the bucket, and its files."""


@dataclass(frozen=True)
class Stored:
    """One generation of an object."""

    data: bytes
    generation: int
    written: float
    metadata: Mapping[str, str] = field(default_factory=dict)


class Service:
    """The bucket's service.

    Attributes:
        objects: what there is, by complete name.
        storm: until when requests are answered 503, virtual seconds.
        stale: until when listings lag behind.
        refused, refusal: until when requests are answered with that.
    """

    def __init__(self, world: World, faults: Faults, where: str) -> None:
        self._world, self._faults = world, faults
        self.objects: dict[str, Stored] = {}
        self.storm = self.stale = self.refused = 0.0
        self.refusal: Exception | None = None
        self._uploads: dict[str, _Arriving] = {}
        self._forgot: set[str] = set()  # names of objects of which an upload was, once
        self._seen_before: dict[str, Stored] = {}
        self._generation = 0
        for name, data in WEIGHTS.items():
            self.keep(f"models/tiny/{name}", data, {})
        self.client = self
        self.api_endpoint = "https://storage.simulated"
        self._http = self
        self._credentials = None
        self.location, self.data_locations = where, None

    def lag(self, seconds: float) -> None:
        """Listings show for so long what is there now."""
        self.stale, self._seen_before = self._world.now + seconds, dict(self.objects)

    def damage(self, name: str, data: bytes) -> None:
        """An object's bytes change, and its checksum with them."""
        if name in self.objects:
            self.keep(name, data, self.objects[name].metadata)

    # What the client library offers

    def mount(self, scheme: str, adapter: Any) -> None:
        """Of a session: connections are kept."""

    def reload(self, **more: Any) -> None:
        """Of a bucket: where it is."""

    def bucket(self, name: str, user_project: str | None = None) -> "Service":
        return self

    def blob(self, path: str, generation: int | None = None) -> "Blob":
        return Blob(self, path)

    def list_blobs(
        self,
        bucket: Any,
        *,
        prefix: str,
        delimiter: str | None = None,
        match_glob: str | None = None,
        max_results: int | None = None,
        **more: Any,
    ) -> Any:
        def look() -> tuple[list[Blob], set[str]]:
            there = self.objects if self._world.now >= self.stale else self._seen_before
            names = sorted(name for name in there if name.startswith(prefix))
            if match_glob:
                names = [name for name in names if glob(match_glob).fullmatch(name)]
            prefixes: set[str] = set()
            if delimiter:
                for name in list(names):
                    head, found, _ = name.removeprefix(prefix).partition(delimiter)
                    if found:
                        prefixes.add(f"{prefix}{head}{delimiter}")
                        names.remove(name)
            return [Blob(self, name, there[name]) for name in names[:max_results]], prefixes

        blobs, prefixes = self.request("list any", prefix, look)
        return SimpleNamespace(pages=iter([blobs]), prefixes=prefixes, next_page_token=None)

    def get(
        self, url: str, *, params: Mapping[str, str], headers: Mapping[str, str], **more: Any
    ) -> Any:
        """A part of an object, as `AuthorizedSession.get` brings it."""
        name = unquote(url.rpartition("/o/")[2])
        start, stop = headers["Range"].removeprefix("bytes=").split("-")

        def read() -> bytes:
            found = self.find(name)
            if str(found.generation) != params["generation"]:
                raise exceptions.NotFound("No such object")
            return found.data[int(start) : int(stop) + 1]

        data = bytearray(self.request(operation("read", name), name, read))

        def take(count: int) -> bytes:
            taken = bytes(data[:count])
            del data[:count]
            return taken

        return _Answer(f"bytes {start}-{stop}/*", take)

    def post(
        self, url: str, *, params: Mapping[str, str], json: Mapping[str, str], **more: Any
    ) -> Any:
        """A resumable upload begins."""
        name = json["name"]

        def begin() -> str:
            self._generation += 1
            place = f"{url}?upload_id={self._generation}"
            size = int(more["headers"]["X-Upload-Content-Length"])
            self._uploads[place] = _Arriving(name, size, json["crc32c"])
            return place

        place = self.request("put tree", name, begin)
        return SimpleNamespace(status_code=200, headers={"Location": place})

    def put(self, url: str, *, data: Any, headers: Mapping[str, str], **more: Any) -> Any:
        """A part of a resumable upload, or the question how much of it has arrived."""
        name = self._uploads[url].name if url in self._uploads else "?"
        body = b"".join(data) if data else b""

        def arrive() -> Any:
            there = self._uploads.get(url)
            if there and there.name not in self._forgot and self._world.random.random() < 0.02:
                self._forgot.add(there.name)
                del self._uploads[url]
                there = None
            if there is None:
                raise exceptions.NotFound("the upload is not known")
            if there.made is None and body:
                start = int(headers["Content-Range"].removeprefix("bytes ").partition("-")[0])
                # of what is sent some may be lost on its way, at the end
                lost = self._world.random.choice((0, 0, 0, len(body) // 2))
                there.data = there.data[:start] + body[: len(body) - lost]
            if there.made is None and len(there.data) == there.size:
                if self.objects.get(there.name) is not None:
                    raise exceptions.PreconditionFailed("the object exists")
                if crc32c(there.data) != there.crc32c:
                    return SimpleNamespace(status_code=400, text=DAMAGED_UPLOAD, headers={})
                there.made = self.keep(there.name, there.data, {})
            if there.made is not None:
                answer = {"size": there.size, "crc32c": there.crc32c}
                answer |= {"generation": there.made.generation}
                return SimpleNamespace(status_code=200, json=lambda: answer)
            arrived = {"Range": f"bytes=0-{len(there.data) - 1}"} if there.data else {}
            return SimpleNamespace(status_code=308, headers=arrived)

        return self.request("put tree", name, arrive)

    # The service

    def find(self, name: str) -> Stored:
        if name not in self.objects:
            raise exceptions.NotFound("No such object")
        return self.objects[name]

    def keep(self, name: str, data: bytes, metadata: Mapping[str, str]) -> Stored:
        self._generation += 1
        self.objects[name] = Stored(data, self._generation, EPOCH + self._world.now, metadata)
        return self.objects[name]

    def request(self, what: str, name: str, effect: Callable[[], T]) -> T:
        """One request. Raises what the client library raises."""
        self._world.sleep(self._world.random.uniform(0.005, 0.06))
        if self._world.now < self.storm:
            raise exceptions.ServiceUnavailable("Service Unavailable")
        if self.refusal is not None and self._world.now < self.refused:
            raise self.refusal
        failed: list[Exception] = []

        def attempt() -> T | bool | None:
            try:
                return effect()
            except exceptions.GoogleAPICallError as error:
                failed.append(error)
                return False if isinstance(error, exceptions.PreconditionFailed) else None

        try:
            result = self._faults.operation(
                what, name.removeprefix(f"{PREFIX}/"), attempt, remote=True
            )
        except Refused as refused:
            if refused.done:
                raise BrokenConnection("Connection reset by peer") from None
            raise exceptions.ServiceUnavailable("Service Unavailable") from None
        if failed:
            raise failed[0]
        return result  # type: ignore[return-value]


@dataclass
class _Arriving:
    """A resumable upload."""

    name: str
    size: int
    crc32c: str
    data: bytes = b""
    made: Stored | None = None


class _Answer:
    """An answer of HTTP that is read piece by piece."""

    def __init__(self, part: str, read: Callable[[int], bytes]) -> None:
        self.status_code, self.headers = 206, {"Content-Range": part}
        self.raw = SimpleNamespace(read=read)

    def __enter__(self) -> "_Answer":
        return self

    def __exit__(self, *exception: object) -> None:
        pass


class Blob:
    """`google.cloud.storage.Blob`."""

    def __init__(self, service: Service, name: str, stored: Stored | None = None) -> None:
        self._service, self.name = service, name
        self.metadata: Mapping[str, str] | None = None
        if stored is not None:
            self._take(stored)

    def _take(self, stored: Stored) -> None:
        self.size, self.crc32c = len(stored.data), crc32c(stored.data)
        self.generation, self.metadata = stored.generation, stored.metadata
        self.time_created = datetime.fromtimestamp(stored.written, UTC)

    def upload_from_string(
        self, data: bytes, kind: str, *, if_generation_match: int | None, **more: Any
    ) -> None:
        def write() -> bool:
            there = self._service.objects.get(self.name)
            if if_generation_match is not None and if_generation_match != (
                there.generation if there else 0
            ):
                raise exceptions.PreconditionFailed("At least one precondition did not hold")
            self._take(self._service.keep(self.name, data, self.metadata or {}))
            return True

        verb = "write" if if_generation_match is None else "create"
        what = (
            "put tree" if verb == "create" and "/data/" in self.name else operation(verb, self.name)
        )
        self._service.request(what, self.name, write)

    def download_as_bytes(self, **more: Any) -> bytes:
        def read() -> bytes:
            self._take(found := self._service.find(self.name))
            return found.data

        return self._service.request(operation("read", self.name), self.name, read)

    def reload(self, **more: Any) -> None:
        self._service.request(
            operation("read", self.name),
            self.name,
            lambda: self._take(self._service.find(self.name)),
        )

    def delete(self, *, if_generation_match: int | None = None, **more: Any) -> None:
        def remove() -> None:
            there = self._service.find(self.name)
            if if_generation_match not in (None, there.generation):
                raise exceptions.PreconditionFailed("At least one precondition did not hold")
            del self._service.objects[self.name]

        self._service.request(operation("remove", self.name), self.name, remove)


def objects_of(service: Service, prefix: str) -> Iterator[tuple[str, bytes]]:
    """What lies below a prefix of the store, without a request."""
    for name, stored in list(service.objects.items()):
        inner = name.removeprefix(f"{PREFIX}/")
        if inner.startswith(prefix):
            yield inner, stored.data
