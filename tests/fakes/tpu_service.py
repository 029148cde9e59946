"""The calls of the fake of Cloud TPU, `google.cloud.tpu.v2alpha1.Tpu`: those that we make.

What a call is answered with in which state is the real service's behaviour as documented
(google-cloud-tpu 1.28, Cloud TPU REST reference) and as reports of its users quote it; messages are
theirs, word for word where one was found.
"""

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc
from google.cloud import tpu_v2alpha1 as tpu
from google.longrunning import operations_pb2

from tests.fakes.tpu_faults import status_of
from tests.fakes.tpu_relay import Relay
from tests.fakes.tpu_resources import Cloud
from tests.fakes.tpu_states import ApiError
from tests.fakes.tpu_views import (
    as_bytes,
    bad_request,
    check_place,
    check_request,
    node_view,
    request_view,
    tier_of,
)


class Service(grpc.GenericRpcHandler):
    """All services of one server.

    Attributes:
        counts: calls so far, by method.
    """

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.relay: Relay | None = None
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._methods: dict[str, tuple[Any, Callable[[Any], Any]]] = {
            "CreateQueuedResource": (tpu.CreateQueuedResourceRequest, self._create),
            "GetQueuedResource": (tpu.GetQueuedResourceRequest, self._get),
            "ListQueuedResources": (tpu.ListQueuedResourcesRequest, self._list),
            "DeleteQueuedResource": (tpu.DeleteQueuedResourceRequest, self._delete),
            "GetNode": (tpu.GetNodeRequest, self._get_node),
            "ListNodes": (tpu.ListNodesRequest, self._list_nodes),
            "DeleteNode": (tpu.DeleteNodeRequest, self._delete_node),
        }

    def forget(self) -> None:
        """As after the start."""
        with self._lock:
            self.counts.clear()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """The handler of a call; None, hence UNIMPLEMENTED, for one that is not here."""
        service, _, method = details.method.lstrip("/").partition("/")
        if service != "google.cloud.tpu.v2alpha1.Tpu" or method not in self._methods:
            return None
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._answer(method, request, context),
            request_deserializer=self._methods[method][0].deserialize,
            response_serializer=as_bytes,
        )

    def _answer(self, method: str, request: Any, context: grpc.ServicerContext) -> Any:
        relay = self.relay
        try:
            return self.call(method, request, lambda: relay.reset(context.peer()))
        except ApiError as error:
            context.abort(error.code, error.message)

    def call(self, method: str, request: Any, reset: Callable[[], None]) -> Any:
        """Execute one call with its faults: `slow`, then `status` or `reset_before` in its place,
        then what befalls the answer.

        Args:
            reset: ends the connection.

        Raises:
            ApiError: what is to be answered instead.
        """
        with self._lock:
            self.counts[method] += 1
        striking = self.cloud.faults.of_call(method, self._subject(method, request))
        if "slow" in striking:
            time.sleep(striking["slow"]["seconds"])
        if "status" in striking:
            raise ApiError(*status_of(striking["status"]))
        if "reset_before" in striking:
            reset()
            raise ApiError(grpc.StatusCode.UNAVAILABLE, "the connection was reset")
        with self.cloud.lock:
            answer = self._methods[method][1](request)
        if "lost" in striking:
            raise ApiError(*status_of(striking["lost"]))
        if "reset_after" in striking:
            reset()
        return answer

    def _subject(self, method: str, request: Any) -> str:
        """What a call is about: the complete name; of a listing, its parent."""
        if method == "CreateQueuedResource":
            return f"{request.parent}/queuedResources/{request.queued_resource_id}"
        return getattr(request, "name", "") or request.parent

    # Queued resources

    def _create(self, request: tpu.CreateQueuedResourceRequest) -> operations_pb2.Operation:
        _project, zone = check_place(request.parent)
        accelerator = check_request(request, zone)
        name = f"{request.parent}/queuedResources/{request.queued_resource_id}"
        wanted = request.queued_resource
        self.cloud.create(name, tpu.QueuedResource(wanted), accelerator, tier_of(wanted))
        return _operation(name)

    def _get(self, request: tpu.GetQueuedResourceRequest) -> tpu.QueuedResource:
        check_place(request.name, "queuedResources")
        return request_view(self.cloud.request(request.name))

    def _list(self, request: tpu.ListQueuedResourcesRequest) -> tpu.ListQueuedResourcesResponse:
        place = check_place(request.parent)
        found = [one for one in self.cloud.made if one.exists and one.place == place]
        return tpu.ListQueuedResourcesResponse(
            queued_resources=[request_view(one) for one in found]
        )

    def _delete(self, request: tpu.DeleteQueuedResourceRequest) -> operations_pb2.Operation:
        check_place(request.name, "queuedResources")
        if not request.force:
            raise bad_request("This fake deletes with force")
        self.cloud.delete(self.cloud.request(request.name))
        return _operation(request.name)

    # Nodes

    def _get_node(self, request: tpu.GetNodeRequest) -> tpu.Node:
        check_place(request.name, "nodes")
        return node_view(self.cloud.owner(request.name))

    def _list_nodes(self, request: tpu.ListNodesRequest) -> tpu.ListNodesResponse:
        place = check_place(request.parent)
        found = [one for one in self.cloud.made if one.node_exists and one.place == place]
        return tpu.ListNodesResponse(nodes=[node_view(one) for one in found])

    def _delete_node(self, request: tpu.DeleteNodeRequest) -> operations_pb2.Operation:
        check_place(request.name, "nodes")
        self.cloud.delete_node(self.cloud.owner(request.name))
        return _operation(request.name)


def _operation(target: str) -> operations_pb2.Operation:
    """What the service answers a change with; our client does not wait for its end."""
    place = "/".join(target.split("/")[:4])
    return operations_pb2.Operation(name=f"{place}/operations/operation-{uuid.uuid4()}")
