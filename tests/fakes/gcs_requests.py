"""Plain requests to the fake of Cloud Storage, for what a client library would hide or retry."""

import http.client
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit

from tests.fakes.gcs_emulator import Emulator

Answer = tuple[int, dict[str, str], bytes]


def ask(gcs: Emulator, method: str, where: str, body: bytes = b"", **headers: str) -> Answer:
    """One request: status, headers by lower-case name, body. `where` is a path or a whole URL;
    `Content_Type=...` sets a header."""
    connection = http.client.HTTPConnection(urlsplit(gcs.url).netloc, timeout=30)
    try:
        connection.request(
            method, where, body, {name.replace("_", "-"): value for name, value in headers.items()}
        )
        answer = connection.getresponse()
        return (
            answer.status,
            {name.lower(): value for name, value in answer.getheaders()},
            answer.read(),
        )
    finally:
        connection.close()


def path(bucket: str, name: str, **query: Any) -> str:
    return f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}?" + "&".join(
        f"{key}={value}" for key, value in query.items()
    )


def session(gcs: Emulator, bucket: str, name: str) -> str:
    """The URL of a resumable upload that has begun."""
    return ask(
        gcs,
        "POST",
        f"/upload/storage/v1/b/{bucket}/o?uploadType=resumable&name={quote(name, safe='')}",
        b"{}",
    )[1]["location"]


def upload(
    gcs: Emulator, bucket: str, name: str, data: bytes, form: str = "media", **query: Any
) -> Callable[[], Answer]:
    """An upload in one of the three forms, made ready: calling the result sends its last
    request."""
    where = f"/upload/storage/v1/b/{bucket}/o?uploadType={form}&name={quote(name, safe='')}"
    where += "".join(f"&{key}={value}" for key, value in query.items())
    if form == "media":
        return lambda: ask(gcs, "POST", where, data)
    if form == "multipart":
        body = (
            b"--b\r\nContent-Type: application/json\r\n\r\n{}\r\n--b\r\nContent-Type:"
            b" text/plain\r\n\r\n" + data + b"\r\n--b--\r\n"
        )
        return lambda: ask(gcs, "POST", where, body, Content_Type="multipart/related; boundary=b")
    location = ask(gcs, "POST", where, b"{}")[1]["location"]
    return lambda: ask(gcs, "PUT", location, data)
