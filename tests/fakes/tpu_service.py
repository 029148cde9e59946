"""The calls of the fake of Cloud TPU: `google.cloud.tpu.v2alpha1.Tpu`,
`google.longrunning.Operations`, `google.cloud.location.Locations`.

What a call is answered with in which state is the real service's behaviour as documented
(google-cloud-tpu 1.28, Cloud TPU REST reference) and as reports of its users quote it; messages are
theirs, word for word where one was found.
"""

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.cloud import tpu_v2alpha1 as tpu
from google.cloud.location import locations_pb2
from google.longrunning import operations_pb2
from google.protobuf import empty_pb2
from google.rpc import status_pb2

from tests.fakes.tpu_catalog import RUNTIMES, ZONES, accelerators
from tests.fakes.tpu_faults import status_of
from tests.fakes.tpu_relay import Relay
from tests.fakes.tpu_resources import Cloud
from tests.fakes.tpu_states import ApiError, State
from tests.fakes.tpu_views import (
    as_bytes,
    bad_request,
    check_place,
    check_request,
    node_view,
    page_of,
    request_view,
    tier_of,
    timestamp,
)


@dataclass
class Operation:
    """A long-running operation; `done` and `result` look at what it works on."""

    name: str
    target: str
    verb: str
    done: Callable[[], bool]
    result: Callable[[], Any]
    created: float
    cancelled: bool = False

    def view(self) -> operations_pb2.Operation:
        metadata = tpu.OperationMetadata(
            create_time=timestamp(self.created),
            target=self.target,
            verb=self.verb,
            cancel_requested=self.cancelled,
            api_version="v2alpha1",
        )
        view = operations_pb2.Operation(name=self.name, done=self.done())
        view.metadata.Pack(tpu.OperationMetadata.pb(metadata))
        if view.done:
            view.response.Pack(self.result())
        return view


class Service(grpc.GenericRpcHandler):
    """All services of one server.

    Attributes:
        counts: calls so far, by method.
    """

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.relay: Relay | None = None
        self.counts: Counter[str] = Counter()
        self._operations: dict[str, Operation] = {}
        self._by_request_id: dict[str, Operation] = {}
        self._lock = threading.Lock()
        operations = operations_pb2
        self._methods: dict[str, tuple[Any, Callable[[Any], Any]]] = {
            "google.cloud.tpu.v2alpha1.Tpu/CreateQueuedResource": (
                tpu.CreateQueuedResourceRequest,
                self._create,
            ),
            "google.cloud.tpu.v2alpha1.Tpu/GetQueuedResource": (
                tpu.GetQueuedResourceRequest,
                self._get,
            ),
            "google.cloud.tpu.v2alpha1.Tpu/ListQueuedResources": (
                tpu.ListQueuedResourcesRequest,
                self._list,
            ),
            "google.cloud.tpu.v2alpha1.Tpu/DeleteQueuedResource": (
                tpu.DeleteQueuedResourceRequest,
                self._delete,
            ),
            "google.cloud.tpu.v2alpha1.Tpu/ResetQueuedResource": (
                tpu.ResetQueuedResourceRequest,
                self._reset,
            ),
            "google.cloud.tpu.v2alpha1.Tpu/GetNode": (tpu.GetNodeRequest, self._get_node),
            "google.cloud.tpu.v2alpha1.Tpu/ListNodes": (tpu.ListNodesRequest, self._list_nodes),
            "google.cloud.tpu.v2alpha1.Tpu/DeleteNode": (tpu.DeleteNodeRequest, self._delete_node),
            "google.cloud.tpu.v2alpha1.Tpu/ListAcceleratorTypes": (
                tpu.ListAcceleratorTypesRequest,
                self._list_types,
            ),
            "google.cloud.tpu.v2alpha1.Tpu/ListRuntimeVersions": (
                tpu.ListRuntimeVersionsRequest,
                self._list_runtimes,
            ),
            "google.cloud.tpu.v2alpha1.Tpu/GetGuestAttributes": (
                tpu.GetGuestAttributesRequest,
                self._guest_attributes,
            ),
            "google.longrunning.Operations/GetOperation": (
                operations.GetOperationRequest,
                self._get_operation,
            ),
            "google.longrunning.Operations/ListOperations": (
                operations.ListOperationsRequest,
                self._list_operations,
            ),
            "google.longrunning.Operations/CancelOperation": (
                operations.CancelOperationRequest,
                self._cancel_operation,
            ),
            "google.longrunning.Operations/DeleteOperation": (
                operations.DeleteOperationRequest,
                self._delete_operation,
            ),
            "google.cloud.location.Locations/ListLocations": (
                locations_pb2.ListLocationsRequest,
                self._list_locations,
            ),
        }

    def forget(self) -> None:
        """As after the start."""
        with self._lock:
            self.counts.clear()
            self._operations.clear()
            self._by_request_id.clear()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """The handler of a call; None, hence UNIMPLEMENTED, for one that is not here."""
        found = self._methods.get(details.method.lstrip("/"))
        if found is None:
            return None
        kind, name = found[0], details.method.lstrip("/")
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._answer(name, request, context),
            request_deserializer=getattr(kind, "deserialize", None) or kind.FromString,
            response_serializer=as_bytes,
        )

    def _answer(self, name: str, request: Any, context: grpc.ServicerContext) -> Any:
        assert self.relay is not None
        relay = self.relay
        try:
            return self.call(name, request, lambda: relay.reset(context.peer()))
        except ApiError as error:
            if error.details:
                status = status_pb2.Status(code=error.code.value[0], message=error.message)
                for detail in error.details:
                    status.details.add().Pack(detail)
                context.set_trailing_metadata(
                    (("grpc-status-details-bin", status.SerializeToString()),)
                )
            context.abort(error.code, error.message)

    def call(self, name: str, request: Any, reset: Callable[[], None]) -> Any:
        """Execute one call with its faults: `slow`, then `status` or `reset_before` in its place,
        then what befalls the answer.

        Args:
            name: service and method.
            reset: ends the connection.

        Raises:
            ApiError: what is to be answered instead.
        """
        _, method = self._methods[name]
        short = name.rsplit("/", 1)[1]
        with self._lock:
            self.counts[short] += 1
        striking = self.cloud.faults.of_call(short, *self._subject(short, request))
        if "slow" in striking:
            time.sleep(striking["slow"]["delay"])
        if "status" in striking:
            raise ApiError(*status_of(striking["status"]))
        if "reset_before" in striking:
            reset()
            raise ApiError(grpc.StatusCode.UNAVAILABLE, "the connection was reset")
        with self.cloud.lock:
            answer = method(request)
        if "lost" in striking:
            raise ApiError(*status_of(striking["lost"]))
        if "reset_after" in striking:
            reset()
        return answer

    def _subject(self, method: str, request: Any) -> tuple[str, str | None]:
        """What a call is about: the complete name (of a listing, its parent), and the state that
        the queued resource of that name is in."""
        name = getattr(request, "name", "") or getattr(request, "parent", "")
        if method == "CreateQueuedResource":
            name = f"{name}/queuedResources/{request.queued_resource_id}"
        with self.cloud.lock:
            return name, next(
                (
                    one.state.name
                    for one in self.cloud.made
                    if one.exists and name in (one.name, one.node and one.node.name)
                ),
                None,
            )

    # Queued resources

    def _create(self, request: tpu.CreateQueuedResourceRequest) -> operations_pb2.Operation:
        if known := self._repeated(request.request_id):
            return known
        _project, zone = check_place(request.parent)
        accelerator = check_request(request, zone)
        name = f"{request.parent}/queuedResources/{request.queued_resource_id}"
        made = self.cloud.create(
            name,
            tpu.QueuedResource(request.queued_resource),
            accelerator,
            tier_of(request.queued_resource),
        )
        return self._operation(
            name,
            "create",
            lambda: made.state != State.CREATING or not made.exists,
            lambda: tpu.QueuedResource.pb(request_view(made)),
            request.request_id,
        )

    def _get(self, request: tpu.GetQueuedResourceRequest) -> tpu.QueuedResource:
        check_place(request.name, "queuedResources")
        return request_view(self.cloud.request(request.name))

    def _list(self, request: tpu.ListQueuedResourcesRequest) -> tpu.ListQueuedResourcesResponse:
        project, zone = check_place(request.parent, wildcard=True)
        found = [
            one
            for one in self.cloud.made
            if one.exists and one.project == project and zone in ("-", one.zone)
        ]
        page, token = page_of(found, lambda one: one.name, request.page_size, request.page_token)
        return tpu.ListQueuedResourcesResponse(
            queued_resources=[request_view(one) for one in page], next_page_token=token
        )

    def _delete(self, request: tpu.DeleteQueuedResourceRequest) -> operations_pb2.Operation:
        if known := self._repeated(request.request_id):
            return known
        check_place(request.name, "queuedResources")
        found = self.cloud.request(request.name)
        self.cloud.delete(found, request.force)
        # The client expects a QueuedResource here, the service answers with nothing: `result()` of
        # this operation raises a TypeError.
        return self._operation(
            request.name, "delete", lambda: not found.exists, empty_pb2.Empty, request.request_id
        )

    def _reset(self, request: tpu.ResetQueuedResourceRequest) -> operations_pb2.Operation:
        check_place(request.name, "queuedResources")
        found = self.cloud.request(request.name)
        self.cloud.reset(found)
        return self._operation(
            request.name, "reset", lambda: True, lambda: tpu.QueuedResource.pb(request_view(found))
        )

    # Nodes

    def _get_node(self, request: tpu.GetNodeRequest) -> tpu.Node:
        check_place(request.name, "nodes")
        return node_view(self.cloud.owner(request.name))

    def _list_nodes(self, request: tpu.ListNodesRequest) -> tpu.ListNodesResponse:
        project, zone = check_place(request.parent, wildcard=True)
        found = [
            one
            for one in self.cloud.made
            if one.node_exists and one.project == project and zone in ("-", one.zone)
        ]
        page, token = page_of(
            found, lambda one: one.the_node.name, request.page_size, request.page_token
        )
        return tpu.ListNodesResponse(nodes=[node_view(one) for one in page], next_page_token=token)

    def _delete_node(self, request: tpu.DeleteNodeRequest) -> operations_pb2.Operation:
        if known := self._repeated(request.request_id):
            return known
        check_place(request.name, "nodes")
        found = self.cloud.owner(request.name)
        self.cloud.delete_node(found)
        return self._operation(
            request.name,
            "delete",
            lambda: not found.node_exists,
            empty_pb2.Empty,
            request.request_id,
        )

    def _guest_attributes(
        self, request: tpu.GetGuestAttributesRequest
    ) -> tpu.GetGuestAttributesResponse:
        check_place(request.name, "nodes")
        answer = []
        for index, host in enumerate(self.cloud.owner(request.name).the_node.hosts):
            if not request.worker_ids or str(index) in request.worker_ids:
                entries = [
                    tpu.GuestAttributesEntry(
                        namespace=path.split("/")[0], key=path.split("/")[1], value=value
                    )
                    for path, value in host.metadata.below("instance/guest-attributes/").items()
                    if f"{path}/".startswith(request.query_path.strip("/"))
                ]
                answer.append(
                    tpu.GuestAttributes(
                        query_path=request.query_path,
                        query_value=tpu.GuestAttributesValue(items=entries),
                    )
                )
        return tpu.GetGuestAttributesResponse(guest_attributes=answer)

    # What there is

    def _list_types(
        self, request: tpu.ListAcceleratorTypesRequest
    ) -> tpu.ListAcceleratorTypesResponse:
        _, zone = check_place(request.parent)
        page, token = page_of([*accelerators(zone)], str, request.page_size, request.page_token)
        kinds = [
            tpu.AcceleratorType(name=f"{request.parent}/acceleratorTypes/{name}", type_=name)
            for name in page
        ]
        return tpu.ListAcceleratorTypesResponse(accelerator_types=kinds, next_page_token=token)

    def _list_runtimes(
        self, request: tpu.ListRuntimeVersionsRequest
    ) -> tpu.ListRuntimeVersionsResponse:
        check_place(request.parent)
        page, token = page_of([*RUNTIMES], str, request.page_size, request.page_token)
        versions = [
            tpu.RuntimeVersion(name=f"{request.parent}/runtimeVersions/{name}", version=name)
            for name in page
        ]
        return tpu.ListRuntimeVersionsResponse(runtime_versions=versions, next_page_token=token)

    def _list_locations(
        self, request: locations_pb2.ListLocationsRequest
    ) -> locations_pb2.ListLocationsResponse:
        page, token = page_of([*ZONES], str, request.page_size, request.page_token)
        places = [
            locations_pb2.Location(name=f"{request.name}/locations/{zone}", location_id=zone)
            for zone in page
        ]
        return locations_pb2.ListLocationsResponse(locations=places, next_page_token=token)

    # Operations

    def _operation(
        self,
        target: str,
        verb: str,
        done: Callable[[], bool],
        result: Callable[[], Any],
        request_id: str = "",
    ) -> operations_pb2.Operation:
        name = f"{'/'.join(target.split('/')[:4])}/operations/operation-{uuid.uuid4()}"
        self._operations[name] = Operation(name, target, verb, done, result, time.time())
        if request_id:
            self._by_request_id[request_id] = self._operations[name]
        return self._operations[name].view()

    def _repeated(self, request_id: str) -> operations_pb2.Operation | None:
        """The operation that a call with this id has started before."""
        if request_id:
            try:
                uuid.UUID(request_id)
            except ValueError as error:
                raise bad_request(f"request_id {request_id!r} is not a valid UUID") from error
        return self._by_request_id[request_id].view() if request_id in self._by_request_id else None

    def _found_operation(self, name: str) -> Operation:
        if name not in self._operations:
            raise ApiError(grpc.StatusCode.NOT_FOUND, f"Resource '{name}' was not found")
        return self._operations[name]

    def _get_operation(
        self, request: operations_pb2.GetOperationRequest
    ) -> operations_pb2.Operation:
        return self._found_operation(request.name).view()

    def _list_operations(
        self, request: operations_pb2.ListOperationsRequest
    ) -> operations_pb2.ListOperationsResponse:
        found = [
            one for one in self._operations.values() if one.name.startswith(f"{request.name}/")
        ]
        page, token = page_of(found, lambda one: one.name, request.page_size, request.page_token)
        return operations_pb2.ListOperationsResponse(
            operations=[one.view() for one in page], next_page_token=token
        )

    def _cancel_operation(self, request: operations_pb2.CancelOperationRequest) -> empty_pb2.Empty:
        """Best effort, says the documentation; here, as it seems there, without effect."""
        self._found_operation(request.name).cancelled = True
        return empty_pb2.Empty()

    def _delete_operation(self, request: operations_pb2.DeleteOperationRequest) -> empty_pb2.Empty:
        self._operations.pop(self._found_operation(request.name).name)
        return empty_pb2.Empty()
