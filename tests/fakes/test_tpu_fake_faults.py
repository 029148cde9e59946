"""Each fault of the fake of Cloud TPU does what it says, to what it names and to nothing else."""

import time
from typing import Any

import pytest
from google.api_core import exceptions as errors
from google.cloud import tpu_v2alpha1 as api

from tests.fakes.tpu_client import PARENT, READ, SLEEP, create, delete, lines, name, state
from tests.fakes.tpu_fake import FakeTpu

State = api.QueuedResourceState.State


# Faults of calls


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        ("UNAVAILABLE", errors.ServiceUnavailable, "currently unavailable"),
        ("RESOURCE_EXHAUSTED", errors.ResourceExhausted, "Requests per minute"),
        ("INTERNAL", errors.InternalServerError, "internal error"),
        ("DEADLINE_EXCEEDED", errors.DeadlineExceeded, "Deadline"),
        ("PERMISSION_DENIED", errors.PermissionDenied, "Permission 'tpu.queuedResources.create' denied"),
    ],
)
def test_a_status_is_answered_in_place_of_an_execution(
    tpu: FakeTpu, tpu_client: api.TpuClient, code: str, error: type[Exception], message: str
) -> None:
    fault = tpu.faults.add("status", method="CreateQueuedResource", code=code, times=1)
    with pytest.raises(error, match=message):
        create(tpu_client, "a-1")
    assert tpu.resources() == []
    create(tpu_client, "a-1")
    assert tpu.faults.fired(fault) == 1


def test_a_lost_acknowledgement_of_a_creation_and_of_a_deletion(tpu: FakeTpu, tpu_client: api.TpuClient) -> None:
    tpu.faults.add("lost", method="CreateQueuedResource")
    with pytest.raises(errors.ServiceUnavailable):
        create(tpu_client, "a-1")
    tpu.wait("a-1", "ACTIVE")
    tpu.faults.add("lost", method="DeleteQueuedResource", code="DEADLINE_EXCEEDED")
    with pytest.raises(errors.DeadlineExceeded):
        delete(tpu_client, "a-1")
    tpu.wait("a-1", "GONE")


def test_connections_are_reset_before_or_after_the_execution(tpu: FakeTpu, tpu_client: api.TpuClient) -> None:
    tpu.faults.add("reset_before", method="CreateQueuedResource", times=1)
    with pytest.raises(errors.ServiceUnavailable, match=r"[Rr]eset|[Cc]losed|removed"):
        create(tpu_client, "a-1")
    assert tpu.resources() == []
    tpu.faults.add("reset_after", method="CreateQueuedResource", times=1)
    with pytest.raises(errors.ServiceUnavailable, match=r"[Rr]eset|[Cc]losed|removed"):
        create(tpu_client, "a-1")
    assert tpu.wait("a-1", "ACTIVE")
    assert state(tpu_client, "a-1") == "ACTIVE"  # the client connects again


def test_slow_answers_come_late(tpu: FakeTpu, tpu_client: api.TpuClient) -> None:
    tpu.faults.add("slow", method="ListNodes", delay=0.3, times=1)
    started = time.monotonic()
    tpu_client.list_nodes(parent=PARENT)
    assert time.monotonic() - started >= 0.3
    tpu.faults.add("slow", method="ListNodes", delay=5, times=1)
    with pytest.raises(errors.DeadlineExceeded):
        tpu_client.list_nodes(parent=PARENT, timeout=0.1)


def test_faults_strike_what_they_name_and_as_often_as_they_say(tpu: FakeTpu, tpu_client: api.TpuClient) -> None:
    tpu.faults.add("status", method="GetQueuedResource", name="b-", skip=1, times=1)
    tpu.faults.add("status", method="*", state="WAITING_FOR_RESOURCES", code="INTERNAL")
    tpu.faults.add("stuck", state="WAITING_FOR_RESOURCES", name="b-2")
    for short in ("a-1", "b-1", "b-2"):
        create(tpu_client, short)
        tpu.wait(short, "WAITING_FOR_RESOURCES" if short == "b-2" else "ACTIVE")
    assert [state(tpu_client, "a-1"), state(tpu_client, "b-1")] == ["ACTIVE", "ACTIVE"]
    with pytest.raises(errors.ServiceUnavailable):
        state(tpu_client, "b-1")
    assert state(tpu_client, "b-1") == "ACTIVE"
    with pytest.raises(errors.InternalServerError):
        state(tpu_client, "b-2")
    struck = 0
    tpu.faults.clear()
    tpu.faults.add("status", method="ListNodes", probability=0.5, seed=7)
    for _ in range(40):
        try:
            tpu_client.list_nodes(parent=PARENT)
        except errors.ServiceUnavailable:
            struck += 1
    assert 10 < struck < 30
    assert tpu.requests()["ListNodes"] == 40


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"action": "melt"}, "no fault 'melt'"),
        ({"action": "status"}, "status needs a method"),
        ({"action": "stuck"}, "stuck needs the state"),
        ({"action": "preempt", "state": "ACTIVE", "method": "GetNode"}, "preempt knows no method"),
        ({"action": "preempt", "state": "ACTIVE", "speed": 3}, "preempt has no speed"),
        ({"action": "status", "method": "GetNode", "code": "TEAPOT"}, "no code 'TEAPOT'"),
    ],
)
def test_a_fault_that_does_not_exist_is_an_error(tpu: FakeTpu, wish: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        tpu.faults.add(**wish)


# What befalls resources


@pytest.mark.parametrize("where", ["CREATING", "WAITING_FOR_RESOURCES", "PROVISIONING", "DELETING"])
def test_a_resource_is_stuck_as_long_as_the_fault_is_there(tpu: FakeTpu, tpu_client: api.TpuClient, where: str) -> None:
    fault = tpu.faults.add("stuck", state=where)
    create(tpu_client, "a-1")
    if where == "DELETING":
        tpu.wait("a-1", "ACTIVE")
        delete(tpu_client, "a-1")
    tpu.wait("a-1", where)
    with pytest.raises(TimeoutError):
        tpu.wait("a-1", "GONE" if where == "DELETING" else "ACTIVE", seconds=0.5)
    assert (state(tpu_client, "a-1"), tpu.faults.fired(fault)) == (where, 1)
    tpu.faults.clear()
    tpu.wait("a-1", "GONE" if where == "DELETING" else "ACTIVE")


def test_a_stockout_fails_the_request(tpu: FakeTpu, tpu_client: api.TpuClient) -> None:
    tpu.faults.add("fail", state="PROVISIONING")
    create(tpu_client, "a-1")
    made = tpu.wait("a-1", "FAILED")
    error = tpu_client.get_queued_resource(name=name("a-1")).state.failed_data.error
    assert (error.code, error.message) == (8, made.error)
    assert error.message.startswith('There is no more capacity in the zone "us-west4-a"; you can try in another zone')
    assert tpu.leaked() == [name("a-1")]
    assert made.billed_seconds == 0


@pytest.mark.parametrize("where", ["CREATING", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"])
def test_hard_preemption_in_any_state(tpu: FakeTpu, tpu_client: api.TpuClient, where: str) -> None:
    tpu.set_seconds(SUSPENDING=1)
    tpu.faults.add("preempt", state=where, delay=0.1 if where == "ACTIVE" else 0)
    create(tpu_client, "a-1", f"setsid sleep 998 & {SLEEP}")
    made = tpu.wait("a-1", "SUSPENDING")
    assert made.node_state == ("PREEMPTED" if where in ("PROVISIONING", "ACTIVE") else "GONE")
    assert tpu.processes("a-1") == []
    view = tpu_client.get_queued_resource(name=name("a-1")).state
    assert (view.state, view.state_initiator) == (State.SUSPENDING, api.QueuedResourceState.StateInitiator.SERVICE)
    assert tpu.wait("a-1", "SUSPENDED").node_state == "GONE"
    assert tpu.leaked() == [name("a-1")]


def test_soft_preemption_is_announced_to_the_vm_first(tpu: FakeTpu, tpu_client: api.TpuClient) -> None:
    wait = f"{READ}'/instance/preempted?wait_for_change=true&timeout_sec=20'"
    create(tpu_client, "a-1", f"trap 'echo asked' TERM; echo up; echo $({wait}); while :; do sleep 0.05; done")
    tpu.wait("a-1", "ACTIVE")
    lines(tpu, "a-1", 1)
    time.sleep(0.3)
    tpu.strike("preempt", "a-1", notice=1.0, sigterm=False)
    assert lines(tpu, "a-1", 2) == ["up", "TRUE"]
    assert state(tpu_client, "a-1") == "ACTIVE"
    assert tpu_client.get_node(name=f"{PARENT}/nodes/a-1").state == api.Node.State.READY
    made = tpu.wait("a-1", "SUSPENDED")
    times = {entry[2]: entry[0] for entry in made.history}
    announced = next(entry[0] for entry in made.history if entry[1] == "event")
    assert times["SUSPENDING"] - announced == pytest.approx(1.0, abs=0.3)
    create(tpu_client, "a-2", "trap 'echo asked' TERM; echo up; while :; do sleep 0.05; done")
    tpu.wait("a-2", "ACTIVE")
    lines(tpu, "a-2", 1)
    tpu.strike("preempt", "a-2", notice=0.5)
    tpu.wait("a-2", "SUSPENDED")
    assert "asked" in tpu.output("a-2")


def test_a_vm_dies_and_the_api_does_not_say_so(tpu: FakeTpu, tpu_client: api.TpuClient) -> None:
    create(tpu_client, "a-1", accelerator_type="v5litepod-16")
    tpu.wait("a-1", "ACTIVE")
    before = set(tpu.processes("a-1"))
    tpu.strike("die", "a-1", host=2)
    after = set(tpu.processes("a-1"))
    assert after < before
    assert len(after) == 3 * len(before) // 4
    tpu.strike("die", "a-1")
    assert tpu.processes("a-1") == []
    assert (state(tpu_client, "a-1"), tpu.resource("a-1").node_state) == ("ACTIVE", "READY")


def test_maintenance_is_announced_and_ends_the_vm(tpu: FakeTpu, tpu_client: api.TpuClient) -> None:
    create(tpu_client, "a-1", f"while [ $({READ}/instance/maintenance-event) = NONE ]; do sleep 0.02; done; echo soon; {SLEEP}")
    tpu.wait("a-1", "ACTIVE")
    tpu.strike("maintenance", "a-1", notice=0.7)
    assert lines(tpu, "a-1", 1) == ["soon"]
    node = tpu_client.get_node(name=f"{PARENT}/nodes/a-1")
    assert (node.state, node.health) == (api.Node.State.READY, api.Node.Health.UNHEALTHY_MAINTENANCE)
    assert "maintenance" in node.health_description
    made = tpu.wait("a-1", "TERMINATED")
    assert (made.state, tpu.processes("a-1")) == ("ACTIVE", [])
    billed = made.billed_seconds
    time.sleep(0.1)
    assert tpu.resource("a-1").billed_seconds == billed


def test_repair_boots_the_vm_again_and_a_false_alarm_does_nothing(tpu: FakeTpu, tpu_client: api.TpuClient) -> None:
    create(tpu_client, "a-1", f"echo up; {SLEEP}")
    tpu.wait("a-1", "ACTIVE")
    lines(tpu, "a-1", 1)
    tpu.strike("maintenance", "a-1", then="")
    tpu.strike("maintenance", "a-1", then="REPAIRING")
    tpu.wait("a-1", "REPAIRING")
    assert lines(tpu, "a-1", 2) == ["up", "up"]
    assert tpu.resource("a-1").states("node") == ["CREATING", "READY", "REPAIRING", "READY"]


def test_a_reboot_runs_the_script_again_on_the_same_disk(tpu: FakeTpu, tpu_client: api.TpuClient) -> None:
    create(tpu_client, "a-1", f"date +%N >> $HOME/boots; cat $HOME/boots; echo --; {SLEEP}")
    tpu.wait("a-1", "ACTIVE")
    lines(tpu, "a-1", 2)
    tpu.strike("reboot", "a-1")
    said = lines(tpu, "a-1", 5)
    assert said[0] == said[2]
    assert said[1] == said[4] == "--"
    assert (tpu.resource("a-1").starts, tpu.resource("a-1").node_state) == (2, "READY")
    create(tpu_client, "a-2", f"echo up; {SLEEP}", accelerator_type="v5litepod-16")
    tpu.wait("a-2", "ACTIVE")
    lines(tpu, "a-2", 1, host=3)
    tpu.strike("reboot", "a-2", host=3)
    lines(tpu, "a-2", 2, host=3)
    assert tpu.resource("a-2").starts == 5


def test_a_node_is_stopped_by_somebody(tpu: FakeTpu, tpu_client: api.TpuClient) -> None:
    create(tpu_client, "a-1")
    tpu.wait("a-1", "ACTIVE")
    tpu.strike("node", "a-1", state="STOPPED")
    assert (state(tpu_client, "a-1"), tpu.resource("a-1").node_state, tpu.processes("a-1")) == ("ACTIVE", "STOPPED", [])


@pytest.mark.parametrize("hang", [False, True])
def test_a_boot_that_never_comes_up(tpu: FakeTpu, tpu_client: api.TpuClient, hang: bool) -> None:
    tpu.faults.add("no_boot", hang=hang, times=1)
    create(tpu_client, "a-1", f"echo up; {SLEEP}")
    made = tpu.wait("a-1", "ACTIVE")
    assert (made.node_state, made.starts, len(tpu.processes("a-1")) > 0) == ("READY", int(hang), hang)
    create(tpu_client, "a-2", f"echo up; {SLEEP}")
    tpu.wait("a-2", "ACTIVE")
    lines(tpu, "a-2", 1)
    assert tpu.output("a-1") == ""


@pytest.mark.parametrize("what", ["node", "request", "both"])
def test_things_vanish(tpu: FakeTpu, tpu_client: api.TpuClient, what: str) -> None:
    create(tpu_client, "a-1")
    tpu.wait("a-1", "ACTIVE")
    tpu.strike("vanish", "a-1", what=what)
    node = f"{PARENT}/nodes/a-1"
    if what in ("node", "both"):
        with pytest.raises(errors.NotFound):
            tpu_client.get_node(name=node)
        assert tpu.processes("a-1") == []
    else:
        assert tpu_client.get_node(name=node).state == api.Node.State.READY
        assert tpu.processes("a-1")
        tpu_client.delete_node(name=node)
        tpu.wait("a-1", "GONE")
    if what in ("request", "both"):
        with pytest.raises(errors.NotFound):
            state(tpu_client, "a-1")
        assert tpu.leaked() == []
    else:
        assert state(tpu_client, "a-1") == "ACTIVE"
        delete(tpu_client, "a-1")
        tpu.wait("a-1", "GONE")


def test_a_deletion_is_not_undone_by_what_befalls_meanwhile(tpu: FakeTpu, tpu_client: api.TpuClient) -> None:
    tpu.faults.add("stuck", state="DELETING")
    create(tpu_client, "a-1")
    tpu.wait("a-1", "ACTIVE")
    delete(tpu_client, "a-1")
    for event in ("preempt", "fail", "node"):
        tpu.strike(event, "a-1")
    assert (state(tpu_client, "a-1"), tpu.resource("a-1").node_state) == ("DELETING", "DELETING")
    tpu.faults.clear()
    tpu.wait("a-1", "GONE")
    assert tpu.leaked() == []
