"""The fake of Cloud TPU answers as the real service does, as the real client sees it."""

import time
import uuid
from typing import Any

import pytest
from google.api_core import exceptions as errors
from google.cloud import tpu_v2alpha1 as api
from google.longrunning import operations_pb2
from google.rpc import error_details_pb2

from tests.fakes.tpu_catalog import ZONES, accelerators
from tests.fakes.tpu_client import PARENT, ZONE, create, delete, name, resource, state
from tests.fakes.tpu_fake import FakeTpu

# The course of a request


def test_a_request_goes_through_all_states_and_is_paid_for_while_its_node_is_ready(
    tpu: FakeTpu, tpu_client: api.TpuClient
) -> None:
    operation = create(tpu_client, "a-1", labels={"team": "nlp"})
    assert operation.metadata.target == name("a-1")
    assert operation.metadata.verb == "create"
    assert operation.result(timeout=60).name == name("a-1")
    tpu.wait("a-1", "ACTIVE")
    seen = tpu_client.get_queued_resource(name=name("a-1"))
    assert "active_data" in seen.state
    assert "spot" in seen
    assert seen.create_time.timestamp() == pytest.approx(time.time(), abs=120)
    node = tpu_client.get_node(name=f"{PARENT}/nodes/a-1")
    assert (node.state, node.health) == (api.Node.State.READY, api.Node.Health.HEALTHY)
    assert (node.queued_resource, dict(node.labels), node.accelerator_type) == (
        name("a-1"),
        {"team": "nlp"},
        "v5litepod-8",
    )
    assert node.scheduling_config.spot
    assert len(node.network_endpoints) == 1
    time.sleep(0.1)
    tpu.faults.add("stuck", state="DELETING")
    deletion = delete(tpu_client, "a-1")
    assert state(tpu_client, "a-1") == "DELETING"
    assert tpu_client.get_node(name=node.name).state == api.Node.State.DELETING
    tpu.faults.clear()
    made = tpu.wait("a-1", "GONE")
    with pytest.raises(
        TypeError, match="Could not convert"
    ):  # as with the real service: it answers with Empty
        deletion.result(timeout=60)
    for gone in (
        lambda: tpu_client.get_queued_resource(name=name("a-1")),
        lambda: tpu_client.get_node(name=node.name),
    ):
        with pytest.raises(errors.NotFound, match="was not found"):
            gone()
    assert made.states() == [
        "CREATING",
        "ACCEPTED",
        "WAITING_FOR_RESOURCES",
        "PROVISIONING",
        "ACTIVE",
        "DELETING",
        "GONE",
    ]
    assert made.states("node") == ["CREATING", "READY", "DELETING", "GONE"]
    assert 0.1 <= made.billed_seconds < 120
    assert (made.state, made.node_state, made.tier, made.chips) == ("GONE", "GONE", "spot", 8)
    assert tpu.leaked() == []


def test_a_request_that_waits_for_longer_than_it_is_valid_fails(
    tpu: FakeTpu, tpu_client: api.TpuClient
) -> None:
    tpu.faults.add("stuck", state="WAITING_FOR_RESOURCES")
    order = {**resource("a-1"), "queueing_policy": {"valid_until_duration": {"seconds": 1}}}
    tpu_client.create_queued_resource(
        parent=PARENT, queued_resource_id="a-1", queued_resource=order
    )
    made = tpu.wait("a-1", "FAILED")
    assert "valid until" in made.error
    failed = tpu_client.get_queued_resource(name=name("a-1")).state.failed_data.error
    assert (failed.code, failed.message) == (4, made.error)


@pytest.mark.parametrize(
    "where",
    [
        "CREATING",
        "ACCEPTED",
        "WAITING_FOR_RESOURCES",
        "PROVISIONING",
        "ACTIVE",
        "SUSPENDED",
        "FAILED",
    ],
)
def test_deletion_without_force_is_legal_where_nothing_runs(
    tpu: FakeTpu, tpu_client: api.TpuClient, where: str
) -> None:
    if where == "SUSPENDED":
        tpu.faults.add("preempt", state="WAITING_FOR_RESOURCES")
    elif where == "FAILED":
        tpu.faults.add("fail", state="WAITING_FOR_RESOURCES")
    elif where != "ACTIVE":
        tpu.faults.add("stuck", state=where)
    tpu.faults.add("stuck", state="DELETING")
    create(tpu_client, "a-1")
    tpu.wait("a-1", where)
    if where in ("ACCEPTED", "WAITING_FOR_RESOURCES", "SUSPENDED", "FAILED"):
        delete(tpu_client, "a-1", force=False)
    else:
        with pytest.raises(
            errors.FailedPrecondition, match=f"not supported while in state {where}"
        ):
            delete(tpu_client, "a-1", force=False)
        delete(tpu_client, "a-1", force=True)
    with pytest.raises(errors.FailedPrecondition, match="in state DELETING"):
        delete(tpu_client, "a-1")
    tpu.faults.clear()
    tpu.wait("a-1", "GONE")
    assert tpu.leaked() == []


def test_names_are_taken_as_long_as_the_resource_exists(
    tpu: FakeTpu, tpu_client: api.TpuClient
) -> None:
    create(tpu_client, "a-1")
    with pytest.raises(errors.AlreadyExists, match="already exists"):
        create(tpu_client, "a-1")
    create(tpu_client, "a-1", parent=PARENT.replace(ZONE, "us-west1-c"))
    tpu.wait(name("a-1"), "ACTIVE")
    tpu.faults.add("stuck", state="DELETING")
    delete(tpu_client, "a-1")
    with pytest.raises(errors.AlreadyExists):
        create(tpu_client, "a-1")
    tpu.faults.clear()
    tpu.wait(name("a-1"), "GONE")
    create(tpu_client, "a-1")


def test_a_repeated_request_id_starts_nothing_twice(
    tpu: FakeTpu, tpu_client: api.TpuClient
) -> None:
    tpu.faults.add("stuck", state="DELETING")
    request = {
        "parent": PARENT,
        "queued_resource_id": "a-1",
        "queued_resource": resource("a-1"),
        "request_id": str(uuid.uuid4()),
    }
    first, second = (
        tpu_client.create_queued_resource(request=request),
        tpu_client.create_queued_resource(request=request),
    )
    assert first.operation.name == second.operation.name
    assert len(tpu.resources()) == 1
    tpu.wait("a-1", "ACTIVE")
    request = {"name": name("a-1"), "force": True, "request_id": str(uuid.uuid4())}
    first, second = (
        tpu_client.delete_queued_resource(request=request),
        tpu_client.delete_queued_resource(request=request),
    )
    assert first.operation.name == second.operation.name
    with pytest.raises(errors.InvalidArgument, match="not a valid UUID"):
        tpu_client.delete_queued_resource(request={"name": name("a-1"), "request_id": "again"})


def test_a_suspended_request_stays_until_it_is_reset(
    tpu: FakeTpu, tpu_client: api.TpuClient
) -> None:
    create(tpu_client, "a-1")
    tpu.wait("a-1", "ACTIVE")
    with pytest.raises(
        errors.FailedPrecondition, match="reset is not supported while in state ACTIVE"
    ):
        tpu_client.reset_queued_resource(name=name("a-1"))
    tpu.strike("preempt", "a-1")
    tpu.wait("a-1", "SUSPENDED")
    tpu_client.reset_queued_resource(name=name("a-1"))
    assert tpu.wait("a-1", "ACTIVE").starts == 2


def test_deleting_the_node_alone_suspends_its_request(
    tpu: FakeTpu, tpu_client: api.TpuClient
) -> None:
    create(tpu_client, "a-1")
    tpu.wait("a-1", "ACTIVE")
    tpu_client.delete_node(name=f"{PARENT}/nodes/a-1")
    made = tpu.wait("a-1", "SUSPENDED")
    assert made.node_state == "GONE"
    assert (
        tpu_client.get_queued_resource(name=name("a-1")).state.state_initiator
        == api.QueuedResourceState.StateInitiator.USER
    )
    assert tpu.leaked() == [name("a-1")]


# What is refused


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"queued_resource_id": "A_1"},
            errors.InvalidArgument,
            "queued_resource_id 'A_1' is not valid",
        ),
        ({"queued_resource_id": "a" * 64}, errors.InvalidArgument, "is not valid"),
        (
            {"queued_resource": resource("Node")},
            errors.InvalidArgument,
            "node_id 'Node' is not valid",
        ),
        (
            {"queued_resource": {"tpu": {"node_spec": []}}},
            errors.InvalidArgument,
            "exactly one node",
        ),
        (
            {"queued_resource": resource("a-1", parent="projects/x/locations/y")},
            errors.InvalidArgument,
            "parent of the node",
        ),
        (
            {"queued_resource": resource("a-1", accelerator_type="v3-8")},
            errors.InvalidArgument,
            (
                'accelerator type, "v3-8", could not be found in the zonal accelerator'
                ' configurations for "us-west4-a"'
            ),
        ),
        (
            {"queued_resource": resource("a-1", runtime_version="v1")},
            errors.InvalidArgument,
            'runtime version, "v1"',
        ),
        (
            {"queued_resource": resource("a-1", labels={"Team": "x"})},
            errors.InvalidArgument,
            "The label 'Team'",
        ),
        (
            {"queued_resource": resource("a-1", metadata={"x": "y" * 300_000})},
            errors.InvalidArgument,
            "too large",
        ),
        (
            {"queued_resource": resource("a-1", data_disks=[{"source_disk": "weights"}])},
            errors.InvalidArgument,
            "'weights' is no",
        ),
        (
            {
                "queued_resource": resource(
                    "a-1", network_config={"network": "a"}, network_configs=[{"network": "b"}]
                )
            },
            errors.InvalidArgument,
            "mutually exclusive",
        ),
        ({"parent": "projects/lyceum-test"}, errors.InvalidArgument, "Malformed name"),
    ],
)
def test_bad_requests_are_refused(
    tpu_client: api.TpuClient,
    tpu: FakeTpu,
    change: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    request = {
        "parent": PARENT,
        "queued_resource_id": "a-1",
        "queued_resource": resource("a-1"),
        **change,
    }
    with pytest.raises(error, match=message):
        tpu_client.create_queued_resource(request=request)
    assert tpu.resources() == []


def test_an_unknown_zone_is_refused_by_all_calls(tpu_client: api.TpuClient) -> None:
    parent = "projects/lyceum-test/locations/mars-1-a"
    for call in (
        lambda: create(tpu_client, "a-1", parent=parent),
        lambda: tpu_client.get_queued_resource(name=name("a-1", parent)),
        lambda: tpu_client.list_nodes(parent=parent),
    ):
        with pytest.raises(
            errors.PermissionDenied,
            match="Location mars-1-a is not found or access is unauthorized",
        ) as refused:
            call()
        assert refused.value.reason == "LOCATION_POLICY_VIOLATED"


def test_quota_is_held_until_deletion_also_by_what_failed_or_was_suspended(
    tpu: FakeTpu, tpu_client: api.TpuClient
) -> None:
    tpu.set_quota("spot", 24)
    create(tpu_client, "a-1")
    tpu.wait("a-1", "ACTIVE")
    tpu.strike("preempt", "a-1")
    tpu.wait("a-1", "SUSPENDED")
    tpu.faults.add("fail", state="WAITING_FOR_RESOURCES", name="a-2")
    create(tpu_client, "a-2")
    tpu.wait("a-2", "FAILED")
    create(tpu_client, "a-3")
    quota = "TPUV5sPreemptibleLitepodPerProjectPerZoneForTPUAPI"
    with pytest.raises(
        errors.ResourceExhausted,
        match=f"Quota limit '{quota}' has been exceeded. Limit: 24 in zone us-west4-a",
    ) as refused:
        create(tpu_client, "a-4")
    (detail,) = refused.value.details
    assert isinstance(detail, error_details_pb2.QuotaFailure)
    assert (
        detail.violations[0].description
        == f"Quota '{quota}' exhausted. Limit 24 in zone us-west4-a"
    )
    create(tpu_client, "a-4", tier="on-demand")  # another quota
    create(tpu_client, "a-5", parent=PARENT.replace(ZONE, "us-west1-c"))  # another zone
    delete(tpu_client, "a-1", force=False)
    with pytest.raises(errors.ResourceExhausted):
        create(tpu_client, "a-6")
    tpu.wait("a-1", "GONE")
    create(tpu_client, "a-6")
    tpu.set_quota("on-demand", 0, zone="us-west1-c")
    with pytest.raises(
        errors.ResourceExhausted,
        match=r"'TPUV5sLitepodPerProjectPerZoneForTPUAPI'.* Limit: 0 in zone us-west1-c",
    ):
        create(tpu_client, "a-7", parent=PARENT.replace(ZONE, "us-west1-c"), tier="on-demand")


# Listings


def test_listings_are_paged_and_cover_one_zone_or_all(
    tpu: FakeTpu, tpu_client: api.TpuClient
) -> None:
    tpu.set_quota("spot", 1000)
    for number in range(5):
        create(tpu_client, f"a-{number}")
    create(tpu_client, "a-9", parent=PARENT.replace(ZONE, "us-west1-c"))
    pages = list(tpu_client.list_queued_resources(request={"parent": PARENT, "page_size": 2}).pages)
    assert [[one.name for one in page.queued_resources] for page in pages] == [
        [name("a-0"), name("a-1")],
        [name("a-2"), name("a-3")],
        [name("a-4")],
    ]
    everywhere = tpu_client.list_queued_resources(parent="projects/lyceum-test/locations/-")
    assert len(list(everywhere)) == 6
    tpu.wait("a-9", "ACTIVE")
    assert len(list(tpu_client.list_nodes(parent="projects/lyceum-test/locations/-"))) == 6
    assert not list(tpu_client.list_queued_resources(parent="projects/other/locations/-"))
    with pytest.raises(errors.InvalidArgument, match="page token"):
        tpu_client.list_queued_resources(request={"parent": PARENT, "page_token": "x"})


def test_it_says_what_is_on_offer(tpu_client: api.TpuClient) -> None:
    types = [one.type_ for one in tpu_client.list_accelerator_types(parent=PARENT)]
    assert types == sorted(accelerators(ZONE))
    assert "v2-alpha-tpuv5-lite" in [
        one.version for one in tpu_client.list_runtime_versions(parent=PARENT)
    ]
    places = tpu_client.list_locations({"name": "projects/lyceum-test"})
    assert [one.location_id for one in places.locations] == sorted(ZONES)


def test_operations_can_be_read_and_listed_and_their_cancelling_has_no_effect(
    tpu: FakeTpu, tpu_client: api.TpuClient
) -> None:
    tpu.faults.add("stuck", state="CREATING")
    operation = create(tpu_client, "a-1").operation
    assert not tpu_client.get_operation({"name": operation.name}).done
    tpu_client.cancel_operation({"name": operation.name})
    metadata = api.OperationMetadata.deserialize(
        tpu_client.get_operation({"name": operation.name}).metadata.value
    )
    assert metadata.cancel_requested
    tpu.faults.clear()
    tpu.wait("a-1", "ACTIVE")
    listed: operations_pb2.ListOperationsResponse = tpu_client.list_operations({"name": PARENT})
    assert [(one.name, one.done) for one in listed.operations] == [(operation.name, True)]
    tpu_client.delete_operation({"name": operation.name})
    with pytest.raises(errors.NotFound):
        tpu_client.get_operation({"name": operation.name})
