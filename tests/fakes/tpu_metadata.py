"""The stand-in for a VM's metadata server, `http://metadata.google.internal/computeMetadata/v1/`,
one HTTP server per host.

As the real one it refuses requests without `Metadata-Flavor: Google`, and holds an answer back
until the value changes (`?wait_for_change=true`, `last_etag`, `timeout_sec`). Of directories it has
only the JSON (`?recursive=true`), which google-auth asks for.
"""

import hashlib
import json
import threading
import time
from collections.abc import Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.fakes.http import Handler, HttpServer

PREFIX = "/computeMetadata/v1/"
TOKEN_SECONDS = 3599


class MetadataServer(HttpServer):
    """Serves values by path, e.g. `instance/attributes/agent-worker-number`. Its `address` is the
    value of GCE_METADATA_HOST."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)
        self._changed = threading.Condition()
        super().__init__(_Handler)

    def __setitem__(self, path: str, value: str) -> None:
        with self._changed:
            self._values[path] = value
            self._changed.notify_all()

    def __delitem__(self, path: str) -> None:
        del self._values[path]

    def read(self, path: str, query: Mapping[str, str]) -> tuple[str, str] | None:
        """What is at a path: its text and its ETag; None when there is nothing. Waits if the query
        says so."""
        end = time.monotonic() + float(query.get("timeout_sec", 1e6))
        with self._changed:
            seen = query.get("last_etag") or _etag(self._text(path))
            while query.get("wait_for_change") == "true" and _etag(self._text(path)) == seen:
                if not self._changed.wait(end - time.monotonic()):
                    break
            text = self._text(path)
        return None if text is None else (text, _etag(text))

    def _text(self, path: str) -> str | None:
        if not path.endswith("/"):
            return self._values.get(path)
        below = {
            name.removeprefix(path): [value.strip()] if name.endswith(("es", "scopes")) else value
            for name, value in self._values.items()
            if name.startswith(path)
        }
        return json.dumps(below) if below else None


class _Handler(Handler):
    server: MetadataServer

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path)
        if path == "/":
            self._tell(200, "computeMetadata/\n")
        elif not path.startswith(PREFIX):
            self._tell(404, "not found\n")
        elif self.headers.get("Metadata-Flavor") != "Google":
            self._tell(403, "Missing Metadata-Flavor:Google header.\n")
        elif (
            found := self.server.read(path.removeprefix(PREFIX), dict(parse_qsl(url.query)))
        ) is None:
            self._tell(404, "The requested URL was not found on this server.\n")
        else:
            self._tell(200, found[0], found[1])

    def _tell(self, status: int, text: str, etag: str = "0") -> None:
        kind = "application/json" if text.startswith("{") else "application/text"
        self.answer(status, text, {"Metadata-Flavor": "Google", "ETag": etag, "Content-Type": kind})


def instance_values(
    *,
    project: str,
    name: str,
    host: int,
    hosts: int,
    email: str,
    metadata: Mapping[str, str],
) -> dict[str, str]:
    """What the metadata server of one host of a TPU slice knows, by path, as far as the startup
    script, the agent and google-auth ask. All hosts of a fake slice are 127.0.0.1."""
    token = {"access_token": f"ya29.fake-{name}-{host}", "expires_in": TOKEN_SECONDS}
    token["token_type"] = "Bearer"
    attributes = {
        **metadata,
        "agent-worker-number": str(host),
        "worker-network-endpoints": ",".join(["unknown:unknown:127.0.0.1"] * hosts),
    }
    scope = "https://www.googleapis.com/auth/cloud-platform"
    account = {"email": email, "aliases": "default\n", "scopes": f"{scope}\n"}
    account["token"] = json.dumps(token)
    values = {f"instance/attributes/{key}": value for key, value in attributes.items()}
    values |= {
        f"instance/service-accounts/{who}/{key}": value
        for who in ("default", email)
        for key, value in account.items()
    }
    return values | {
        "instance/preempted": "FALSE",
        "instance/maintenance-event": "NONE",
        "project/project-id": project,
    }


def _etag(text: str | None) -> str:
    return hashlib.sha256((text or "").encode()).hexdigest()[:16]
