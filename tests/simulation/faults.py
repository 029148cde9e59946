"""Faults strike operations: what each operation of a simulated process goes through."""

from collections.abc import Callable
from typing import TypeVar

from tests.simulation.naming import short
from tests.simulation.plan import Fault, Plan
from tests.simulation.world import Killed, Process, World

T = TypeVar("T")


class Refused(Exception):
    """An operation that is answered with an error: `done` if it was done all the same."""

    def __init__(self, done: bool) -> None:
        super().__init__("lost" if done else "refused")
        self.done = done


class Faults:
    """Strikes the operations of all processes as a plan says.

    Args:
        observe: is told of each operation, after it: its process, name, object and result; None of
            one in whose middle the process was killed.
    """

    def __init__(
        self, world: World, plan: Plan, observe: Callable[[Process, str, str, object], None]
    ) -> None:
        self._world, self._observe = world, observe
        self._waiting = list(plan.faults)
        self._seen: dict[tuple[str, str], int] = {}

    def operation(
        self, what: str, name: str, effect: Callable[[], T], *, remote: bool = False
    ) -> T:
        """What `effect` returns, unless a fault strikes.

        Args:
            what: as `plan.OPERATIONS` has it.
            name: the object.
            remote: it is a request, whose answer may be lost.

        Raises:
            Refused: of a request.
            Killed: the process was killed, before it, after it or in the middle.
        """
        world, thread = self._world, self._world.check()
        process = thread.process
        striking = self._striking(process, what)
        if not remote:  # who sends a request has just waited for its way to the service
            world.give_way()
        for fault in striking:
            if fault.when == "before" and fault.action in ("kill", "pause"):
                self._strike(fault, process)
            if fault.action == "refuse" and remote:
                world.say(f"{process.name}: {what} {short(name)}: refused")
                raise Refused(done=False)
            if fault.when == "inside":
                thread.inside = fault.count % 3 + 1
        try:
            result = effect()
        except Killed:
            self._observe(process, what, name, None)
            raise
        thread.inside = None
        if not what.startswith(("read", "list")):
            world.say(f"{process.name}: {what} {short(name)}{_result(result)}")
        self._observe(process, what, name, result)
        for fault in striking:
            if fault.when == "after" and fault.action in ("kill", "pause"):
                self._strike(fault, process)
            if fault.action == "lose" and remote:
                world.say(f"{process.name}: the answer is lost")
                raise Refused(done=True)
        return result

    def end(self) -> None:
        """Nothing goes wrong any more."""
        self._waiting.clear()

    def change(self, call: str, path: str) -> None:
        """A system call is about to change a disk. Raises Killed."""
        thread = self._world.check()
        if thread.inside is not None:
            thread.inside -= 1
            if not thread.inside:
                thread.inside = None
                self._world.kill(thread.process, f"is killed before a system call: {call}")
                raise Killed
        if self._world.random.random() < 0.5:
            self._world.give_way()

    def _striking(self, process: Process, what: str) -> list[Fault]:
        if not self._waiting:
            return []
        names = {what, "any", f"{what.split()[0]} any"}
        for name in names:
            process.seen[name] += 1
            for who in (process.role, process.name):
                self._seen[who, name] = self._seen.get((who, name), 0) + 1
        found = [
            fault
            for fault in self._waiting
            if fault.what in names
            and fault.who in (process.role, process.name)
            and self._seen[fault.who, fault.what] == fault.count
        ]
        for fault in found:
            self._waiting.remove(fault)
            process.disturbed = max(process.disturbed, self._world.now)
        return found

    def _strike(self, fault: Fault, process: Process) -> None:
        if fault.action == "kill":
            self._world.kill(process)
            raise Killed
        self._world.pause(process, fault.seconds)
        self._world.give_way()


def _result(result: object) -> str:
    return ": not done, there is another" if result is False else ""
