"""What the fake of Cloud Storage keeps: buckets, objects, generations, preconditions, listings. No
HTTP, no faults.

Behaviour follows the JSON API's reference: https://cloud.google.com/storage/docs/json_api/v1. Every
change is made under one lock, so preconditions are atomic. Buckets are not versioned: an
overwritten generation is gone, though a download that has begun keeps its bytes. Of the checksums
only the CRC32C is compared, and of the preconditions only the generation; others are refused.
"""

import base64
import hashlib
import re
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import google_crc32c

WRITABLE = ("contentType", "metadata")
MD5_LIMIT = 1 << 20  # bytes


class ApiError(Exception):
    """An answer that is not a success: HTTP `status`, the API's `reason`, and the `message` for
    people."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


def no_object(bucket: str, name: str) -> ApiError:
    return ApiError(404, "notFound", f"No such object: {bucket}/{name}")


CONDITION_NOT_MET = "At least one of the pre-conditions you specified did not hold."


def flipped(data: bytes) -> bytes:
    """A copy with one bit changed in its middle, if there is any."""
    changed = bytearray(data)
    if data:
        changed[len(data) // 2] ^= 1
    return bytes(changed)


def crc32c_of(data: bytes) -> str:
    """The checksum as the API writes it: base64 of four big-endian bytes."""
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


@dataclass(frozen=True)
class StoredObject:
    """One generation of an object. Times are RFC 3339 in UTC."""

    bucket: str
    name: str
    generation: int
    size: int
    crc32c: str
    created: str
    fields: Mapping[str, Any]
    content: bytes

    @property
    def md5(self) -> str:
        return base64.b64encode(hashlib.md5(self.content).digest()).decode()

    @property
    def etag(self) -> str:
        return base64.b64encode(f"{self.generation}/1".encode()).decode()

    def resource(self, host: str) -> dict[str, Any]:
        """The object's metadata in the API's words; `host` is the service's URL, for the links in
        it."""
        path = f"b/{self.bucket}/o/{quote(self.name, safe='')}"
        media = f"{host}/download/storage/v1/{path}?generation={self.generation}&alt=media"
        return {
            "id": f"{self.bucket}/{self.name}/{self.generation}",
            "mediaLink": media,
            "name": self.name,
            "bucket": self.bucket,
            "generation": str(self.generation),
            "size": str(self.size),
            "crc32c": self.crc32c,
            "etag": self.etag,
            **({"md5Hash": self.md5} if len(self.content) == self.size <= MD5_LIMIT else {}),
            "timeCreated": self.created,
            "updated": self.created,
            **self.fields,
        }


@dataclass(frozen=True)
class Precondition:
    """The generation that a request demands of the live object, 0 meaning that there is none; None
    demands nothing."""

    generation: int | None = None

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Precondition":
        if others := {name for name in query if name.startswith("if")} - {"ifGenerationMatch"}:
            raise ApiError(400, "invalid", f"This fake of Cloud Storage has no {', '.join(others)}")
        try:
            return cls(int(query["ifGenerationMatch"]) if "ifGenerationMatch" in query else None)
        except ValueError as error:
            raise ApiError(400, "invalid", f"Invalid value for a precondition: {error}") from error

    def check(self, live: StoredObject | None) -> None:
        """Raise ApiError 412 unless `live` is as demanded."""
        if self.generation not in (None, live.generation if live else 0):
            raise ApiError(412, "conditionNotMet", CONDITION_NOT_MET)


@dataclass
class Bucket:
    """A bucket; `history` holds what each change of an object replaced, newest last, without the
    bytes."""

    resource: dict[str, Any]
    objects: dict[str, StoredObject] = field(default_factory=dict)
    history: deque[tuple[str, StoredObject | None]] = field(
        default_factory=lambda: deque(maxlen=10_000)
    )

    @property
    def requester_pays(self) -> bool:
        return bool(self.resource.get("billing", {}).get("requesterPays"))

    def put(self, name: str, new: StoredObject | None) -> None:
        """Install, replace or remove an object; the caller holds the lock."""
        old = self.objects.pop(name, None)
        self.history.append((name, replace(old, content=b"") if old else None))
        if new:
            self.objects[name] = new

    def as_of(self, changes: int) -> dict[str, StoredObject]:
        """The objects as they were `changes` changes ago."""
        objects = dict(self.objects)
        for name, old in list(self.history)[::-1][:changes]:
            objects.pop(name, None)
            if old:
                objects[name] = old
        return objects


@dataclass(frozen=True)
class Page:
    """One page of a listing; `token` continues it."""

    items: list[StoredObject]
    prefixes: list[str]
    token: str | None


class Buckets:
    """The service: every method is one API call, atomic, and raises ApiError."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.buckets: dict[str, Bucket] = {}
        self._generation = 0

    def create_bucket(self, resource: Mapping[str, Any]) -> dict[str, Any]:
        name, location = resource.get("name", ""), str(resource.get("location", "US")).upper()
        if not name:
            raise ApiError(400, "required", "Required")
        kind = "multi-region" if location in ("US", "EU", "ASIA") else "region"
        with self.lock:
            if name in self.buckets:
                raise ApiError(409, "conflict", "You already own this bucket.")
            made = {"id": name, "locationType": kind, **resource, "location": location}
            self.buckets[name] = Bucket(made)
            return made

    def bucket(self, name: str) -> Bucket:
        with self.lock:
            if name not in self.buckets:
                raise ApiError(404, "notFound", "The specified bucket does not exist.")
            return self.buckets[name]

    def insert(
        self,
        bucket: str,
        name: str,
        content: bytes,
        fields: Mapping[str, Any],
        precondition: Precondition,
    ) -> StoredObject:
        """Create or replace an object. `fields` are the client's; a `crc32c` among them must be
        that of the bytes."""
        if not name or len(name.encode()) > 1024:
            raise ApiError(400, "invalid", f"The specified object name is not valid: {name[:80]!r}")
        with self.lock:
            precondition.check(self.bucket(bucket).objects.get(name))
        crc32c = crc32c_of(content)
        if fields.get("crc32c", crc32c) != crc32c:
            given = f'Provided CRC32C "{fields["crc32c"]}"'
            raise ApiError(400, "invalid", f'{given} doesn\'t match calculated CRC32C "{crc32c}".')
        kept = {key: fields[key] for key in WRITABLE if fields.get(key) is not None}
        with self.lock:
            place = self.bucket(bucket)
            precondition.check(place.objects.get(name))
            self._generation = max(self._generation + 1, time.time_ns() // 1000)
            new = StoredObject(
                bucket, name, self._generation, len(content), crc32c, _now(), kept, content
            )
            place.put(name, new)
            return new

    def get(
        self, bucket: str, name: str, generation: str | None, precondition: Precondition
    ) -> StoredObject:
        with self.lock:
            live = self.bucket(bucket).objects.get(name)
            if live is None or generation not in (None, str(live.generation)):
                raise no_object(bucket, name)
            precondition.check(live)
            return live

    def delete(
        self, bucket: str, name: str, generation: str | None, precondition: Precondition
    ) -> None:
        with self.lock:
            self.get(bucket, name, generation, precondition)
            self.bucket(bucket).put(name, None)

    def list(self, bucket: str, query: Mapping[str, str], changes_ago: int = 0) -> Page:
        """A page in the order of names; `maxResults` counts objects and prefixes together.
        `changes_ago` > 0 lists the past."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        picks = glob(query["matchGlob"]) if "matchGlob" in query else None
        limit = min(max(int(query.get("maxResults", 1000)), 1), 1000)
        after = base64.urlsafe_b64decode(query.get("pageToken", "")).decode()
        with self.lock:
            objects = self.bucket(bucket).as_of(changes_ago)
        items: list[StoredObject] = []
        prefixes: list[str] = []
        last: str | None = None
        for name in sorted(objects):
            if not name.startswith(prefix) or (picks and not picks.fullmatch(name)):
                continue
            head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            entry = prefix + head + found if found else name
            if entry <= after or (prefixes and entry == prefixes[-1]):
                continue
            if len(items) + len(prefixes) == limit:
                token = base64.urlsafe_b64encode((last or "").encode()).decode()
                return Page(items, prefixes, token)
            if found:
                prefixes.append(entry)
            else:
                items.append(objects[name])
            last = entry
        return Page(items, prefixes, None)


def glob(pattern: str) -> re.Pattern[str]:
    """Of the service's globs those with `*`, which stands for anything but a slash, and with one
    choice, `{a,b}`, at the end."""
    fixed, _, choice = pattern.removesuffix("}").partition("{")
    if set(fixed + choice) & set("?[]{}\\") or "**" in pattern:
        wrong = f"This fake of Cloud Storage knows only * and {{a,b}} in a matchGlob: {pattern}"
        raise ApiError(400, "invalid", wrong)
    signs = ["[^/]*".join(map(re.escape, one.split("*"))) for one in (fixed, *choice.split(","))]
    return re.compile(f"{signs[0]}({'|'.join(signs[1:])})")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
