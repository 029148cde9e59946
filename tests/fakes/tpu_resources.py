"""Queued resources and nodes of the fake of Cloud TPU, their course through the states, their
quota, and what befalls them."""

import shutil
import threading
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import grpc
from google.cloud import tpu_v2alpha1 as tpu

from infra.tpu.types import TpuType
from tests.fakes.faults import WrongFault
from tests.fakes.tpu_faults import TpuFault, TpuFaults
from tests.fakes.tpu_metadata import instance_values
from tests.fakes.tpu_states import ApiError, Node, NodeState, Request, State
from tests.fakes.tpu_vm import Host, kill, reap

SECONDS = {
    "CREATING": 0.03,
    "ACCEPTED": 0.01,
    "WAITING_FOR_RESOURCES": 0.05,
    "PROVISIONING": 0.05,
    "SUSPENDING": 0.05,
    "DELETING": 0.05,
}
"""State -> how long it takes. What is not here lasts."""

QUOTA_CHIPS = 64
DEFAULT_ACCOUNT = "123456789012-compute@developer.gserviceaccount.com"
NO_CAPACITY = (
    'There is no more capacity in the zone "{zone}"; you can try in another zone where Cloud TPU'
    " Nodes are offered (see https://cloud.google.com/tpu/docs/regions) [EID: 0xba393c906974e61]"
)
_QUEUED = (State.CREATING, State.ACCEPTED, State.WAITING_FOR_RESOURCES)
_NEXT = {State.CREATING: State.ACCEPTED, State.ACCEPTED: State.WAITING_FOR_RESOURCES}
_TICK_SECONDS = 0.02


class Cloud:
    """All there is. `lock` guards it, `changed` is told of every change, a thread moves things on
    until `stop`.

    Args:
        fake: what the processes of all VMs are marked with.
        root: directory for the VMs' disks and serial output.

    Attributes:
        environment: more variables of the VMs that are made from now on, in addition to
            `fixed_environment`.
    """

    def __init__(self, fake: str, root: Path) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.faults = TpuFaults()
        self.seconds = dict(SECONDS)
        self.quota: dict[str, int] = {}
        self.made: list[Request] = []
        self.environment: dict[str, str] = {}
        self.fixed_environment: dict[str, str] = {}
        self.fake, self._root = fake, root
        self._numbers, self._slices = count(1), 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._move_on, daemon=True)
        self._thread.start()

    # What calls do

    def request(self, name: str) -> Request:
        """A queued resource that exists. Raises ApiError."""
        for one in self.made:
            if one.exists and one.name == name:
                return one
        raise ApiError(grpc.StatusCode.NOT_FOUND, f"Resource '{name}' was not found")

    def owner(self, node: str) -> Request:
        """The queued resource, gone or not, of a node that exists. Raises ApiError."""
        for one in self.made:
            if one.node_exists and one.the_node.name == node:
                return one
        raise ApiError(grpc.StatusCode.NOT_FOUND, f"Resource '{node}' was not found")

    def create(
        self, name: str, spec: tpu.QueuedResource, accelerator: TpuType, tier: str
    ) -> Request:
        """A checked request begins its course. Raises ApiError when the name is taken or the quota
        exhausted."""
        node = f"{name.rsplit('/', 2)[0]}/nodes/{spec.tpu.node_spec[0].node_id}"
        for one in self.made:
            taken = one.name if one.exists and one.name == name else ""
            if one.node_exists and one.the_node.name == node:
                taken = taken or node
            if taken:
                raise ApiError(grpc.StatusCode.ALREADY_EXISTS, f"Resource '{taken}' already exists")
        request = Request(next(self._numbers), name, spec, accelerator, tier)
        self._check_quota(request)
        self.made.append(request)
        self._enter(request, State.CREATING)
        return request

    def delete(self, request: Request) -> None:
        """Delete a request with its node, whatever its state (`force`). Raises ApiError when that
        is under way."""
        if request.state == State.DELETING:
            raise _under_way(request.name)
        self._enter(request, State.DELETING)
        if request.node_exists:
            self._delete_node(request, request.the_node)

    def delete_node(self, request: Request) -> None:
        """Delete the node alone: its request has nothing any more. Raises ApiError when it is being
        deleted."""
        if request.the_node.state == NodeState.DELETING:
            raise _under_way(request.the_node.name)
        self._delete_node(request, request.the_node)
        if request.exists:
            self._enter(request, State.SUSPENDING)

    def _check_quota(self, request: Request) -> None:
        limit = self.quota.get(f"{request.zone}/{request.tier}", QUOTA_CHIPS)
        here = (one for one in self.made if one.exists and one.zone == request.zone)
        held = sum(one.accelerator.chips for one in here if one.metric == request.metric)
        if held + request.accelerator.chips > limit:
            said = f"has been exceeded. Limit: {limit} in zone {request.zone}."
            raise ApiError(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"Quota limit '{request.metric}' {said}"
            )

    # What tests do

    def find(self, name: str) -> Request:
        """The newest resource whose name contains `name`. Raises WrongFault."""
        found = [one for one in self.made if name in one.name]
        if not found:
            names = [one.name for one in self.made]
            raise WrongFault(f"nothing called {name!r} was ever made; there are {names}")
        return found[-1]

    def strike(self, name: str, action: str, parameters: Mapping[str, Any]) -> None:
        """Something befalls a resource now."""
        fault = TpuFault(action, state="now", parameters=dict(parameters))
        self._befall(self.find(name), action, fault.parameters)

    def forget(self) -> None:
        """As after the start, with its times and quotas."""
        self.faults.clear()
        for request in self.made:
            request.exists = False
            self._remove_node(request, "forgotten")
        self.made.clear()
        self.seconds, self.quota = dict(SECONDS), {}

    def serial(self, request: Request, host: int) -> Path:
        """The file with a host's serial output."""
        short = request.name.rsplit("/", 1)[-1]
        return self._root / "serial" / f"{request.number}-{short}-{host}.log"

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        with self.lock:
            self.forget()

    # The course of things

    def _move_on(self) -> None:
        while not self._stopped.wait(_TICK_SECONDS):
            with self.lock:
                for request in self.made:
                    if request.exists or request.node_exists:
                        self._tick(request)
                reap()

    def _tick(self, request: Request) -> None:
        now = time.monotonic()
        for event in [event for event in request.events if event[0] <= now]:
            request.events.remove(event)
            self._befall(request, event[1], event[2])
        node, asked = request.node, request.exists and request.state == State.DELETING
        deleting = node is not None and node.exists and node.state == NodeState.DELETING
        if deleting and not asked and now - node.since >= self.seconds["DELETING"]:
            self._remove_node(request, "deleted")
        if not request.exists:
            return
        until = request.valid_until() if request.state in _QUEUED else None
        lasts = self.seconds.get(request.state.name, 1e9)
        if until is not None and time.time() > until:
            why = "The start timing constraint 'valid until' of the request has expired."
            self._fail(request, 4, why)
        elif now - request.since >= lasts and not self._is_stuck(request):
            self._advance(request)

    def _is_stuck(self, request: Request) -> bool:
        state = request.state.name
        return self.faults.stuck(f"{request.number} {state}", request.name, state)

    def _advance(self, request: Request) -> None:
        match request.state:
            case State.CREATING | State.ACCEPTED:
                self._enter(request, _NEXT[request.state])
            case State.WAITING_FOR_RESOURCES:
                spec = request.spec.tpu.node_spec[0]
                request.node = Node(f"{spec.parent}/nodes/{spec.node_id}", spec.node)
                self._enter(request, State.PROVISIONING)
                self._note(request, "node", NodeState.CREATING.name)
            case State.PROVISIONING:
                self._set_node(request, NodeState.READY)
                self._enter(request, State.ACTIVE)
                self._boot(request)
            case State.SUSPENDING:
                self._remove_node(request, "suspended")
                self._enter(request, State.SUSPENDED)
            case State.DELETING:
                self._remove_node(request, "deleted")
                request.exists = False
                self._note(request, "request", "GONE")

    def _enter(self, request: Request, state: State, why: str = "") -> None:
        request.state, request.since = state, time.monotonic()
        self._note(request, "request", state.name, why)
        for fault in self.faults.of_entry(request.name, state.name):
            request.events.append((time.monotonic(), fault.action, fault.parameters))

    def _note(self, request: Request, what: str, state: str, why: str = "") -> None:
        request.history.append((time.time(), what, state, why))
        self.changed.notify_all()

    def _fail(self, request: Request, code: int, message: str) -> None:
        request.error = (code, message)
        self._remove_node(request, "failed")
        self._enter(request, State.FAILED, message)

    def _set_node(self, request: Request, state: NodeState) -> None:
        node = request.the_node
        node.billed = node.billed_seconds()
        node.ready_at = time.monotonic() if state == NodeState.READY else None
        node.state, node.since = state, time.monotonic()
        self._note(request, "node", state.name)

    def _delete_node(self, request: Request, node: Node) -> None:
        self._set_node(request, NodeState.DELETING)
        for host in node.hosts:
            host.shut_down()

    def _remove_node(self, request: Request, why: str) -> None:
        node = request.node
        if node is None or not node.exists:
            return
        node.billed, node.ready_at, node.exists = node.billed_seconds(), None, False
        self._kill(node)
        for host in node.hosts:
            host.metadata.stop()
        node.hosts.clear()
        if node.directory is not None:
            shutil.rmtree(node.directory)
        self._note(request, "node", "GONE", why)

    # What befalls

    def _befall(self, request: Request, action: str, parameters: Mapping[str, Any]) -> None:
        node = request.node if request.node is not None and request.node.exists else None
        told = ", ".join(f"{name}={value}" for name, value in parameters.items())
        self._note(request, "event", action, told)
        match action:
            case "preempt" if parameters["notice"] and node is not None:
                for host in node.hosts:
                    host.metadata["instance/preempted"] = "TRUE"
                    host.shut_down()
                later = time.monotonic() + parameters["notice"]
                request.events.append((later, "preempt", {"notice": 0.0}))
            case "preempt":
                self._preempt(request)
            case "die" if node is not None:
                self._kill(node)
            case "reboot" if node is not None:
                self._kill(node)
                self._boot(request)
            case "vanish":
                if parameters["what"] == "both":
                    self._remove_node(request, "vanished")
                request.exists = False
                self._note(request, "request", "GONE", "vanished")
            case "fail" if request.exists and request.state != State.DELETING:
                code = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
                self._fail(request, code, NO_CAPACITY.format(zone=request.zone))

    def _preempt(self, request: Request) -> None:
        gone = (State.SUSPENDING, State.SUSPENDED, State.DELETING, State.FAILED)
        if not request.exists or request.state in gone:
            return
        if request.node is not None and request.node.exists:
            self._kill(request.node)
            self._set_node(request, NodeState.PREEMPTED)
        self._enter(request, State.SUSPENDING, "preempted")

    def _kill(self, node: Node) -> None:
        """Nothing runs any more on any host."""
        if node.hosts:
            kill(node.hosts[0].marker.rpartition("/")[0])

    def _boot(self, request: Request) -> None:
        """Run the startup script on all hosts; the VMs are made when there are none."""
        node = request.the_node
        if not node.hosts:
            self._slices += 1
            node.directory = self._root / "disks" / f"{self._slices}"
            hosts = range(request.accelerator.hosts)
            node.hosts = [self._host(request, node, index) for index in hosts]
        for one in node.hosts:
            one.boot()
            request.starts += 1

    def _host(self, request: Request, node: Node, index: int) -> Host:
        spec, kind = node.spec, request.accelerator
        values = instance_values(
            project=request.project,
            host=index,
            hosts=kind.hosts,
            metadata=spec.metadata,
            name=node.name.rsplit("/", 1)[-1],
            email=spec.service_account.email or DEFAULT_ACCOUNT,
        )
        serial, disk = self.serial(request, index), node.directory / f"{index}"
        serial.parent.mkdir(parents=True, exist_ok=True)
        marker = f"{self.fake}/{self._slices}/{index}"
        script = spec.metadata.get("startup-script", "")
        environment = self.fixed_environment | self.environment
        return Host(marker, disk, serial, script, values, environment)


def _under_way(name: str) -> ApiError:
    return ApiError(
        grpc.StatusCode.FAILED_PRECONDITION,
        "Cloud TPU received a bad request. delete is not supported while in state DELETING [EID:"
        f" 0x73013519f5b7feb2]; resource: {name}",
    )
