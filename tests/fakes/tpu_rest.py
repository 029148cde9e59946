"""The little of the Cloud TPU REST API that a VM without a gRPC client uses to look at and delete
itself.

    GET, DELETE /v2alpha1/projects/P/locations/Z/queuedResources/ID[?force=true]
    GET, DELETE /v2alpha1/projects/P/locations/Z/nodes/ID

with `Authorization: Bearer ...`, as the metadata server gives it out. Faults strike these calls as
they strike those over gRPC.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import grpc
from google.api_core.exceptions import from_grpc_status
from google.cloud import tpu_v2alpha1 as tpu
from google.protobuf import json_format

from tests.fakes.process import reset
from tests.fakes.tpu_service import Service
from tests.fakes.tpu_states import ApiError

_CALLS = {
    ("GET", "queuedResources"): ("GetQueuedResource", tpu.GetQueuedResourceRequest),
    ("DELETE", "queuedResources"): ("DeleteQueuedResource", tpu.DeleteQueuedResourceRequest),
    ("GET", "nodes"): ("GetNode", tpu.GetNodeRequest),
    ("DELETE", "nodes"): ("DeleteNode", tpu.DeleteNodeRequest),
}


class RestServer(ThreadingHTTPServer):
    """Serves `service` on a free port of 127.0.0.1, in a thread, until the process ends. `url` is
    where."""

    daemon_threads = True

    def __init__(self, service: Service) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.service = service
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or was killed with its VM, is no error here."""


class _Handler(BaseHTTPRequestHandler):
    server: RestServer

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        name = url.path.removeprefix("/v2alpha1/")
        call = _CALLS.get((self.command, name.split("/")[-2] if "/" in name else ""))
        try:
            if not self.headers.get("Authorization", "").startswith("Bearer ya29."):
                raise ApiError(
                    grpc.StatusCode.UNAUTHENTICATED,
                    "Request is missing required authentication credential.",
                )
            if call is None or not url.path.startswith("/v2alpha1/"):
                raise ApiError(grpc.StatusCode.NOT_FOUND, "Not Found")
            method, kind = call
            given = {"force": True} if parse_qs(url.query).get("force") == ["true"] else {}
            answer = self.server.service.call(method, kind(name=name, **given), self._reset)
            self._answer(
                200,
                (
                    json_format.MessageToJson(answer)
                    if hasattr(answer, "DESCRIPTOR")
                    else type(answer).to_json(answer)
                ),
            )
        except ApiError as error:
            code = int(from_grpc_status(error.code, "").code or 500)
            self._answer(
                code,
                json.dumps(
                    {"error": {"code": code, "message": error.message, "status": error.code.name}}
                ),
            )

    do_DELETE = do_GET

    def _reset(self) -> None:
        reset(self.connection)

    def _answer(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=UTF-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""
