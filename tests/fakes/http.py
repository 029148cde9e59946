"""What the fakes that answer over HTTP share: a server in a thread, a silent handler."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class HttpServer(ThreadingHTTPServer):
    """On a free port of 127.0.0.1, from its making until `stop`, which leaving its context is, too.

    Attributes:
        address: `127.0.0.1:PORT`; `url` is that with `http://`.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.address = f"127.0.0.1:{self.server_address[1]}"
        self.url = f"http://{self.address}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or was killed with its VM, is no error here."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def body(self) -> Any:
        """The JSON of the request."""
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        """Bytes or a text as they are, anything else as JSON."""
        kind = {} if isinstance(body, (bytes, str)) else {"Content-Type": "application/json"}
        text = json.dumps(body) if kind else body
        data = text if isinstance(text, bytes) else text.encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **kind, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""
