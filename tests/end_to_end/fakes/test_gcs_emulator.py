"""The fake of Cloud Storage keeps the promises that the store builds on, to both client libraries:
a conformance list."""

import base64
import io
import json
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import google_crc32c
import pytest
import requests
from google.api_core import exceptions as gcs_errors
from google.cloud.storage._media.requests import ResumableUpload
from google.cloud.storage.bucket import Bucket

from tests.fakes.gcs_emulator import Emulator
from tests.fakes.gcs_requests import ask, path, session, upload

CHUNK = 1 << 18


@pytest.mark.parametrize("form", ["multipart", "media", "resumable"])
def test_of_sixteen_creators_one_wins(gcs: Emulator, gcs_bucket: str, form: str) -> None:
    ready = [
        upload(gcs, gcs_bucket, "won", b"%02d" % n * 524_288, form, ifGenerationMatch=0)
        for n in range(16)
    ]
    gcs.faults.add("slow", delay=0.2)  # so that all are there before the first is executed
    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(lambda request: request()[0], ready))
    assert sorted(statuses) == [200] + [412] * 15
    assert gcs.read(gcs_bucket, "won") == b"%02d" % statuses.index(200) * 524_288


def test_create_only_holds_through_both_clients(gcs_client: Bucket, gcs_fs: Any) -> None:
    for data, chunk in ((b"small", None), (os.urandom(3 * CHUNK), CHUNK)):
        gcs_client.blob(f"{chunk}", chunk_size=chunk).upload_from_string(
            data, if_generation_match=0
        )
        with pytest.raises(gcs_errors.PreconditionFailed):
            gcs_client.blob(f"{chunk}", chunk_size=chunk).upload_from_string(
                b"other" * CHUNK, if_generation_match=0
            )
        with pytest.raises(FileExistsError):
            gcs_fs.pipe_file(f"{gcs_client.name}/{chunk}", b"other", mode="create")
        assert gcs_fs.cat_file(f"{gcs_client.name}/{chunk}") == data


@pytest.mark.parametrize(
    ("method", "where", "body"),
    [
        ("POST", "/upload/storage/v1/b/{b}/o?uploadType=media&name=x&", b"new"),
        ("POST", "/upload/storage/v1/b/{b}/o?uploadType=resumable&name=x&", b"{}"),
        ("GET", "/storage/v1/b/{b}/o/x?", b""),
        ("GET", "/download/storage/v1/b/{b}/o/x?alt=media&", b""),
        ("PATCH", "/storage/v1/b/{b}/o/x?", b'{"contentType": "text/x"}'),
        ("DELETE", "/storage/v1/b/{b}/o/x?", b""),
        ("POST", "/storage/v1/b/{b}/o/x/compose?", b'{"sourceObjects": [{"name": "y"}]}'),
        ("POST", "/storage/v1/b/{b}/o/y/rewriteTo/b/{b}/o/x?", b""),
        ("POST", "/storage/v1/b/{b}/o/y/copyTo/b/{b}/o/x?", b""),
        ("POST", "/storage/v1/b/{b}/o/y/moveTo/o/x?", b""),
    ],
)
def test_every_verb_heeds_every_precondition(
    gcs: Emulator, gcs_client: Bucket, method: str, where: str, body: bytes
) -> None:
    """With x at metageneration 2: failed preconditions change nothing, and met ones succeed."""
    for name in ("x", "y"):
        gcs_client.blob(name).upload_from_string(name)
    blob = gcs_client.get_blob("x")
    blob.content_type = "text/plain"
    blob.patch()
    differs = 304 if method == "GET" else 412
    for condition, status in (
        ("ifGenerationMatch=0", 412),
        (f"ifGenerationMatch={blob.generation + 1}", 412),
        (f"ifGenerationNotMatch={blob.generation}", differs),
        ("ifMetagenerationMatch=1", 412),
        ("ifMetagenerationNotMatch=2", differs),
    ):
        assert ask(gcs, method, where.format(b=gcs_client.name) + condition, body)[0] == status, (
            condition
        )
        now = gcs_client.get_blob("x")
        assert (now.generation, now.metageneration, now.content_type) == (
            blob.generation,
            2,
            "text/plain",
        )
    met = f"ifGenerationMatch={blob.generation}&ifGenerationNotMatch=0&ifMetagenerationMatch=2"
    assert ask(gcs, method, where.format(b=gcs_client.name) + met, body)[0] in (200, 204)


def test_resumable_preconditions_hold_at_the_end_too(gcs: Emulator, gcs_bucket: str) -> None:
    late = upload(gcs, gcs_bucket, "x", b"late", "resumable", ifGenerationMatch=0)
    assert upload(gcs, gcs_bucket, "x", b"first", ifGenerationMatch=0)()[0] == 200
    assert late()[0] == 412
    assert gcs.read(gcs_bucket, "x") == b"first"
    gcs.delete(gcs_bucket, "x")
    assert late()[0] == 412
    assert gcs.objects(gcs_bucket) == {}


def test_a_delete_names_its_generation(gcs_client: Bucket) -> None:
    gcs_client.blob("x").upload_from_string(b"1")
    old = gcs_client.get_blob("x").generation
    gcs_client.blob("x").upload_from_string(b"2")
    new = gcs_client.get_blob("x").generation
    assert new > old
    with pytest.raises(gcs_errors.PreconditionFailed):
        gcs_client.blob("x").delete(if_generation_match=old)
    with pytest.raises(gcs_errors.NotFound):
        gcs_client.blob("x", generation=old).delete()
    gcs_client.blob("x").delete(if_generation_match=new)
    with pytest.raises(gcs_errors.NotFound):
        gcs_client.blob("x").delete(if_generation_match=new)


def test_a_reader_keeps_the_generation_it_began(gcs: Emulator, gcs_client: Bucket) -> None:
    """A pinned generation is gone when overwritten, but an answer under way ends as it began."""
    data = os.urandom(16 << 20)
    gcs_client.blob("x").upload_from_string(data)
    pinned = gcs_client.blob("x", generation=gcs_client.get_blob("x").generation)
    assert pinned.download_as_bytes() == data
    with socket.create_connection(
        (str(urlsplit(gcs.url).hostname), int(urlsplit(gcs.url).port or 0))
    ) as raw:
        raw.sendall(
            f"GET {path(gcs_client.name, 'x', alt='media')} HTTP/1.1\r\nHost: x\r\nConnection:"
            " close\r\n\r\n".encode()
        )
        got = raw.recv(1000)
        gcs_client.blob("x").upload_from_string(b"other")
        while piece := raw.recv(1 << 20):
            got += piece
    assert got.endswith(data)
    with pytest.raises(gcs_errors.NotFound):
        pinned.download_as_bytes()


@pytest.mark.parametrize("size", [0, 1, 300_000, 9_000_000])
def test_each_client_reads_what_the_other_wrote(
    gcs: Emulator, gcs_client: Bucket, gcs_fs: Any, size: int
) -> None:
    data = os.urandom(size)
    name = "a dir/ü+%2F?#&.bin"
    gcs_client.blob(name).upload_from_string(data)
    assert gcs_fs.cat_file(f"{gcs_client.name}/{name}") == data
    assert gcs_fs.info(f"{gcs_client.name}/{name}")["size"] == size
    gcs_fs.pipe_file(f"{gcs_client.name}/piped", data)
    with gcs_fs.open(f"{gcs_client.name}/written", "wb", block_size=CHUNK) as file:
        file.write(data)
    assert (
        gcs_client.blob("piped").download_as_bytes()
        == gcs_client.blob("written").download_as_bytes()
        == data
    )
    assert gcs.objects(gcs_client.name) == {name: size, "piped": size, "written": size}


@pytest.mark.parametrize("data", [b"\r", b"\n", b"\r\n", b"\r\n\r\n--\r\n", b"\n\n\r"])
def test_line_ends_in_the_data_stay(
    gcs: Emulator, gcs_client: Bucket, gcs_fs: Any, data: bytes
) -> None:
    """gcsfs writes multipart bodies with LF, the official client with CRLF; both around bytes that
    may look like either."""
    gcs_fs.pipe_file(f"{gcs_client.name}/lf", data)
    gcs_client.blob("crlf").upload_from_string(data)
    assert upload(gcs, gcs_client.name, "raw", data, "multipart")()[0] == 200
    assert [gcs.read(gcs_client.name, name) for name in ("lf", "crlf", "raw")] == [data] * 3


def test_checksums_are_told_and_checked(gcs: Emulator, gcs_client: Bucket) -> None:
    data = os.urandom(1000)
    crc32c = base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()
    gcs_client.blob("x").upload_from_string(data, checksum="md5")
    blob = gcs_client.get_blob("x")
    assert (blob.crc32c, blob.size, blob.metageneration) == (crc32c, 1000, 1)
    _, headers, _ = ask(gcs, "GET", path(gcs_client.name, "x", alt="media"))
    assert headers["x-goog-hash"] == f"crc32c={crc32c},md5={blob.md5_hash}"
    assert (headers["x-goog-generation"], headers["x-goog-stored-content-length"]) == (
        str(blob.generation),
        "1000",
    )

    wrong = gcs_client.blob("y")
    wrong.crc32c = "AAAAAA=="
    with pytest.raises(gcs_errors.BadRequest, match="doesn't match calculated"):
        wrong.upload_from_string(data, checksum=None)
    media = f"/upload/storage/v1/b/{gcs_client.name}/o?uploadType=media&name=y"
    for method, where in (("PUT", session(gcs, gcs_client.name, "y")), ("POST", media)):
        assert ask(gcs, method, where, data, x_goog_hash="crc32c=AAAAAA==")[0] == 400
    assert list(gcs.objects(gcs_client.name)) == ["x"]


def test_a_resumable_upload_survives_a_broken_connection(gcs: Emulator, gcs_bucket: str) -> None:
    """2.5 units of 4 arrive before the connection ends: two whole ones are kept, a status query
    says so, the rest completes the object."""
    data = os.urandom(4 * CHUNK)
    address = urlsplit(gcs.url)
    location = session(gcs, gcs_bucket, "x")
    with socket.create_connection((str(address.hostname), int(address.port or 0))) as raw:
        head = (
            f"PUT {location.removeprefix(gcs.url)} HTTP/1.1\r\nHost: x\r\nContent-Length:"
            f" {len(data)}\r\n\r\n"
        )
        raw.sendall(head.encode() + data[: CHUNK * 5 // 2])
    deadline = time.monotonic() + 120
    while (answer := ask(gcs, "PUT", location, Content_Range=f"bytes */{len(data)}"))[
        0
    ] != 308 or "range" not in answer[1]:
        assert time.monotonic() < deadline, answer
    assert answer[1]["range"] == f"bytes=0-{2 * CHUNK - 1}"
    assert gcs.objects(gcs_bucket) == {}
    rest = f"bytes {2 * CHUNK}-{len(data) - 1}/{len(data)}"
    status, _, body = ask(gcs, "PUT", location, data[2 * CHUNK :], Content_Range=rest)
    assert (status, json.loads(body)["size"]) == (200, str(len(data)))
    assert gcs.read(gcs_bucket, "x") == data
    assert ask(gcs, "PUT", location, Content_Range="bytes */*")[2] == body


def test_the_official_uploader_recovers(gcs: Emulator, gcs_bucket: str) -> None:
    """A chunk is cut short and its acknowledgement lost: recover() asks how far the upload is and
    goes on from there."""
    data = os.urandom(6 * CHUNK)
    url = f"{gcs.url}/upload/storage/v1/b/{gcs_bucket}/o?uploadType=resumable"
    uploader = ResumableUpload(url, 4 * CHUNK, retry=None)
    with requests.Session() as transport:
        uploader.initiate(transport, io.BytesIO(data), {"name": "x"}, "text/plain")
        partial = gcs.faults.add("partial", keep=3 * CHUNK, times=1)
        gcs.faults.add("reset_after", kind="upload", times=1)
        with pytest.raises(requests.ConnectionError):
            uploader.transmit_next_chunk(transport)
        uploader._make_invalid()
        uploader.recover(transport)
        assert (uploader.bytes_uploaded, gcs.faults.fired(partial)) == (3 * CHUNK, 1)
        uploader.transmit_next_chunk(transport)
    assert uploader.finished
    assert gcs.read(gcs_bucket, "x") == data


def test_chunks_are_checked(gcs: Emulator, gcs_bucket: str) -> None:
    location = session(gcs, gcs_bucket, "x")
    short = ask(gcs, "PUT", location, bytes(1024), Content_Range="bytes 0-1023/*")
    assert (short[0], b"required to be equal or greater than 262144" in short[2]) == (400, True)
    assert (
        ask(gcs, "PUT", location, bytes(CHUNK), Content_Range=f"bytes {CHUNK}-{2 * CHUNK - 1}/*")[0]
        == 400
    )
    assert (
        ask(gcs, "PUT", location, bytes(CHUNK + 5), Content_Range=f"bytes 0-{CHUNK + 4}/*")[1][
            "range"
        ]
        == f"bytes=0-{CHUNK - 1}"
    )
    again = ask(
        gcs, "PUT", location, b"x" * (CHUNK + 1), Content_Range=f"bytes 0-{CHUNK}/{CHUNK + 1}"
    )
    assert again[0] == 200
    assert gcs.read(gcs_bucket, "x") == bytes(CHUNK) + b"x"


def test_a_cancelled_upload_is_over(gcs: Emulator, gcs_bucket: str) -> None:
    location = session(gcs, gcs_bucket, "x")
    assert ask(gcs, "DELETE", location)[0] == 499
    assert ask(gcs, "PUT", location, b"data")[0] == 499
    assert ask(gcs, "PUT", location.replace("upload_id=", "upload_id=0"), b"data")[0] == 404
    assert gcs.objects(gcs_bucket) == {}


def test_listings_come_in_pages_and_in_order(gcs_client: Bucket, gcs_fs: Any) -> None:
    names = [f"{letter}/{n:02d}" for letter in "ab" for n in range(12)] + ["c"]
    for name in reversed(names):
        gcs_client.blob(name).upload_from_string(name)
    pages = list(gcs_client.list_blobs(page_size=10).pages)
    assert [blob.name for page in pages for blob in page] == names
    assert len(pages) == 3
    top = gcs_client.list_blobs(delimiter="/", page_size=1)
    assert ([blob.name for blob in top], top.prefixes, top.page_number) == (["c"], {"a/", "b/"}, 3)
    assert [
        blob.name
        for blob in gcs_client.list_blobs(prefix="a/", start_offset="a/03", end_offset="a/05")
    ] == names[3:5]
    assert list(gcs_client.list_blobs(prefix="nothing")) == []
    assert [blob.name for blob in gcs_client.list_blobs(prefix="a/", match_glob="*/*3")] == ["a/03"]
    assert list(gcs_client.list_blobs(match_glob="*3")) == []  # * stands for no slash
    assert sorted(gcs_fs.find(gcs_client.name)) == [f"{gcs_client.name}/{name}" for name in names]
    assert sorted(gcs_fs.ls(gcs_client.name)) == [
        f"{gcs_client.name}/{name}" for name in ("a", "b", "c")
    ]


def test_a_listing_answers_only_what_it_was_asked(gcs: Emulator, gcs_client: Bucket) -> None:
    """`fields` is heeded, so a client cannot read what it did not ask for; what is not offered is
    refused."""
    gcs_client.blob("x").upload_from_string(b"12", content_type="text/x")
    listing = ask(
        gcs, "GET", f"/storage/v1/b/{gcs_client.name}/o?fields=items(name,size),nextPageToken"
    )
    assert json.loads(listing[2]) == {"items": [{"name": "x", "size": "2"}]}
    assert json.loads(
        ask(gcs, "GET", f"/storage/v1/b/{gcs_client.name}/o?fields=items/name,kind")[2]
    )["items"] == [{"name": "x"}]
    assert ask(gcs, "GET", f"/storage/v1/b/{gcs_client.name}/o?matchGlob=**")[0] == 400
    assert ask(gcs, "GET", f"/storage/v1/b/{gcs_client.name}/o?versions=true")[0] == 400


def test_ranges(gcs: Emulator, gcs_client: Bucket, gcs_fs: Any) -> None:
    gcs_client.blob("x").upload_from_string(b"0123456789")
    assert (
        gcs_client.blob("x").download_as_bytes(start=2, end=4)
        == gcs_fs.cat_file(f"{gcs_client.name}/x", 2, 5)
        == b"234"
    )
    assert (
        gcs_client.blob("x").download_as_bytes(start=7)
        == gcs_fs.cat_file(f"{gcs_client.name}/x", -3)
        == b"789"
    )
    status, headers, body = ask(
        gcs, "GET", path(gcs_client.name, "x", alt="media"), Range="bytes=-4"
    )
    assert (status, body, headers["content-range"]) == (206, b"6789", "bytes 6-9/10")
    assert (
        ask(gcs, "GET", path(gcs_client.name, "x", alt="media"), Range="bytes=4-99")[2] == b"456789"
    )
    with pytest.raises(gcs_errors.RequestRangeNotSatisfiable):
        gcs_client.blob("x").download_as_bytes(start=10)


def test_copies_and_compositions(gcs_client: Bucket, gcs_fs: Any) -> None:
    for name in ("a", "b"):
        gcs_client.blob(name).upload_from_string(name * 3, content_type="text/x")
    gcs_client.copy_blob(gcs_client.blob("a"), gcs_client, "copied")
    assert gcs_client.blob("rewritten").rewrite(gcs_client.blob("a")) == (None, 3, 3)
    gcs_client.blob("composed").compose([gcs_client.blob("a"), gcs_client.blob("b")])
    gcs_fs.cp_file(f"{gcs_client.name}/b", f"{gcs_client.name}/d/cp")
    gcs_fs.mv_file(f"{gcs_client.name}/b", f"{gcs_client.name}/d/mv")
    texts = {blob.name: blob.download_as_text() for blob in gcs_client.list_blobs()}
    assert texts == {
        "a": "aaa",
        "copied": "aaa",
        "rewritten": "aaa",
        "composed": "aaabbb",
        "d/cp": "bbb",
        "d/mv": "bbb",
    }
    composed = gcs_client.get_blob("composed")
    assert (composed.component_count, composed.md5_hash) == (2, None)
    assert gcs_client.get_blob("copied").content_type == "text/x"
    with pytest.raises(gcs_errors.PreconditionFailed):
        gcs_client.blob("stale").rewrite(gcs_client.blob("a"), if_source_generation_match=1)


def test_metadata_is_merged(gcs_client: Bucket) -> None:
    gcs_client.blob("x").upload_from_string(b"x")
    for change in ({"a": "1", "b": "2"}, {"a": None, "c": "3"}):
        blob = gcs_client.blob("x")
        blob.metadata = change
        blob.patch()
    now = gcs_client.get_blob("x")
    assert (now.metadata, now.metageneration) == ({"b": "2", "c": "3"}, 3)


def test_buckets_tell_where_they_are(gcs: Emulator, gcs_client: Bucket) -> None:
    client = gcs_client.client
    assert (
        client.get_bucket(gcs_client.name).location,
        client.get_bucket(gcs_client.name).location_type,
    ) == ("US-CENTRAL1", "region")
    client.create_bucket(f"{gcs_client.name}-eu", location="eu")
    assert client.get_bucket(f"{gcs_client.name}-eu").location_type == "multi-region"
    with pytest.raises(gcs_errors.Conflict):
        client.create_bucket(gcs_client.name)


def test_errors_are_the_services(gcs: Emulator, gcs_client: Bucket, gcs_fs: Any) -> None:
    with pytest.raises(gcs_errors.NotFound, match="The specified bucket does not exist"):
        list(gcs_client.client.list_blobs("no-such-bucket"))
    with pytest.raises(gcs_errors.NotFound, match=f"No such object: {gcs_client.name}/x"):
        gcs_client.blob("x").reload()
    with pytest.raises(gcs_errors.NotFound, match=f"No such object: {gcs_client.name}/x"):
        gcs_client.blob("x").download_as_bytes()
    with pytest.raises(FileNotFoundError):
        gcs_fs.cat_file(f"{gcs_client.name}/x")
    assert (
        ask(gcs, "GET", path(gcs_client.name, "x", alt="media"))[2].decode()
        == f"No such object: {gcs_client.name}/x"
    )
    error = json.loads(ask(gcs, "GET", path(gcs_client.name, "x"))[2])["error"]
    assert (error["code"], error["errors"][0]["reason"]) == (404, "notFound")


def test_requester_pays_buckets_want_a_payer(
    gcs: Emulator, gcs_client: Bucket, gcs_fs: Any
) -> None:
    name = gcs.create_bucket(f"{gcs_client.name}-pays", requester_pays=True)
    with pytest.raises(
        gcs_errors.BadRequest,
        match=r"Bucket is a requester pays bucket but no user project provided\.",
    ):
        gcs_client.client.bucket(name).blob("x").upload_from_string(b"x")
    with pytest.raises(ValueError, match="Bucket is requester pays"):
        gcs_fs.cat_file(f"{name}/x")
    gcs_client.client.bucket(name, user_project="payer").blob("x").upload_from_string(b"x")
    assert gcs.objects(name) == {"x": 1}
