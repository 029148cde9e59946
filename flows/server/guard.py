"""What stands before Prefect's server: an ASGI application that lets through what its own pages and
our own processes send.

Prefect asks for the key. It does not look at where a request comes from, and a browser sends
requests for every page that it shows. So here, in this order:

1. `Host` must be a name of this server. A page whose name was rebound to this machine has its own.
2. A browser says who asks (`Origin`, `Sec-Fetch-Site`): that must be a page of this very origin.
   A person who follows a link from elsewhere to a page (not to the API) is let through: pages are
   files that everybody has, and hold no data.
3. What changes something has a body of JSON, or none. Other types are what a form of any page
   sends.

And every answer tells the browser to run no script and to show no frame from elsewhere, since a
page of ours keeps the key, as Prefect's login page does: in the local storage of its origin.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qs

from flows.server.key import as_header, entered, proof

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

READING = ("GET", "HEAD", "OPTIONS")
CLOSED = ("/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json")
"""Pages of FastAPI's own. They ask for no key and run scripts from another machine in our
origin."""

MOST_BYTES = 2000
"""The length of the body that a browser sends to be let in."""

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

    def __init__(self, app: App, key: str, port: int, origins: Mapping[str, str]) -> None:
        self.app, self._key, self._port, self._origins = app, key, port, origins
        self._used: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if refusal := self.refusal(scope):
            return await _refuse(scope, send, *refusal)

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_encoded(HEADERS)]
            await send(message)

        if scope["path"].startswith("/lyceum/") and scope["type"] == "http":
            return await _answer(send_with_headers, *await self._own(scope, receive))
        await self.app(scope, receive, send_with_headers)

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Why a request is not let through, with HTTP's code for it; None when it is."""
        headers = _Headers(scope["headers"])
        method = scope.get("method", "GET")
        host = headers.one("host")
        if host is None or host.lower() not in self._origins:
            return 421, f"this server answers to {', '.join(self._origins)} only"
        origin, site = headers.all("origin"), headers.all("sec-fetch-site")
        if origin not in ([], [self._origins[host.lower()]]):
            return 403, "a page of another origin asked"
        follows = (
            method == "GET"
            and headers.all("sec-fetch-mode") == ["navigate"]
            and headers.all("sec-fetch-dest") == ["document"]
        )
        if site not in ([], ["same-origin"], ["none"]) and not (
            follows and not scope["path"].startswith("/api")
        ):
            return 403, "a page of another site asked"
        body = headers.all("content-length") not in ([], ["0"]) or headers.all("transfer-encoding")
        kind = (headers.one("content-type") or "").partition(";")[0].strip().lower()
        if method not in READING and body and kind != "application/json":
            return 415, "a body must be application/json"
        if scope["path"].rstrip("/") in CLOSED:
            return 404, "this page is closed"
        return None

    async def _own(self, scope: Scope, receive: Receive) -> tuple[int, str, str]:
        """Answer one of our own paths: code, type, text."""
        match scope["method"], scope["path"]:
            case "GET", "/lyceum/proof":
                nonce = parse_qs(scope["query_string"].decode("ascii", "replace")).get(
                    "nonce", [""]
                )[0]
                return 200, "text/plain", proof(self._key, nonce, self._port)
            case "GET", "/lyceum/enter":
                return 200, "text/html", ENTRY_PAGE
            case "GET", "/lyceum/enter.js":
                return 200, "text/javascript", ENTRY_SCRIPT
            case "POST", "/lyceum/enter":
                token = await _token(receive)
                if token in self._used or not entered(self._key, token):
                    return 403, "text/plain", USED
                self._used.add(token)
                return 200, "text/plain", as_header(self._key)
        return 404, "text/plain", "there is no such page"


class _Headers:
    """A request's headers, each of which may come several times."""

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        self._pairs = [
            (name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in pairs
        ]

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]

    def one(self, name: str) -> str | None:
        """Its value if it comes exactly once."""
        values = self.all(name)
        return values[0] if len(values) == 1 else None


async def _token(receive: Receive) -> str:
    """The token in a body of JSON, or nothing."""
    body, more = b"", True
    while more and len(body) <= MOST_BYTES:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    try:
        token = json.loads(body)["token"]
    except (ValueError, TypeError, KeyError):
        return ""
    return token if isinstance(token, str) else ""


async def _refuse(scope: Scope, send: Send, code: int, why: str) -> None:
    if scope["type"] == "websocket":
        # before it is accepted: HTTP's 403
        await send({"type": "websocket.close", "code": 1008, "reason": why})
    else:
        await _answer(send, code, "text/plain", f"Refused: {why}.\n")


async def _answer(send: Send, code: int, kind: str, text: str) -> None:
    body = text.encode()
    headers = {
        "content-type": f"{kind}; charset=utf-8",
        "content-length": str(len(body)),
        "cache-control": "no-store",
    }
    await send({"type": "http.response.start", "status": code, "headers": _encoded(headers)})
    await send({"type": "http.response.body", "body": body})


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
