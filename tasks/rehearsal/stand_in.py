"""A server on this machine that stands in for the endpoints of a recipe while it is rehearsed.

It speaks `/v1/chat/completions`, batch files of such requests (`batch_desk`), and `/v1/completions`
for a teacher that scores token ids: to it each is as likely as the next, and a real one would not
know the small model's. Any other request's model is `PROVIDER:MODEL`: where that provider's URL and
key are set, the first `ASKED` of its requests go there, one by one, and come back as they are; the
rest, and all of the others, are answered by rule (`tasks.rehearsal.scripted`). So a rehearsal costs
cents, or nothing. What is asked of whom is counted.
"""

import json
import secrets
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from schemas.base import InputError
from tasks.chat.provider import Endpoint, endpoint_of
from tasks.rehearsal.batch_desk import BatchDesk, completion
from tasks.rehearsal.scripted import VERSION, Script, role_of

PROVIDER = "rehearsal"
"""What a rehearsed recipe calls the provider of every endpoint."""

PREFIX = f"rehearsal-{VERSION}/"
"""What stands before `PROVIDER:MODEL` in the name of a model: no real run asks for such a one."""

URL_VARIABLE = "REHEARSAL_BASE_URL"

ASKED = 20
"""Requests that a real endpoint gets of one rehearsal."""

_SECONDS = 120.0


@dataclass
class Tally:
    """Who answered the requests to one model, by what they took it for.

    Attributes:
        asked: role -> requests that went to the real endpoint.
        stood_in: role -> requests that were answered by rule.
        refused: what the real endpoint said to those it did not answer, by status.
        grades: of a real judge, what it was asked about (a text) -> its grades.
        why_not: why the endpoint was not asked; empty: it was.
    """

    asked: Counter[str] = field(default_factory=Counter)
    stood_in: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    grades: dict[str, str] = field(default_factory=dict)
    why_not: str = ""


class StandIn(ThreadingHTTPServer):
    """The server, from its making to its `with`'s end; `url` is what `<PROVIDER>_BASE_URL` says.

    Attributes:
        tallies: `PROVIDER:MODEL` -> who answered.
        desk: what is asked by batch files.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, script: Script, asked: int = ASKED) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script, self.tallies = script, dict[str, Tally]()
        self.desk = BatchDesk(self.answer)
        self._left: Counter[str] = Counter()
        self._most, self._lock = asked, threading.Lock()
        self._endpoints: dict[str, Endpoint | str] = {}
        self.path = f"/{secrets.token_urlsafe(12)}/v1"  # other users of this machine do not know it
        self.url = f"http://127.0.0.1:{self.server_address[1]}{self.path}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A worker that was stopped while it waited for its answer is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def answer(self, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and JSON for a request."""
        name = str(body["model"]).removeprefix(PREFIX)
        text = str(body["messages"][-1]["content"])
        role = role_of(text)
        with self._lock:
            tally = self.tallies.setdefault(name, Tally())
            endpoint = self._endpoint(name, tally)
            real = endpoint is not None and self._left[name] < self._most
            self._left[name] += real
            (tally.asked if real else tally.stood_in)[role] += 1
        if endpoint is None or not real:
            return 200, completion(body, self.script.reply(body))
        status, value = _forwarded(endpoint, body, name.partition(":")[2])
        with self._lock:
            if status != 200:
                tally.refused[f"{status}: {str(value.get('error', ''))[:200]}"] += 1
            elif role == "judge":
                _keep_grades(tally, text, value)
        return status, value

    def score(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON that scores a text of token ids."""
        with self._lock:
            tally = self.tallies.setdefault(str(body["model"]).removeprefix(PREFIX), Tally())
            tally.stood_in["teacher"] += 1
            tally.why_not = "it scores tokens, and those of a rehearsal are not its own"
        names = [f"token_id:{one}" for one in body["prompt"]]
        logps = {"tokens": names, "token_logprobs": [None, *[-1.0] * (len(names) - 1)]}
        return {"choices": [{"text": "", "logprobs": logps}]}

    def _endpoint(self, name: str, tally: Tally) -> Endpoint | None:
        if name not in self._endpoints:
            provider = name.partition(":")[0]
            try:
                self._endpoints[name] = endpoint_of(provider)
            except InputError as error:
                self._endpoints[name] = str(error)
        found = self._endpoints[name]
        if isinstance(found, str):
            tally.why_not = found
            return None
        return found


def _forwarded(
    endpoint: Endpoint, body: Mapping[str, Any], model: str
) -> tuple[int, dict[str, Any]]:
    """What the real endpoint says."""
    asked, headers = {**body, "model": model}, {"Authorization": f"Bearer {endpoint.key}"}
    url = f"{endpoint.url}/chat/completions"
    try:
        answered = httpx.post(url, json=asked, headers=headers, timeout=_SECONDS)
        if answered.is_success:
            return 200, answered.json()
        return answered.status_code, {"error": {"message": endpoint.scrub(answered.text[:10_000])}}
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        return 502, {"error": {"message": endpoint.scrub(f"{type(error).__name__}: {error}")}}


def _keep_grades(tally: Tally, text: str, value: Mapping[str, Any]) -> None:
    try:
        said = json.loads(value["choices"][0]["message"]["content"])
        tally.grades[text] = json.dumps(said["grades"], sort_keys=True)
    except (LookupError, TypeError, ValueError):
        pass  # the judge's reader says what is wrong with it


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: StandIn

    def do_GET(self) -> None:
        path = self._path()
        self._send(200, None if path is None else self.server.desk.get(path))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        path = self._path()
        if path == "/chat/completions":
            self._send(*self.server.answer(json.loads(body)))
            return
        if path == "/completions":
            self._send(200, self.server.score(json.loads(body)))
            return
        kind = self.headers.get("Content-Type", "")
        self._send(200, None if path is None else self.server.desk.post(path, body, kind))

    def _path(self) -> str | None:
        """What stands behind the server's own path; None: the caller does not know it."""
        own = self.server.path
        return self.path.removeprefix(own) if self.path.startswith(f"{own}/") else None

    def _send(self, status: int, value: bytes | Mapping[str, Any] | None) -> None:
        """Answer; None: nothing lies there."""
        if value is None:
            status, value = 404, {"error": {"message": f"a stand-in has no {self.path}"}}
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        kind = "application/octet-stream" if isinstance(value, bytes) else "application/json"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""
