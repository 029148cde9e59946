"""`python -m flows.server.guard HOST PORT [ORIGIN]`: Prefect's server behind a guard, an ASGI
application that admits requests of the server's own pages and of our own processes. It reads the
key from PREFECT_SERVER_API_AUTH_STRING, and starts what `prefect server start` starts
(`prefect.cli._server_utils`, 3.8.8).

Prefect asks for the key. It does not check where a request comes from, and a browser sends requests
for every page that it shows. So the guard checks, in this order:

1. `Host` must be a name of this server. A page whose name was rebound to this machine has its own.
2. A browser says who asks (`Origin`, `Sec-Fetch-Site`): that must be a page of this very origin.
   A person who follows a link from elsewhere to a page (not to the API) is let through: pages are
   files that everybody has, and hold no data.
3. What changes something has a body of JSON, or none. Other types are what a form of any page
   sends.

Every answer tells the browser to run no script and to show no frame from elsewhere, since our page,
like Prefect's login page, keeps the key in the local storage of its origin.

What it admitted and Prefect refuses because its database is busy, the guard asks again: Prefect's
clients do that, its pages do not, and a click on Submit would start nothing.

Prefect can hang for as long as SQLite waits for a lock, which is a minute: when the garbage
collector, in the main thread and with the interpreter's lock, closes a cursor that a failed
statement left behind, it waits for that cursor's connection, which another thread has waiting for
the lock of a third, which cannot go on. So the guard collects what a refused request left as soon
as it is refused, and connections wait for LOCK_SECONDS at most.
"""

import asyncio
import gc
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flows.server.key import as_header, entered, in_url, proof
from flows.server.port import bound
from infra.importing import importing

READING = ("GET", "HEAD", "OPTIONS")
CLOSED = ("/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json")
"""FastAPI's own pages. They ask for no key and run scripts from another machine in our origin."""

MOST_BYTES = 2000
"""The most bytes of the body by which a browser asks for admission."""

BUSY_SECONDS = (0.1, 0.3, 1.0, 3.0)
"""How long to wait, each time, before Prefect is asked again that was busy."""

LOCK_SECONDS = 5.0
"""How long a statement waits for the lock of an SQLite database. Prefect itself says 60."""

# 'unsafe-eval' is for the graph of a run, which both of Prefect's pages draw with PixiJS.
HEADERS = {
    "content-security-policy": (
        "default-src 'self'; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline';"
        " img-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; object-src"
        " 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

ENTRY_PAGE = """<!doctype html><meta charset="utf-8"><title>Lyceum</title>
<p id="said">One moment ...</p><script src="/lyceum/enter.js"></script>
"""
ENTRY_SCRIPT = """const [, token, page] = location.hash.match(/^#([^/]*)(.*)$/) ?? [];
history.replaceState(null, "", location.pathname);
const headers = { "Content-Type": "application/json" };
const asked = { method: "POST", headers, body: JSON.stringify({ token }) };
fetch("/lyceum/enter", asked).then(async (answer) => {
  if (!answer.ok) { document.getElementById("said").textContent = await answer.text(); return; }
  localStorage.setItem("prefect-password", await answer.text());
  location.replace(location.origin + (page || "/"));
});
"""
USED = (
    "This link was used before, or has expired. `lyceum serve`, once more, in a terminal prints a"
    " new one."
)


class Guard:
    """The application before `app`. `origins` maps each name that `Host` may have to the origin of
    its pages."""

    def __init__(self, app: ASGIApp, key: str, port: int, origins: Mapping[str, str]) -> None:
        self.app, self._key, self._port, self._origins = app, key, port, origins
        self._used: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if refusal := self.refusal(scope):
            code, why = refusal
            if scope["type"] == "http":
                return await _page(f"Refused: {why}.\n", code)(scope, receive, send)
            # before it is accepted: HTTP's 403
            return await send({"type": "websocket.close", "code": 1008, "reason": why})

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        app = self.app
        if scope["type"] == "http":
            if scope["path"].startswith("/lyceum/"):
                app = await self._own(Request(scope, receive))
            elif scope["method"] not in READING:
                return await _until_free(app, scope, receive, send_with_headers)
        await app(scope, receive, send_with_headers)

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Why a request is refused, with HTTP's code for it; None when it is admitted."""
        told, method = Headers(scope=scope).getlist, scope.get("method", "GET")
        hosts = [host.lower() for host in told("host")]
        if len(hosts) != 1 or hosts[0] not in self._origins:
            return 421, f"this server answers to {', '.join(self._origins)} only"
        origin, site = told("origin"), told("sec-fetch-site")
        if origin not in ([], [self._origins[hosts[0]]]):
            return 403, "a page of another origin asked"
        follows = (
            method == "GET"
            and told("sec-fetch-mode") == ["navigate"]
            and told("sec-fetch-dest") == ["document"]
        )
        if site not in ([], ["same-origin"], ["none"]) and not (
            follows and not scope["path"].startswith("/api")
        ):
            return 403, "a page of another site asked"
        body = told("content-length") not in ([], ["0"]) or told("transfer-encoding")
        kinds = [kind.partition(";")[0].strip().lower() for kind in told("content-type")]
        if method not in READING and body and kinds != ["application/json"]:
            return 415, "a body must be application/json"
        if scope["path"].rstrip("/") in CLOSED:
            return 404, "this page is closed"
        return None

    async def _own(self, request: Request) -> Response:
        match request.method, request.scope["path"]:
            case "GET", "/lyceum/proof":
                nonce = request.query_params.get("nonce", "")
                return _page(proof(self._key, nonce, self._port))
            case "GET", "/lyceum/enter":
                return _page(ENTRY_PAGE, kind="text/html")
            case "GET", "/lyceum/enter.js":
                return _page(ENTRY_SCRIPT, kind="text/javascript")
            case "POST", "/lyceum/enter":
                token = await _token(request)
                if token in self._used or not entered(self._key, token):
                    return _page(USED, 403)
                self._used.add(token)
                return _page(as_header(self._key))
        return _page("there is no such page", 404)


async def _until_free(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Ask `app`, and again while it answers 503: so Prefect says that it did nothing, because
    another wrote to SQLite between what a request read and what it would write. Whoever hangs up
    meanwhile asks no more: he may have asked anew."""
    heard: list[Message] = []
    for seconds in BUSY_SECONDS:
        if not await _busy(app, scope, _replayed(heard, receive), send):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                hears = _replayed(heard, receive)
                while (await hears())["type"] != "http.disconnect":
                    pass
                return
    await app(scope, _replayed(heard, receive), send)


def _replayed(heard: list[Message], receive: Receive) -> Receive:
    """A `receive` that begins with what was heard before, and adds to it. Nothing is received that
    the application does not ask for: one that refuses a caller leaves his body where it is."""
    at = 0

    async def again() -> Message:
        nonlocal at
        if at == len(heard):
            heard.append(await receive())
        at += 1
        return heard[at - 1]

    return again


async def _busy(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> bool:
    """Whether `app` answers 503; any other answer is sent."""
    busy = False

    async def unless_busy(message: Message) -> None:
        nonlocal busy
        busy |= message.get("status") == 503
        if not busy:
            await send(message)

    try:
        await app(dict(scope), receive, unless_busy)
    except Exception:  # Starlette raises once more what it has answered
        if not busy:
            raise
    if busy:
        gc.collect()
    return busy


async def _token(request: Request) -> str:
    """The token in a body of JSON; empty without one."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BYTES:
            return ""
    try:
        token = json.loads(body)["token"]
    except (ValueError, TypeError, KeyError):
        return ""
    return token if isinstance(token, str) else ""


def _page(text: str, code: int = 200, kind: str = "text/plain") -> Response:
    return Response(text, code, {"cache-control": "no-store"}, f"{kind}; charset=utf-8")


def origins(host: str, port: int, front: str | None) -> dict[str, str]:
    """The valid values of `Host`, each with the origin of its pages.

    Args:
        host: the address that the server listens on.
        front: the origin of a TLS proxy in front of it, `https://NAME[:PORT]`.
    """
    names = dict.fromkeys(["127.0.0.1", "localhost", "[::1]", in_url(host)])
    own = [name if port == 80 else f"{name}:{port}" for name in names]
    return {name: f"http://{name}" for name in own} | (
        {urlsplit(front).netloc: front} if front else {}
    )


def guarded(host: str, port: int, front: str | None) -> Guard:
    """Prefect's application behind the guard. Raises RuntimeError when there is no key."""
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    key = get_current_settings().server.api.auth_string
    if key is None:
        raise RuntimeError(
            "PREFECT_SERVER_API_AUTH_STRING is not set: a server of ours asks for a key"
        )
    wait_less()
    return Guard(create_app(final=True), key.get_secret_value(), port, origins(host, port, front))


def wait_less() -> None:
    """Have connections to SQLite wait for LOCK_SECONDS, whatever those who open them say."""
    from sqlalchemy import event
    from sqlalchemy.dialects.sqlite.aiosqlite import AsyncAdapt_aiosqlite_connection
    from sqlalchemy.pool import Pool

    @event.listens_for(Pool, "checkout")
    def _(connection: Any, record: Any, _: Any) -> None:
        if isinstance(connection, AsyncAdapt_aiosqlite_connection) and "waits" not in record.info:
            record.info["waits"] = LOCK_SECONDS
            cursor = connection.cursor()
            cursor.execute(f"PRAGMA busy_timeout = {1000 * LOCK_SECONDS:.0f}")
            cursor.close()


def main(host: str, port: str, front: str | None = None) -> None:
    """Serve until SIGTERM."""
    from prefect.settings import get_current_settings

    settings = get_current_settings().server
    with importing():
        application = guarded(host, int(port), front)
    config = uvicorn.Config(
        application,
        timeout_keep_alive=settings.api.keepalive_timeout,
        ws_ping_interval=settings.api.websocket_ping_interval,
        ws_ping_timeout=settings.api.websocket_ping_timeout,
        log_level=settings.logging_level.lower(),
        proxy_headers=False,
    )
    uvicorn.Server(config).run([bound(host, int(port))])


if __name__ == "__main__":
    main(*sys.argv[1:])
