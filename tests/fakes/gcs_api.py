"""The JSON API of the fake of Cloud Storage: which request is which call, and what answers it.
Sockets are in `tests/fakes/gcs_http.py`.

Paths, parameters, headers and errors are those of
https://cloud.google.com/storage/docs/json_api/v1. What is not offered is refused, never ignored: a
listing's unknown parameters, and unknown paths.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import format_datetime
from typing import Any

from tests.fakes.gcs_buckets import ApiError, Buckets, Precondition, StoredObject
from tests.fakes.gcs_uploads import Chunk, Session, Uploads

Json = dict[str, Any]
LISTING = {"prefix", "delimiter", "matchGlob", "maxResults", "pageToken"}
ANYWHERE = {"projection", "prettyPrint", "fields", "alt", "userProject", "quotaUser", "key"}
REQUESTER_PAYS = ("required", "Bucket is a requester pays bucket but no user project provided.")
OFF = {"versions", "includeFoldersAsPrefixes"}  # refused unless they are false
_BOUNDARY = re.compile(r'boundary="?([^";]+)"?')
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(frozen=True)
class Request:
    """A request and its body.

    Attributes:
        path: unquoted segments.
        headers: by lower-case name.
        declared: the body's size by the headers; the body is shorter if the connection ended in it.
        host: the service's URL as the client sees it.
        changes_ago: lists the bucket as it was so many changes ago (a fault).
    """

    method: str
    path: list[str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    declared: int
    host: str
    changes_ago: int = 0

    @property
    def broken(self) -> bool:
        return len(self.body) < self.declared

    def json(self) -> Json:
        return _json(self.body)

    @property
    def precondition(self) -> Precondition:
        return Precondition.of(self.query)


@dataclass(frozen=True)
class Response:
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class Call:
    """A request understood, not yet executed: `kind` is one of KINDS; `name` is the object's, or a
    listing's prefix."""

    kind: str
    bucket: str
    name: str
    run: Callable[[Request], Json | Response]


KINDS = ("upload", "download", "list", "delete", "metadata", "bucket")


class Api:
    """Turns requests into calls, and calls into answers."""

    def __init__(self) -> None:
        self.buckets = Buckets()
        self.uploads = Uploads(self.buckets)

    def execute(self, call: Call, request: Request) -> Response:
        """The answer to a call, an error's included."""
        try:
            # an upload was begun by who pays
            payer = {"userProject", "upload_id"} & request.query.keys()
            if call.bucket and self.buckets.bucket(call.bucket).requester_pays and not payer:
                raise ApiError(400, *REQUESTER_PAYS)
            answer = call.run(request)
        except ApiError as error:
            return error_response(error, media=call.kind == "download")
        if isinstance(answer, Response):
            return answer
        return json_response(answer)

    def understand(self, request: Request) -> Call:
        """Changes nothing. Raises ApiError for what this fake does not have."""
        buckets, media = self.buckets, request.query.get("alt") == "media"

        def found(request: Request) -> StoredObject:
            generation = request.query.get("generation")
            return buckets.get(bucket, name, generation, request.precondition)

        match [request.method, *request.path]:
            case ["POST", "storage", "v1", "b"]:
                return Call("bucket", "", "", lambda now: buckets.create_bucket(now.json()))
            case ["GET", "storage", "v1", "b", bucket]:
                return Call("bucket", bucket, "", lambda _: buckets.bucket(bucket).resource)
            case ["GET", "storage", "v1", "b", bucket, "o"]:
                prefix = request.query.get("prefix", "")
                return Call("list", bucket, prefix, lambda now: self._list(now, bucket))
            case ["GET", "storage", "v1", "b", bucket, "o", name] if not media:
                return Call("metadata", bucket, name, lambda now: found(now).resource(now.host))
            case ["GET", "storage" | "download", *_, "v1", "b", bucket, "o", name]:
                return Call("download", bucket, name, lambda now: _media(now, found(now)))
            case ["DELETE", "storage", "v1", "b", bucket, "o", name]:
                return Call("delete", bucket, name, lambda now: self._delete(now, bucket, name))
            case ["POST" | "PUT", "upload", "storage", "v1", "b", bucket, "o"]:
                return self._upload(request, bucket)
        what = f"{request.method} /{'/'.join(request.path)}"
        raise ApiError(404, "notFound", f"This fake of Cloud Storage has no {what}")

    def _list(self, request: Request, bucket: str) -> Json:
        refused = {
            name
            for name in set(request.query) - LISTING - ANYWHERE
            if name not in OFF or request.query[name].lower() != "false"
        }
        if refused:
            what = ", ".join(sorted(refused))
            raise ApiError(400, "invalid", f"This fake of Cloud Storage lists without {what}")
        page = self.buckets.list(bucket, request.query, request.changes_ago)
        listing: Json = {"kind": "storage#objects"}
        listing |= {"nextPageToken": page.token} if page.token else {}
        listing |= {"prefixes": page.prefixes} if page.prefixes else {}
        items = [one.resource(request.host) for one in page.items]
        return listing | ({"items": items} if items else {})

    def _delete(self, request: Request, bucket: str, name: str) -> Response:
        self.buckets.delete(bucket, name, request.query.get("generation"), request.precondition)
        return Response(204)

    def _upload(self, request: Request, bucket: str) -> Call:
        """An upload in one of its forms; the name is in the query, in the first part of the body,
        or with the session."""
        query, headers = request.query, request.headers
        if "upload_id" in query:
            session = self.uploads.find(query["upload_id"])
            place = session.bucket, session.name
            return Call("upload", *place, lambda request: self._session(request, session))
        form = query.get("uploadType")
        content, fields = request.body, dict[str, Any]()
        if request.method == "POST" and form == "resumable":
            fields = request.json()
            fields.setdefault("contentType", headers.get("x-upload-content-type"))
        elif request.method == "POST" and form == "multipart":
            fields, content = _multipart(headers.get("content-type", ""), content)
        elif request.method == "POST" and form == "media":  # the startup script's
            fields = {"contentType": headers.get("content-type")}
        else:
            wrong = f"Bad Request: uploadType {form!r} with {request.method}"
            raise ApiError(400, "badRequest", wrong)
        fields |= _checksums(headers)
        name = query.get("name") or fields.get("name", "")

        def begin(request: Request) -> Response:
            return self._begin(request, bucket, name, fields)

        def insert(request: Request) -> Json:
            made = self.buckets.insert(bucket, name, content, fields, request.precondition)
            return made.resource(request.host)

        return Call("upload", bucket, name, begin if form == "resumable" else insert)

    def _begin(self, request: Request, bucket: str, name: str, fields: Json) -> Response:
        session = self.uploads.begin(bucket, name, fields, request.precondition)
        where = f"{request.host}/upload/storage/v1/b/{bucket}/o"
        query = f"uploadType=resumable&upload_id={session.id}"
        return Response(200, {"Location": f"{where}?{query}", "X-GUploader-UploadID": session.id})

    def _session(self, request: Request, session: Session) -> Json | Response:
        chunk = Chunk.of(request.headers.get("content-range"), request.declared)
        sums = _checksums(request.headers)
        self.uploads.append(session, chunk, request.body, sums, broken=request.broken)
        if isinstance(session.outcome, StoredObject):
            return session.outcome.resource(request.host)
        headers = {"X-GUploader-UploadID": session.id}
        if session.content:
            headers["Range"] = f"bytes=0-{len(session.content) - 1}"
        return Response(308, headers)


def json_response(value: Any, status: int = 200) -> Response:
    """The whole of it: partial responses (`fields`) are not cut."""
    kind = {"Content-Type": "application/json; charset=UTF-8"}
    return Response(status, kind, json.dumps(value).encode())


def error_response(error: ApiError, *, media: bool = False) -> Response:
    """The API's error object; the error of a download is plain text, as the real service has it."""
    if media:
        kind = {"Content-Type": "text/html; charset=UTF-8"}
        return Response(error.status, kind, error.message.encode())
    detail = {"message": error.message, "domain": "global", "reason": error.reason}
    whole = {"code": error.status, "message": error.message, "errors": [detail]}
    return json_response({"error": whole}, error.status)


def _media(request: Request, found: StoredObject) -> Response:
    """An object's bytes, or the range of them that was asked for. The hashes are always those of
    the whole object."""
    headers = {
        "Content-Type": found.fields.get("contentType", "application/octet-stream"),
        "Accept-Ranges": "bytes",
        "ETag": found.etag,
        "Last-Modified": format_datetime(datetime.fromisoformat(found.created), usegmt=True),
        "x-goog-generation": str(found.generation),
        "x-goog-hash": f"crc32c={found.crc32c}",
    }
    asked = _RANGE.fullmatch(request.headers.get("range", ""))
    if not asked or asked[0] == "bytes=-":
        return Response(200, headers, found.content)
    if asked[1]:
        start, stop = int(asked[1]), min(int(asked[2] or found.size) + 1, found.size)
    else:
        start, stop = max(found.size - int(asked[2]), 0), found.size
    if start >= stop:
        raise ApiError(416, "requestedRangeNotSatisfiable", "Request range not satisfiable")
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{found.size}"
    return Response(206, headers, found.content[start:stop])


def _multipart(content_type: str, body: bytes) -> tuple[Json, bytes]:
    """The metadata and the media of a multipart/related body, whose lines may end in CRLF or LF."""
    boundary = _BOUNDARY.search(content_type)
    malformed = ApiError(400, "badRequest", "Malformed multipart body.")
    if not boundary:
        raise malformed
    head, tail = body[: 1 << 16], body[-1024:]
    # of one kind throughout: media may end in CR
    line = rb"\r\n" if head.partition(b"\n")[0].endswith(b"\r") else rb"\n"
    mark = re.escape(b"--" + boundary[1].encode())
    form = mark + line + b".*?" + line * 2 + b"(.*?)" + line + mark + line + b"(.*?)" + line * 2
    parts = re.match(form, head, re.DOTALL)
    end = re.search(line + mark + rb"--\s*\Z", tail)
    if not parts or not end:
        raise malformed
    fields = _json(parts[1])
    media_type = re.search(rb"content-type:\s*([^\r\n]+)", parts[2], re.IGNORECASE)
    if media_type:
        fields.setdefault("contentType", media_type[1].decode())
    return fields, body[parts.end() : len(body) - len(tail) + end.start()]


def _json(text: bytes) -> Json:
    try:
        return json.loads(text or b"{}")
    except ValueError as error:
        raise ApiError(400, "parseError", f"Parse Error: {error}") from error


def _checksums(headers: Mapping[str, str]) -> Json:
    """The checksum of the whole object from an `x-goog-hash: crc32c=...` header."""
    found = re.search(r"crc32c=([^,]+)", headers.get("x-goog-hash", ""))
    return {"crc32c": found[1]} if found else {}
