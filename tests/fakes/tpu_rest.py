"""The one call of the Cloud TPU REST API that a VM without a gRPC client makes, to delete itself:

    DELETE /v2alpha1/projects/P/locations/Z/queuedResources/ID?force=true

with `Authorization: Bearer ...`, as the metadata server gives it out. Faults strike it as they
strike calls over gRPC.
"""

from functools import partial
from urllib.parse import urlsplit

from google.api_core.exceptions import from_grpc_status
from google.cloud import tpu_v2alpha1 as tpu

from tests.fakes.http import Handler, HttpServer
from tests.fakes.process import reset
from tests.fakes.tpu_service import Service
from tests.fakes.tpu_states import ApiError


class RestServer(HttpServer):
    """Serves `service` until the process ends."""

    def __init__(self, service: Service) -> None:
        self.service = service
        super().__init__(_Handler)


class _Handler(Handler):
    server: RestServer

    def do_DELETE(self) -> None:
        url = urlsplit(self.path)
        if not self.headers.get("Authorization", "").startswith("Bearer ya29."):
            self._refuse(401, "Request is missing required authentication credential.")
            return
        asked = tpu.DeleteQueuedResourceRequest(
            name=url.path.removeprefix("/v2alpha1/"), force=url.query == "force=true"
        )
        close = partial(reset, self.connection)
        try:
            operation = self.server.service.call("DeleteQueuedResource", asked, close)
        except ApiError as error:
            self._refuse(int(from_grpc_status(error.code, "").code or 500), error.message)
        else:
            self.answer(200, {"name": operation.name})

    def _refuse(self, code: int, message: str) -> None:
        self.answer(code, {"error": {"code": code, "message": message}})
