"""Cloud TPU, and its client as `infra.tpu.api` uses it: requests, their nodes and what befalls
them. A node's VM runs Lyceum's own agent."""

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, TypeVar

from google.api_core import exceptions
from google.cloud import tpu_v2alpha1 as tpu

from infra import source
from infra.tpu.types import TPU_TYPES
from tests.simulation.contexts import TPU
from tests.simulation.faults import Faults, Refused
from tests.simulation.laws import Laws
from tests.simulation.machine import Machine, NodeState, State
from tests.simulation.payments import LATE_SECONDS
from tests.simulation.plan import Event, Plan
from tests.simulation.threads import Condition
from tests.simulation.world import EPOCH, Process, World

T = TypeVar("T")
SECONDS = {"CREATING": 1.0, "ACCEPTED": 1.0, "WAITING_FOR_RESOURCES": 4.0, "PROVISIONING": 5.0}
"""How long a request is in a state."""
BOOT_SECONDS = 4.0
DELETE_SECONDS = 3.0
_NEXT = {"CREATING": State.ACCEPTED, "ACCEPTED": State.WAITING_FOR_RESOURCES}
_USELESS = (State.FAILED, State.SUSPENDING, State.SUSPENDED)
_HOPEFUL = (State.CREATING, State.ACCEPTED, State.WAITING_FOR_RESOURCES, State.PROVISIONING)


class Cloud:
    """The service.

    Args:
        boot: starts the agent of a host of a machine.

    Attributes:
        machines: all that were ever asked for.
        away, reluctant, full: until when calls, deletions and requests for capacity fail.
        refused, refusal: until when requests for machines are answered with that.
    """

    def __init__(
        self,
        world: World,
        faults: Faults,
        laws: Laws,
        plan: Plan,
        uri: str,
        boot: Callable[[Machine, int], Process],
    ) -> None:
        self._world, self._faults, self._laws, self._boot = world, faults, laws, boot
        self._hosts = TPU_TYPES[plan.target].hosts
        self._events = [event for event in plan.events if event.who.startswith("machine")]
        self.machines: list[Machine] = []
        self.away = self.reluctant = self.full = self.refused = 0.0
        self.refusal: Exception | None = None
        source.archive()  # out here: kept for all histories; of no use, it counts as sent
        source._shipped[uri] = math.inf

    def calm(self) -> None:
        """From here on nothing befalls anybody."""
        self.away = self.reluctant = self.full = self.refused = 0.0
        self._events.clear()

    # The client's methods

    def create_queued_resource(self, *, request: dict[str, Any], retry: Any, timeout: float) -> Any:
        name = f"{request['parent']}/queuedResources/{request['queued_resource_id']}"
        node = request["queued_resource"]["tpu"]["node_spec"][0]["node"]
        until = request["queued_resource"]["queueing_policy"]["valid_until_duration"]["seconds"]

        def create() -> bool:
            if self.refusal is not None and self._world.now < self.refused:
                raise self.refusal
            if any(one.name == name and (one.state or one.node) for one in self.machines):
                raise exceptions.AlreadyExists(f"Resource '{name}' already exists")
            made = Machine(
                len(self.machines) + 1, name, dict(node["labels"]), dict(node["metadata"])
            )
            self._told(made)
            self.machines.append(made)
            self._enter(made, State.CREATING)
            self._world.at(self._world.now + until, lambda: self._expire(made))
            return True

        return self._call("ask create", name, create, retry)

    def get_queued_resource(self, *, request: dict[str, Any], retry: Any, timeout: float) -> Any:
        return self._call(
            "ask get", request["name"], lambda: self._view(self._request(request["name"])), retry
        )

    def get_node(self, *, request: dict[str, Any], retry: Any, timeout: float) -> Any:
        return self._call(
            "ask get", request["name"], lambda: self._node_view(self._node(request["name"])), retry
        )

    def delete_queued_resource(self, *, request: dict[str, Any], retry: Any, timeout: float) -> Any:
        def delete() -> bool:
            self._require_will()
            found = self._request(request["name"])
            if found.state == State.DELETING:
                raise exceptions.FailedPrecondition("the resource is being deleted")
            working = bool(found.processes) and found.working() and not self._silent(found)
            process, labels = self._world.check().process, found.labels
            if found.state not in _USELESS:
                whose = found.metadata["lyceum-job"].split("/")[1], labels["lyceum-attempt"]
                self._laws.deleted(process, *whose, found.number, working)
            found.left_in = found.state
            self._enter(found, State.DELETING)
            self._end_vm(found, "is shut down with its machine")
            if found.node is not None:
                found.node = NodeState.DELETING
            return True

        return self._call("ask delete", request["name"], delete, retry)

    def delete_node(self, *, request: dict[str, Any], retry: Any, timeout: float) -> Any:
        def delete() -> bool:
            self._require_will()
            found = self._node(request["name"])
            found.node = NodeState.DELETING
            self._end_vm(found, "is shut down with its machine")
            self._world.at(self._world.now + DELETE_SECONDS, lambda: self._remove_node(found))
            return True

        return self._call("ask delete", request["name"], delete, retry)

    def list_queued_resources(self, *, request: dict[str, Any], retry: Any, timeout: float) -> Any:
        def look() -> list[Any]:
            if self.refusal is not None and self._world.now < self.refused:
                raise self.refusal
            here = (one for one in self.machines if one.state is not None)
            return [self._view(one) for one in here if one.name.startswith(request["parent"] + "/")]

        return self._call("ask list", request["parent"], look, retry)

    def list_nodes(self, *, request: dict[str, Any], retry: Any, timeout: float) -> Any:
        def look() -> list[Any]:
            here = (one for one in self.machines if one.node is not None)
            parent = request["parent"] + "/"
            return [self._node_view(one) for one in here if one.name.startswith(parent)]

        return self._call("ask list", request["parent"], look, retry)

    def metadata(self, machine: Machine, url: str) -> str:
        """What the metadata server of a VM answers, as soon as it is news."""
        if "/preempted?" not in url:
            self._world.sleep(60.0)
            return "NONE"
        if machine.taken == "FALSE" and machine.told is not None:
            with machine.told:
                machine.told.wait(60.0)
        return machine.taken

    # The service

    def _told(self, made: Machine) -> None:
        """The laws hear of a request for a machine."""
        process = self._world.check().process
        made.asked_by, made.asked = process, self._world.now
        key, attempt = made.labels["lyceum-key"], made.labels["lyceum-attempt"]
        others = [
            f"machine {one.number}"
            for one in self.machines
            if one.labels["lyceum-key"] == key
            and one.there
            and not one.leaving
            and one.state not in _USELESS
            and one.asked_by is not None
            and (one.asked_by is process or not one.asked_by.alive)
            and self._world.now > max(self.away, self.reluctant) + 10.0
        ]
        whole = made.metadata["lyceum-job"].split("/")[1]
        made.late = self._laws.machine(process, whole, attempt, others)
        for one in self.machines if not self._laws.refused else ():
            lasted = self._world.now - one.asked
            same = one.job == made.job and one.asked_by is process
            if same and one.left_in in _HOPEFUL and lasted < 30.0:
                how = f"{process.name} gave machine {one.number} up after {lasted:.0f} s"
                self._laws.break_("no zone is given up for nothing", how)
        if self._world.now > self.away + LATE_SECONDS:  # else nobody knows what there is
            self._laws.payments.another(process, self.machines)

    def _call(self, what: str, name: str, effect: Callable[[], T], retry: Any) -> T:
        def once() -> T:
            self._world.sleep(self._world.random.uniform(0.02, 0.2))
            if self._world.now < self.away:
                raise exceptions.ServiceUnavailable("The service is currently unavailable.")
            failed: list[Exception] = []

            def attempt() -> T | None:
                try:
                    return effect()
                except exceptions.GoogleAPICallError as error:
                    failed.append(error)
                    return None

            short = "/".join(name.split("/")[3:])
            try:
                result = self._faults.operation(what, short, attempt, remote=True)
            except Refused:
                raise exceptions.ServiceUnavailable("The service is unavailable.") from None
            if failed:
                raise failed[0]
            return result  # type: ignore[return-value]

        return retry(once)()  # type: ignore[no-any-return]

    def _require_will(self) -> None:
        if self._world.now < self.reluctant:
            raise exceptions.InternalServerError("an internal error has occurred")

    def _request(self, name: str) -> Machine:
        for one in self.machines:
            if one.name == name and one.state is not None:
                return one
        raise exceptions.NotFound(f"Resource '{name}' was not found")

    def _node(self, name: str) -> Machine:
        for one in self.machines:
            if one.node_name == name and one.node is not None:
                return one
        raise exceptions.NotFound(f"Resource '{name}' was not found")

    def _view(self, one: Machine) -> Any:
        error = SimpleNamespace(code=8, message=one.error)
        state = SimpleNamespace(state=one.state, failed_data=SimpleNamespace(error=error))
        node = SimpleNamespace(labels=one.labels, metadata=one.metadata)
        spec = SimpleNamespace(node=node)
        return SimpleNamespace(name=one.name, state=state, tpu=SimpleNamespace(node_spec=[spec]))

    def _node_view(self, one: Machine) -> Any:
        owner = one.name if one.state is not None else ""
        created = datetime.fromtimestamp(EPOCH + (one.ready or 0.0), UTC)
        return SimpleNamespace(
            name=one.node_name, state=one.node, health=tpu.Node.Health.HEALTHY,
            health_description="", labels=one.labels, metadata=one.metadata,
            create_time=created, queued_resource=owner,
        )  # fmt: skip

    def _of(self, one: Machine, *actions: str) -> Iterator[Event]:
        for event in self._events:
            if event.who == f"machine {one.number}" and event.action in actions:
                yield event

    def _enter(self, one: Machine, state: Any) -> None:
        one.state = state
        self._world.say(f"the cloud: machine {one.number} is {state.name}")
        seconds = SECONDS.get(state.name)
        if state in (State.DELETING, State.SUSPENDING):
            seconds = DELETE_SECONDS
        stuck = state == State.WAITING_FOR_RESOURCES and any(self._of(one, "stuck"))
        if seconds is not None and not stuck:
            self._world.at(self._world.now + seconds, lambda: self._advance(one, state))

    def _advance(self, one: Machine, before: Any) -> None:
        if one.state != before:
            return
        if before.name in _NEXT:
            self._enter(one, _NEXT[before.name])
        elif before == State.WAITING_FOR_RESOURCES and self._world.now < self.full:
            one.error = "There is no more capacity in the zone"
            self._enter(one, State.FAILED)
        elif before == State.WAITING_FOR_RESOURCES:
            one.node = NodeState.CREATING
            self._enter(one, State.PROVISIONING)
        elif before == State.PROVISIONING:
            one.node, one.ready = NodeState.READY, self._world.now
            one.told = Condition(self._world)
            self._enter(one, State.ACTIVE)
            if not any(self._of(one, "unbootable")):
                self._world.at(self._world.now + BOOT_SECONDS, lambda: self._boot_vm(one))
            for event in self._of(one, "preempt", "mute", "freeze"):
                self._world.at(self._world.now + event.at, self._befalling(one, event))
        elif before == State.SUSPENDING:
            self._remove_node(one)
            self._enter(one, State.SUSPENDED)
        elif before == State.DELETING:
            self._remove_node(one)
            one.state = None
            self._world.say(f"the cloud: machine {one.number} is gone")

    def _boot_vm(self, one: Machine) -> None:
        if one.node == NodeState.READY:
            one.processes += [self._boot(one, host) for host in range(self._hosts)]
            # the first host's worker is the last that has something to lose
            first = lambda each: each.role == "worker" and "." not in each.machine  # noqa: E731
            one.working = lambda: any(map(first, self._on(one)))

    def _befalling(self, one: Machine, event: Event) -> Callable[[], None]:
        def mute() -> None:
            for process in self._on_one_host(one):
                self._world.pause(process, 60.0)

        def freeze() -> None:
            for process in self._on_one_host(one):
                self._world.kill(process, "stands still for ever")
                one.frozen = True

        def preempt() -> None:
            if one.node == NodeState.READY and one.state == State.ACTIVE:
                self._world.say(f"the cloud takes machine {one.number} back")
                self._end_vm(one, "is preempted")
                one.node = NodeState.PREEMPTED
                self._enter(one, State.SUSPENDING)

        def announce() -> None:
            one.taken = "TRUE"
            if one.told is not None:
                one.told.notify_all()
            self._world.at(self._world.now + 4.0, preempt)

        taken = announce if int(event.at * 10) % 2 else preempt
        return {"mute": mute, "freeze": freeze}.get(event.action, taken)

    def _end_vm(self, one: Machine, why: str) -> None:
        for process in self._on(one):
            self._world.kill(process, why)
        one.gone = one.gone if one.ready is None else self._world.now

    def _silent(self, one: Machine) -> bool:
        """Whether one of its processes has stood still until everybody took it for dead."""
        now, most = self._world.now, TPU.silence_seconds
        return any(each.paused > now > each.stopped + most for each in self._on(one))

    def _on(self, one: Machine) -> list[Process]:
        """The processes of its VM that live."""
        machine, there = f"vm{one.number}", (each for each in self._world.processes if each.alive)
        return [each for each in there if each.machine.partition(".")[0] == machine]

    def _on_one_host(self, one: Machine) -> list[Process]:
        """Those of one of its hosts."""
        number = self._world.random.randrange(self._hosts)
        host = f"vm{one.number}.{number}" if number else f"vm{one.number}"
        return [each for each in self._on(one) if each.machine == host]

    def _remove_node(self, one: Machine) -> None:
        self._end_vm(one, "is gone with its machine")
        one.node = None

    def _expire(self, one: Machine) -> None:
        if one.state in (State.CREATING, State.ACCEPTED, State.WAITING_FOR_RESOURCES):
            one.error = "The start timing constraint 'valid until' of the request has expired."
            self._enter(one, State.FAILED)
