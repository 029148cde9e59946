"""The little of the Cloud TPU REST API that a VM without a gRPC client uses to look at and delete
itself.

    GET, DELETE /v2alpha1/projects/P/locations/Z/queuedResources/ID[?force=true]
    GET, DELETE /v2alpha1/projects/P/locations/Z/nodes/ID

with `Authorization: Bearer ...`, as the metadata server gives it out. Faults strike these calls as
they strike those over gRPC.
"""

import json
from functools import partial
from urllib.parse import parse_qs, urlsplit

import grpc
from google.api_core.exceptions import from_grpc_status
from google.cloud import tpu_v2alpha1 as tpu
from google.protobuf import json_format

from tests.fakes.http import Handler, HttpServer
from tests.fakes.process import reset
from tests.fakes.tpu_service import Service
from tests.fakes.tpu_states import ApiError

_CALLS = {
    ("GET", "queuedResources"): ("GetQueuedResource", tpu.GetQueuedResourceRequest),
    ("DELETE", "queuedResources"): ("DeleteQueuedResource", tpu.DeleteQueuedResourceRequest),
    ("GET", "nodes"): ("GetNode", tpu.GetNodeRequest),
    ("DELETE", "nodes"): ("DeleteNode", tpu.DeleteNodeRequest),
}


class RestServer(HttpServer):
    """Serves `service` until the process ends."""

    def __init__(self, service: Service) -> None:
        self.service = service
        super().__init__(_Handler)


class _Handler(Handler):
    server: RestServer

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        name = url.path.removeprefix("/v2alpha1/")
        call = _CALLS.get((self.command, name.split("/")[-2] if "/" in name else ""))
        try:
            if not self.headers.get("Authorization", "").startswith("Bearer ya29."):
                missing = "Request is missing required authentication credential."
                raise ApiError(grpc.StatusCode.UNAUTHENTICATED, missing)
            if call is None or not url.path.startswith("/v2alpha1/"):
                raise ApiError(grpc.StatusCode.NOT_FOUND, "Not Found")
            method, kind = call
            given = {"force": True} if parse_qs(url.query).get("force") == ["true"] else {}
            asked, close = kind(name=name, **given), partial(reset, self.connection)
            answer = self.server.service.call(method, asked, close)
            shown = hasattr(answer, "DESCRIPTOR")
            write = json_format.MessageToJson if shown else type(answer).to_json
            self._tell(200, write(answer))
        except ApiError as error:
            code = int(from_grpc_status(error.code, "").code or 500)
            told = {"code": code, "message": error.message, "status": error.code.name}
            self._tell(code, json.dumps({"error": told}))

    do_DELETE = do_GET

    def _tell(self, status: int, text: str) -> None:
        self.answer(status, text, {"Content-Type": "application/json; charset=UTF-8"})
