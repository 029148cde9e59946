"""What histories pay for: machines, whose time somebody's budget is charged with, and answers of
endpoints."""

from collections.abc import Callable, Iterable

from tests.simulation.machine import Machine
from tests.simulation.world import Process, World

LATE_SECONDS = 8.0
"""So much of a machine's time its flow may not know of: it looks every few seconds."""

LOOK_SECONDS = 1.0
"""So long after it stood still a flow has looked at its machines."""


class Payments:
    """The payments of one history.

    Attributes:
        budget: seconds of machines that a run may pay for.
    """

    def __init__(self, world: World, break_: Callable[[str, str], None]) -> None:
        self._world, self._break = world, break_
        self.budget: float | None = None
        self._payers: dict[str, list[tuple[float, Process]]] = {}
        self._answered: dict[str, float] = {}

    # Machines

    def follows(self, process: Process, job: str) -> None:
        """A flow writes down how far a job is: it follows it, and pays for its machines until
        another one does."""
        payers = self._payers.setdefault(job, [])
        if process.role == "flow" and all(one is not process for _, one in payers):
            payers.append((self._world.now, process))

    def _seconds(self, process: Process, machine: Machine) -> float:
        """Of a machine's time what a process pays for."""
        payers = [one for one in self._payers.get(machine.job, []) if one[0] >= machine.asked]
        if machine.asked_by is not None:  # who asks pays, until another one follows
            payers = [(machine.asked, machine.asked_by), *payers]
            payers = [one for n, one in enumerate(payers) if not n or one[1] is not payers[0][1]]
        woke = 0.0 <= self._world.now - process.paused < LOOK_SECONDS
        now = process.stopped if woke else self._world.now
        over = [*(since for since, _ in payers[1:]), now]
        for (since, payer), until in zip(payers, over, strict=True):
            if payer is process and machine.ready is not None:
                gone = now if machine.gone is None else machine.gone
                return max(0.0, min(gone, until) - max(machine.ready, since) - LATE_SECONDS)
        return 0.0

    def another(self, process: Process, machines: Iterable[Machine]) -> None:
        """A run asks for one more machine."""
        right = (process.offset, process.rate) == (0.0, 1.0)
        paid = sum(self._seconds(process, one) for one in machines)
        if right and self.budget is not None and paid >= self.budget:
            how = f"{process.name} paid for {paid:.0f} s of {self.budget:.0f} and asks for more"
            self._break("a budget is kept", how)

    # Answers

    def answered(self, name: str) -> None:
        """An answer is in the store."""
        self._answered.setdefault(name.rpartition("/")[2], self._world.now)

    def lost(self, name: str) -> None:
        """An object has rotted, or was lost with the power."""
        self._answered.pop(name.rpartition("/")[2], None)

    def pay(self, question: str, asked: float) -> None:
        """An answer is paid for, for which the store was asked at that moment."""
        if self._answered.get(question, asked) < asked:
            self._break("nothing is paid for twice", f"the answer to {question[:6]} is there")
