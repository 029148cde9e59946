"""Requests checked and answers written as the Cloud TPU service does it, for `tpu_service.py`."""

import re
from typing import Any

import grpc
from google.cloud import tpu_v2alpha1 as tpu
from google.protobuf import timestamp_pb2
from google.rpc import error_details_pb2, status_pb2

from tests.fakes.tpu_catalog import RUNTIMES, ZONES, Accelerator, accelerators
from tests.fakes.tpu_states import ApiError, NodeState, Request, State

_ID = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"[a-z][-_a-z0-9]{0,62}")
_LABEL_VALUE = re.compile(r"[-_a-z0-9]{0,63}")
_NAME = re.compile(r"projects/([^/]+)/locations/([^/]+)(?:/(queuedResources|nodes)/([^/]+))?")
_DISK = re.compile(r"projects/[^/]+/zones/([^/]+)/disks/[^/]+")
_VALUE_BYTES, _METADATA_BYTES = 256 << 10, 512 << 10
_STATE_DATA = {
    state: f"{state.name.lower()}_data"
    for state in (
        *(State.CREATING, State.ACCEPTED, State.PROVISIONING, State.ACTIVE),
        *(State.DELETING, State.SUSPENDING, State.SUSPENDED),
    )
}


def bad_request(what: str) -> ApiError:
    return ApiError(
        grpc.StatusCode.INVALID_ARGUMENT,
        f"Cloud TPU received a bad request. {what} [EID: 0x5be9ca99d1d1a7c3]",
    )


def check_place(name: str, collection: str | None = None) -> tuple[str, str]:
    """Project and zone of a resource name. Raises ApiError for a malformed name or an unknown
    zone."""
    match = _NAME.fullmatch(name)
    if match is None or match[3] != collection:
        raise ApiError(grpc.StatusCode.INVALID_ARGUMENT, f"Malformed name: '{name}'")
    project, zone = match[1], match[2]
    if zone not in ZONES:
        info = {
            "consumer": f"projects/{project}",
            "location": zone,
            "service": "tpu.googleapis.com",
        }
        detail = error_details_pb2.ErrorInfo(
            reason="LOCATION_POLICY_VIOLATED", domain="googleapis.com", metadata=info
        )
        raise ApiError(
            grpc.StatusCode.PERMISSION_DENIED,
            f"Location {zone} is not found or access is unauthorized.",
            detail,
        )
    return project, zone


def check_request(request: tpu.CreateQueuedResourceRequest, zone: str) -> Accelerator:
    """Raises ApiError for a request that the service does not accept."""
    specs = request.queued_resource.tpu.node_spec
    if len(specs) != 1 or not specs[0].node_id or specs[0].multi_node_params:
        raise bad_request(
            "The fake makes exactly one node for each queued resource, with a node_id"
        )
    spec, node = specs[0], specs[0].node
    for kind, one in (
        ("queued_resource_id", request.queued_resource_id),
        ("node_id", spec.node_id),
    ):
        if not _ID.fullmatch(one):
            raise bad_request(
                f"{kind} {one!r} is not valid: lower-case letters, digits and dashes, at most 63,"
                " beginning with a letter"
            )
    if spec.parent != request.parent:
        raise bad_request(
            f"The parent of the node, {spec.parent!r}, is not the one of the queued resource,"
            f" {request.parent!r}"
        )
    offered = accelerators(zone)
    if node.accelerator_type not in offered:
        raise bad_request(
            "The requested accelerator configuration for accelerator type,"
            f' "{node.accelerator_type}", could not be found in the zonal accelerator'
            f' configurations for "{zone}".; the accelerator {node.accelerator_type} was not found'
            f" in zone {zone}"
        )
    if node.runtime_version not in RUNTIMES:
        raise bad_request(
            f'The requested runtime version, "{node.runtime_version}", could not be found in zone'
            f" {zone}"
        )
    if node.network_config and node.network_configs:
        raise bad_request("network_config and network_configs are mutually exclusive")
    for key, value in node.labels.items():
        if not _LABEL.fullmatch(key) or not _LABEL_VALUE.fullmatch(value) or len(node.labels) > 64:
            raise bad_request(f"The label {key!r}: {value!r} is not valid")
    sizes = [len(value.encode()) for value in node.metadata.values()]
    if max(sizes, default=0) > _VALUE_BYTES or sum(sizes) > _METADATA_BYTES:
        raise bad_request(
            f"The metadata are too large: at most {_VALUE_BYTES} bytes a value and"
            f" {_METADATA_BYTES} together"
        )
    for disk in node.data_disks:
        found = _DISK.fullmatch(disk.source_disk)
        if found is None or found[1] != zone:
            raise bad_request(
                f"The disk {disk.source_disk!r} is no projects/PROJECT/zones/{zone}/disks/NAME"
            )
    return offered[node.accelerator_type]


def tier_of(resource: tpu.QueuedResource) -> str:
    return next((tier for tier in ("spot", "guaranteed") if tier in resource), "on-demand")


def request_view(request: Request) -> tpu.QueuedResource:
    view = tpu.QueuedResource(request.spec)
    view.name, view.create_time = request.name, timestamp(request.created)
    state = tpu.QueuedResourceState(state=request.state, state_initiator=request.initiator)
    if request.state == State.FAILED and request.error is not None:
        error = status_pb2.Status(code=request.error[0], message=request.error[1])
        state.failed_data = tpu.QueuedResourceState.FailedData(error=error)
    elif request.state in _STATE_DATA:
        setattr(state, _STATE_DATA[request.state], {})
    view.state = state
    return view


def node_view(request: Request) -> tpu.Node:
    node = request.the_node
    view = tpu.Node(node.spec)
    view.name, view.state = node.name, node.state
    view.health, view.health_description = node.health, node.health_description
    view.queued_resource, view.api_version = request.name, tpu.Node.ApiVersion.V2_ALPHA1
    view.id, view.create_time = request.number, timestamp(request.created)
    view.scheduling_config = tpu.SchedulingConfig(spot=request.tier == "spot")
    if node.state != NodeState.CREATING:
        view.network_endpoints = [
            tpu.NetworkEndpoint(ip_address="127.0.0.1", port=8470) for _ in node.hosts
        ]
    return view


def timestamp(seconds: float) -> timestamp_pb2.Timestamp:
    return timestamp_pb2.Timestamp(seconds=int(seconds), nanos=int(seconds % 1 * 1e9))


def as_bytes(message: Any) -> bytes:
    return (
        message.SerializeToString()
        if hasattr(message, "SerializeToString")
        else type(message).serialize(message)
    )
