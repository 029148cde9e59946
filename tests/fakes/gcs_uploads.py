"""Resumable uploads of the fake of Cloud Storage: sessions, chunks, status queries.

Behaviour follows https://cloud.google.com/storage/docs/performing-resumable-uploads: an unfinished
upload keeps whole units of 256 KiB, bytes that were kept already are skipped, and preconditions are
checked at the start and at the end.
"""

import re
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.fakes.gcs_buckets import ApiError, Buckets, Precondition, StoredObject

CHUNK_UNIT = 1 << 18  # bytes
_RANGE = re.compile(r"bytes (?:(\*)|(\d+)-(\d+))/(\*|\d+)")


@dataclass
class Session:
    """One upload; `outcome` is the object it became, or the error it ended with."""

    id: str
    bucket: str
    name: str
    fields: dict[str, Any]
    precondition: Precondition
    lock: threading.Lock = field(default_factory=threading.Lock)
    content: bytes = b""
    outcome: StoredObject | ApiError | None = None


@dataclass(frozen=True)
class Chunk:
    """What one request adds to an upload.

    Attributes:
        start: the offset of its first byte; None for a request that only asks how far the upload
            is.
        stop: the offset after the last byte that the request's header promises.
        total: the size of the whole object, None while unknown.
    """

    start: int | None
    stop: int
    total: int | None

    @classmethod
    def of(cls, header: str | None, size: int) -> "Chunk":
        """From the Content-Range header (None: the body is the whole object) and the body's
        declared size."""
        if header is None:
            return cls(0, size, size)
        match = _RANGE.fullmatch(header)
        if not match:
            raise ApiError(400, "badRequest", f"Failed to parse Content-Range header: {header}")
        total = None if match[4] == "*" else int(match[4])
        if match[1]:
            return cls(None, 0, total)
        start, stop = int(match[2]), int(match[3]) + 1
        if stop - start != size:
            raise ApiError(
                400,
                "badRequest",
                f"Invalid request.  There were {size} byte(s) in the request body.  There should"
                f" have been {stop - start} byte(s) according to the Content-Range header.",
            )
        return cls(start, stop, total)


class Uploads:
    """The sessions of a service."""

    def __init__(self, buckets: Buckets) -> None:
        self.buckets = buckets
        self.sessions: dict[str, Session] = {}

    def begin(
        self, bucket: str, name: str, fields: Mapping[str, Any], precondition: Precondition
    ) -> Session:
        with self.buckets.lock:
            precondition.check(self.buckets.bucket(bucket).objects.get(name))
        session = Session(uuid.uuid4().hex, bucket, name, dict(fields), precondition)
        self.sessions[session.id] = session
        return session

    def find(self, upload_id: str) -> Session:
        if upload_id not in self.sessions:
            raise ApiError(404, "notFound", "Not Found")
        return self.sessions[upload_id]

    def append(
        self,
        session: Session,
        chunk: Chunk,
        body: bytes,
        checksums: Mapping[str, str],
        *,
        broken: bool = False,
    ) -> Session:
        """Add what arrived of a chunk and, when that completes the object, create it; the session's
        `outcome` tells.

        Args:
            checksums: of the whole object, from the request's x-goog-hash.
            broken: the connection was lost before the whole body had come: keep what arrived,
                finish nothing.
        """
        with session.lock:
            if isinstance(session.outcome, ApiError):
                raise session.outcome
            if session.outcome:
                return session
            have = len(session.content)
            session.fields |= checksums
            if chunk.start is not None:
                if chunk.start > have:
                    raise ApiError(
                        400,
                        "badRequest",
                        f"Invalid request.  The upload offset is {chunk.start} byte(s), which"
                        f" exceeds already uploaded size of {have} byte(s).",
                    )
                final = chunk.stop == chunk.total
                if not final and len(body) < CHUNK_UNIT and not broken:
                    raise ApiError(
                        400,
                        "badRequest",
                        "Invalid request.  The number of bytes uploaded is required to be equal or"
                        f" greater than {CHUNK_UNIT}, except for the final request.",
                    )
                reached = chunk.start + len(body)
                if broken or not final:
                    reached -= reached % CHUNK_UNIT
                if reached > have:
                    session.content += body[have - chunk.start : reached - chunk.start]
            if not broken and len(session.content) == chunk.total:
                self._finish(session)
            return session

    def _finish(self, session: Session) -> None:
        try:
            made = self.buckets.insert(
                session.bucket, session.name, session.content, session.fields, session.precondition
            )
            # later requests want its metadata; its bytes may be deleted
            session.outcome = replace(made, content=b"")
        except ApiError as error:
            session.outcome = error
            raise
        finally:
            session.content = b""
