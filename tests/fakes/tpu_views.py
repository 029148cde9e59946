"""Requests checked and answers written as the Cloud TPU service does it, for `tpu_service.py`."""

import re
from typing import Any

import grpc
from google.cloud import tpu_v2alpha1 as tpu
from google.protobuf import timestamp_pb2
from google.rpc import status_pb2

from infra.tpu.types import TPU_TYPES, TpuType
from tests.fakes.tpu_states import ApiError, Request, State

_ID = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME = re.compile(r"projects/([^/]+)/locations/([^/]+)(?:/(queuedResources|nodes)/([^/]+))?")
_ZONES = {zone for kind in TPU_TYPES.values() for zone in kind.zones}


def bad_request(what: str) -> ApiError:
    said = f"Cloud TPU received a bad request. {what} [EID: 0x5be9ca99d1d1a7c3]"
    return ApiError(grpc.StatusCode.INVALID_ARGUMENT, said)


def check_place(name: str, collection: str | None = None) -> tuple[str, str]:
    """Project and zone of a resource name. Raises ApiError for a malformed name or an unknown
    zone."""
    match = _NAME.fullmatch(name)
    if match is None or match[3] != collection:
        raise ApiError(grpc.StatusCode.INVALID_ARGUMENT, f"Malformed name: '{name}'")
    if match[2] not in _ZONES:
        said = f"Location {match[2]} is not found or access is unauthorized."
        raise ApiError(grpc.StatusCode.PERMISSION_DENIED, said)
    return match[1], match[2]


def check_request(request: tpu.CreateQueuedResourceRequest, zone: str) -> TpuType:
    """What is asked for. Raises ApiError for a request that the service does not accept."""
    (spec,) = request.queued_resource.tpu.node_spec
    for one in (request.queued_resource_id, spec.node_id):
        if not _ID.fullmatch(one):
            raise bad_request(f"The id {one!r} is not valid")
    if spec.parent != request.parent:
        raise bad_request(f"The node's parent {spec.parent!r} is not {request.parent!r}")
    asked = spec.node.accelerator_type
    for kind in TPU_TYPES.values():
        if kind.accelerator == asked and zone in kind.zones:
            return kind
    raise bad_request(f"the accelerator {asked} was not found in zone {zone}")


def tier_of(resource: tpu.QueuedResource) -> str:
    return next((tier for tier in ("spot", "guaranteed") if tier in resource), "on-demand")


def request_view(request: Request) -> tpu.QueuedResource:
    view = tpu.QueuedResource(request.spec)
    view.name = request.name
    state = tpu.QueuedResourceState(state=request.state)
    if request.state == State.FAILED and request.error is not None:
        error = status_pb2.Status(code=request.error[0], message=request.error[1])
        state.failed_data = tpu.QueuedResourceState.FailedData(error=error)
    view.state = state
    return view


def node_view(request: Request) -> tpu.Node:
    node = request.the_node
    view = tpu.Node(node.spec)
    view.name, view.state = node.name, node.state
    view.health = tpu.Node.Health.HEALTHY
    view.queued_resource = request.name
    view.create_time = timestamp_pb2.Timestamp(seconds=int(request.created))
    return view


def as_bytes(message: Any) -> bytes:
    if hasattr(message, "SerializeToString"):
        return message.SerializeToString()
    return type(message).serialize(message)
