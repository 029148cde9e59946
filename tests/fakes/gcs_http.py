"""The wire of the fake of Cloud Storage: HTTP/1.1, a thread per connection."""

import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from http.client import responses
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.fakes.faults import FaultList, WrongFault
from tests.fakes.gcs_api import Api, Call, Request, Response, error_response, json_response
from tests.fakes.gcs_buckets import ApiError, crc32c_of, flipped, no_object
from tests.fakes.gcs_faults import (
    GcsFault,
    changed_request,
    status_response,
    striking,
)
from tests.fakes.http import Handler as SilentHandler
from tests.fakes.http import HttpServer
from tests.fakes.process import reset


class Server(HttpServer):
    """Serves one `Api`; `counts` are the API requests so far, by `METHOD kind`."""

    request_queue_size = 512

    def __init__(self) -> None:
        self.api = Api()
        self.faults = FaultList(GcsFault)
        self.counts: Counter[str] = Counter()
        self.lock = threading.Lock()
        super().__init__(Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error here."""
        if not isinstance(sys.exception(), ConnectionError):
            ThreadingHTTPServer.handle_error(self, request, client_address)

    def control(self, verb: str, wish: dict[str, Any]) -> Response:
        """What tests do behind the API's back; see `tests.fakes.gcs_emulator.Emulator`."""
        buckets = self.api.buckets
        with buckets.lock:
            objects = buckets.bucket(wish["bucket"]).objects if "bucket" in wish else {}
            if "bucket" in wish and "name" in wish and wish["name"] not in objects:
                raise no_object(wish["bucket"], wish["name"])
            match verb:
                case "objects":
                    return json_response({name: one.size for name, one in sorted(objects.items())})
                case "read":
                    return Response(200, {}, objects[wish["name"]].content)
                case "delete":
                    buckets.bucket(wish["bucket"]).put(wish["name"], None)
                case "corrupt":
                    old = objects[wish["name"]]
                    content = flipped(old.content)
                    crc32c = crc32c_of(content) if wish["recompute"] else old.crc32c
                    objects[wish["name"]] = replace(old, content=content, crc32c=crc32c)
                case "add_fault":
                    return json_response(self.faults.add(wish))
                case "clear_faults":
                    self.faults.clear()
                case "fired":
                    return json_response(self.faults.fired(wish["fault"]))
                case "requests":
                    with self.lock:
                        return json_response(dict(self.counts))
                case "forget_requests":
                    with self.lock:
                        self.counts.clear()
                case _:
                    raise ApiError(404, "notFound", f"no control {verb!r}")
        return json_response({})


class Handler(SilentHandler):
    server: Server

    def serve(self) -> None:
        """Read one request whole, execute it, write the answer."""
        request = self._read()
        if request.path[:1] == ["_control"]:
            try:
                self._write(self.server.control(request.path[1], request.json()))
            except ApiError as error:
                self._write(error_response(error))
            except WrongFault as error:
                self._write(error_response(ApiError(400, "invalid", str(error))))
            return
        try:
            call = self.server.api.understand(request)
        except ApiError as error:
            self._write(error_response(error))
            return
        with self.server.lock:
            self.server.counts[f"{request.method} {call.kind}"] += 1
        self._answer(call, request)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve

    def _answer(self, call: Call, request: Request) -> None:
        if request.broken and "upload_id" not in request.query:
            return
        execute, faults = self.server.api.execute, striking(self.server.faults, call, request)
        if "slow" in faults:
            time.sleep(faults["slow"]["delay"])
        if "status" in faults:
            self._write(status_response(faults["status"], media=call.kind == "download"))
            return
        if "reset_before" in faults:
            self._reset()
            return
        changed = changed_request(request, faults)
        if "duplicate" in faults:
            execute(call, changed)
        response = execute(call, changed)
        if "reset_after" in faults:
            self._reset()
            return
        if "flip" in faults:
            response = replace(response, body=flipped(response.body))
        stop = None
        if "truncate" in faults:
            keep = faults["truncate"]["keep"]
            stop = len(response.body) // 2 if keep is None else keep
        self._write(response, stop)

    def _reset(self) -> None:
        reset(self.connection)
        self.close_connection = True

    def _read(self) -> Request:
        url = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        declared = int(headers.get("content-length", 0))
        body = self._receive(declared)
        self.close_connection |= len(body) < declared
        segments = [unquote(segment) for segment in url.path.strip("/").split("/")]
        host = f"http://{headers.get('host', '127.0.0.1')}"
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        return Request(self.command, segments, query, headers, body, declared, host)

    def _receive(self, size: int) -> bytes:
        """The next `size` bytes, fewer if the connection ends before."""
        got = bytearray()
        with suppress(ConnectionError):
            while len(got) < size and (more := self.rfile.read1(size - len(got))):
                got += more
        return bytes(got)

    def _write(self, response: Response, stop: int | None = None) -> None:
        """Send an answer: its body only up to `stop`, then the connection's end."""
        length = "" if response.status == 204 else f"Content-Length: {len(response.body)}\r\n"
        head = f"HTTP/1.1 {response.status} {responses.get(response.status, 'Unknown')}\r\n{length}"
        head += "".join(f"{name}: {value}\r\n" for name, value in response.headers.items()) + "\r\n"
        body = response.body
        if stop is not None:
            body, self.close_connection = body[:stop], True
        self.connection.sendall(head.encode("latin-1") + body)
