"""Who gets past the guard and the key of a server of ours, as any program on this machine may ask:
every route, every header."""

import asyncio
import gc
import re
import sqlite3
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from prefect.server.api.server import custom_internal_exception_handler
from prefect.settings import (
    PREFECT_API_DATABASE_CONNECTION_URL,
    PREFECT_SERVER_API_AUTH_STRING,
    PREFECT_UI_API_URL,
    temporary_settings,
)
from sqlalchemy.exc import OperationalError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from flows.server import guard
from flows.server import key as keys
from flows.server.guard import Guard, guarded, origins
from flows.server.key import as_header, entry, new_key, proof

PORT = 4200
OWN = f"http://127.0.0.1:{PORT}"
WS = OWN.replace("http", "ws")
ID = "0d3f6c1e-0000-4000-8000-000000000000"
KEY = new_key()
OPEN = {
    ("GET", "/api/health"),  # `true`
    ("GET", "/api/ready"),  # whether the database can be reached
    ("GET", "/ui-settings"),  # where the API is, and that it asks for a key
}
"""What answers without the key, beside the files of the pages and our own /lyceum/ paths."""


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    """Of the whole application, as it is served. Its database is never touched: nobody gets that
    far."""
    with temporary_settings({PREFECT_SERVER_API_AUTH_STRING: KEY, PREFECT_UI_API_URL: "/api"}):
        app = guarded("127.0.0.1", PORT, None)
        yield TestClient(app, base_url=OWN, raise_server_exceptions=False)


def routes(router: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every (method, path) of an application, `WEBSOCKET` among the methods; parameters of paths
    have a value."""
    for route in router.routes:
        path = prefix + re.sub(r"{[^}]*}", ID, getattr(route, "path", None) or "")
        if hasattr(route, "original_router"):  # FastAPI keeps an included router as it is
            yield from routes(route.original_router, prefix)
        elif getattr(route, "methods", None):
            yield from ((method, path) for method in route.methods)
        elif hasattr(route, "dependant"):
            yield "WEBSOCKET", path
        elif hasattr(route, "routes"):
            yield from routes(route, path)


def test_no_route_answers_without_the_key(client: TestClient) -> None:
    app = client.app.app  # type: ignore[attr-defined]
    found = sorted(set(routes(app)))
    documented = {f"/api{path}" for path in app.openapi()["paths"] if "{" not in path}
    assert documented <= {path for _, path in found}
    assert len(found) > 190
    answered = set()
    for method, path in found:
        if method == "WEBSOCKET":
            continue
        for said in (None, f"Basic {as_header('lyceum:guessed')}", f"Bearer {KEY}"):
            more: Any = {"headers": {"Authorization": said} if said else {}}
            more |= {"json": {}} if method in ("POST", "PUT", "PATCH") else {}
            code = client.request(method, path, follow_redirects=False, **more).status_code
            if code not in (401, 403, 404, 405):
                answered.add((method, path))
    assert answered == OPEN


def test_no_websocket_opens_without_the_key(client: TestClient) -> None:
    found = [path for method, path in routes(client.app.app) if method == "WEBSOCKET"]  # type: ignore[attr-defined]
    assert {"/api/events/in", "/api/events/out", "/api/logs/out"} < set(found)
    for path in found:
        for token in (None, "", "lyceum:guessed"):
            with client.websocket_connect(WS + path, ["prefect"]) as socket:
                socket.send_json({"type": "auth", "token": token})
                said = [socket.receive()]
                while said[-1]["type"] != "websocket.close":
                    said.append(socket.receive())
                assert "success" not in str(said), path
        with pytest.raises(WebSocketDisconnect), client.websocket_connect(WS + path):
            pass


def test_with_the_key_the_guard_lets_through(client: TestClient) -> None:
    """The control: the same request that is refused above."""
    headers = {"Authorization": f"Basic {as_header(KEY)}"}
    assert client.get("/api/version", headers=headers).status_code == 200
    with client.websocket_connect(f"{WS}/api/events/in", ["prefect"]) as socket:
        socket.send_json({"type": "auth", "token": KEY})
        assert socket.receive_json() == {"type": "auth_success"}


JSON, FORM = "application/json", "multipart/form-data"
HERE = {"Origin": OWN, "Sec-Fetch-Site": "same-origin"}
FOLLOWED = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
FOLLOWED |= {"Sec-Fetch-Dest": "document"}
FRONT = {"Host": "lyceum.example.org"}
PREFLIGHT = {"Origin": "http://evil.test", "Access-Control-Request-Method": "POST"}


@pytest.mark.parametrize(
    ("code", "method", "path", "headers", "body"),
    [
        (200, "POST", "/api/flows/", HERE, b"{}"),
        (200, "POST", "/api/flows/", {}, b"{}"),
        (200, "POST", "/api/flows/", {**HERE, "Content-Type": f"{JSON}; charset=utf-8"}, b"{}"),
        (200, "POST", "/api/flows/", {**HERE, "Content-Type": ""}, b""),
        (200, "GET", "/", {"Host": "localhost:4200"}, b""),
        (200, "GET", "/", {"Host": "LOCALHOST:4200", "Origin": "http://localhost:4200"}, b""),
        (200, "GET", "/", {"Host": "[::1]:4200"}, b""),
        (200, "GET", "/", FRONT | {"Origin": "https://lyceum.example.org"}, b""),
        (421, "GET", "/", {"Host": "evil.test:4200"}, b""),
        (421, "GET", "/api/health", {"Host": "127.0.0.1"}, b""),
        (421, "GET", "/", {"Host": "127.0.0.1:4201"}, b""),
        (421, "GET", "/", {"Host": "127.0.0.1:4200.evil.test"}, b""),
        (421, "GET", "/", {"Host": "evil.test@127.0.0.1:4200"}, b""),
        (421, "GET", "/", {"Host": ""}, b""),
        (421, "GET", "/", {"Host": "evil.test", "X-Forwarded-Host": "127.0.0.1:4200"}, b""),
        (403, "GET", "/", {"Origin": "null"}, b""),
        (403, "GET", "/", {"Origin": "http://localhost:4200"}, b""),
        (403, "GET", "/", {"Origin": "https://127.0.0.1:4200"}, b""),
        (403, "GET", "/", {"Origin": "http://127.0.0.1:4200.evil.test"}, b""),
        (403, "GET", "/", FRONT | {"Origin": "http://lyceum.example.org"}, b""),
        (403, "OPTIONS", "/api/flows/", PREFLIGHT, b""),
        (403, "HEAD", "/api/flows/", {"Sec-Fetch-Site": "cross-site"}, b""),
        (403, "GET", "/ui-settings", {"Sec-Fetch-Site": "same-site"}, b""),
        (403, "DELETE", "/api/flows/1", {"Sec-Fetch-Site": "cross-site"}, b""),
        (403, "GET", "/api/flows/1", FOLLOWED, b""),
        (200, "GET", "/runs", FOLLOWED, b""),
        (403, "GET", "/runs", FOLLOWED | {"Sec-Fetch-Dest": "iframe"}, b""),
        (403, "POST", "/runs", FOLLOWED, b""),
        (415, "POST", "/api/flows/", {"Content-Type": "text/plain"}, b"{}"),
        (415, "PATCH", "/api/flows/", {"Content-Type": "application/x-www-form-urlencoded"}, b"{}"),
        (415, "PUT", "/api/flows/", {"Content-Type": f"{FORM}; boundary={JSON}"}, b"{}"),
        (415, "DELETE", "/api/flows/", {"Content-Type": ""}, b"{}"),
        (404, "GET", "/docs", {}, b""),
        (404, "GET", "/docs/", {}, b""),
        (404, "GET", "/openapi.json", {}, b""),
    ],
)
def test_what_the_guard_lets_through(code, method, path, headers, body):
    """An application behind it that admits everything: what is refused, the guard refused."""

    async def admits(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    own = {"Host": f"127.0.0.1:{PORT}", "Content-Type": JSON if body else "", **headers}
    sent = {name: value for name, value in own.items() if value or name == "Host"}
    guard = Guard(admits, KEY, PORT, origins("127.0.0.1", PORT, "https://lyceum.example.org"))
    answer = TestClient(guard, base_url=OWN).request(method, path, headers=sent, content=body)
    assert answer.status_code == code
    assert answer.headers.get("access-control-allow-origin") is None
    if code == 200:
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


def test_a_websocket_of_a_foreign_page_is_refused_before_it_opens(client: TestClient) -> None:
    for headers in (
        {"Origin": "http://evil.test"},
        {"Origin": "null"},
        {"Host": "evil.test:4200"},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        with (
            pytest.raises(WebSocketDisconnect) as closed,
            client.websocket_connect(f"{WS}/api/events/in", ["prefect"], headers=headers),
        ):
            pass
        assert closed.value.code == 1008


def test_what_a_busy_database_refuses_is_asked_again(monkeypatch):
    """As from a page of Prefect's, which would show an error and start nothing."""
    asked = []

    async def create(request: Request) -> JSONResponse:
        asked.append(await request.json())
        if len(asked) < 3:
            raise OperationalError("INSERT", {}, sqlite3.OperationalError("database is locked"))
        return JSONResponse({"id": 1}, 201)

    monkeypatch.setattr(guard, "BUSY_SECONDS", (0.0, 0.0))
    path, body = f"/api/deployments/{ID}/create_flow_run", {"parameters": {"recipe": "quickstart"}}
    handlers = {Exception: custom_internal_exception_handler}
    app = Starlette(routes=[Route(path, create, methods=["POST"])], exception_handlers=handlers)
    client = TestClient(Guard(app, KEY, PORT, origins("127.0.0.1", PORT, None)), base_url=OWN)
    assert client.post(path, json=body).json() == {"id": 1}
    assert asked == [body] * 3

    monkeypatch.setattr(guard, "BUSY_SECONDS", (0.0,))
    asked.clear()
    client = TestClient(client.app, base_url=OWN, raise_server_exceptions=False)
    answer = client.post(path, json=body)
    assert (answer.status_code, answer.json()["exception_message"]) == (503, "Service Unavailable")
    assert len(asked) == 2


@pytest.mark.parametrize(("code", "received"), [(401, 0), (503, 3)])
def test_a_body_waits_until_it_is_asked_for_and_who_hangs_up_asks_once(code, received):
    """A stranger's body would fill the memory. Who is gone may have asked anew, and two runs would
    start."""
    pieces = [{"type": "http.request", "body": b"{", "more_body": True}]
    pieces += [{"type": "http.request", "body": b"}"}, {"type": "http.disconnect"}]
    left, asked, sent = iter(pieces), [], []

    async def prefect(scope: Any, receive: Any, send: Any) -> None:
        asked.append([await receive(), await receive()] if code == 503 else [])
        await send({"type": "http.response.start", "status": code, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive() -> Any:
        return next(left)

    async def send(message: Any) -> None:
        sent.append(message.get("status"))

    headers = [(b"host", f"127.0.0.1:{PORT}".encode()), (b"content-type", JSON.encode())]
    scope = {"type": "http", "method": "POST", "path": "/api/flows/", "headers": headers}
    app = Guard(prefect, KEY, PORT, origins("127.0.0.1", PORT, None))
    asyncio.run(app(scope, receive, send))
    assert asked == [pieces[:2] if code == 503 else []]
    assert len(pieces) - len(list(left)) == received
    assert sent == ([] if code == 503 else [401, None])


def test_a_refused_request_leaves_no_cursor_and_a_lock_is_waited_for_seconds(
    client, tmp_path, monkeypatch
):
    """Prefect's own wait of a minute, with a cursor that the collector finds meanwhile, stops all
    of its threads for that minute."""
    left: list[weakref.ref[Exception]] = []

    async def refuse(request: Request) -> None:
        error = OperationalError("INSERT", {}, sqlite3.OperationalError("database is locked"))
        error.circle = error  # type: ignore[attr-defined]  # as tracebacks make them
        left.append(weakref.ref(error))
        raise error

    async def busy_timeout() -> int:
        from prefect.server.database import provide_database_interface

        async with (await provide_database_interface().engine()).connect() as connection:
            return int((await connection.exec_driver_sql("PRAGMA busy_timeout")).scalar_one())

    monkeypatch.setattr(guard, "BUSY_SECONDS", (0.0, 0.0))
    handlers = {Exception: custom_internal_exception_handler}
    app = Starlette(routes=[Route("/api", refuse, methods=["POST"])], exception_handlers=handlers)
    asked = Guard(app, KEY, PORT, origins("127.0.0.1", PORT, None))
    gc.disable()
    try:
        again = TestClient(asked, base_url=OWN, raise_server_exceptions=False)
        assert again.post("/api", json={}).status_code == 503
        assert [one() for one in left[:-1]] == [None] * len(guard.BUSY_SECONDS)
    finally:
        gc.enable()
    url = f"sqlite+aiosqlite:///{tmp_path}/prefect.db"
    with temporary_settings({PREFECT_API_DATABASE_CONNECTION_URL: url}):
        assert asyncio.run(busy_timeout()) == 1000 * guard.LOCK_SECONDS


def test_a_link_lets_one_browser_in_once_and_expires(client, monkeypatch):
    def enter(token: object) -> tuple[int, str]:
        answer = client.post("/lyceum/enter", json={"token": token})
        return answer.status_code, answer.text

    token = entry(KEY)
    assert KEY not in token
    assert enter(token) == (200, as_header(KEY))
    assert enter(token)[0] == 403
    forged = (entry("lyceum:other"), f"9{entry(KEY)}", entry(KEY) + "0")
    for wrong in ("", None, 3, [], "1.2.3", *forged):
        assert enter(wrong)[0] == 403, wrong
    late = entry(KEY)
    later = time.time() + keys.ENTRY_SECONDS + 1
    monkeypatch.setattr(keys.time, "time", lambda: later)
    assert enter(late)[0] == 403
    large = {"content": b"x" * 10**6, "headers": {"Content-Type": JSON}}
    assert client.post("/lyceum/enter", **large).status_code == 403


def test_a_proof_is_of_one_port_and_one_nonce_and_opens_nothing(client: TestClient) -> None:
    given = client.get("/lyceum/proof", params={"nonce": "n"}).text
    assert given == proof(KEY, "n", PORT)
    others = (proof(KEY, "n", PORT + 1), proof(KEY, "m", PORT), proof("lyceum:other", "n", PORT))
    assert given not in others
    forged = client.get("/lyceum/proof", params={"nonce": "9999999999.x"}).text
    assert client.post("/lyceum/enter", json={"token": f"9999999999.x.{forged}"}).status_code == 403


def test_the_pages_of_the_server_are_served(client: TestClient) -> None:
    for path in ("/", "/v2/", "/lyceum/enter"):
        answer = client.get(path, headers={"Accept": "text/html"})
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert KEY not in answer.text
    assert client.get("/ui-settings").json()["api_url"] == "/api"
