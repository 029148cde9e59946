"""The process that workers of this machine are forked from (`infra.forks`), without processes."""

from collections.abc import Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from infra import local
from tests.simulation.library import Machines, Popen
from tests.simulation.threads import Condition
from tests.simulation.world import Process


class ForkServer:
    """`infra.forks.ForkServer`: it ends with the process that has started it, and its workers with
    it."""

    def __init__(self, machines: Machines, environment: Mapping[str, str], *rest: Any) -> None:
        self._machines, world = machines, machines.world
        parent = world.check().process
        over = Condition(world)

        def main() -> int:
            while True:
                with over:
                    over.wait()

        number = next(world.numbers)
        self.process = world.process(f"server {number}", parent.machine, main, parent)
        parent.ended.append(self._end)
        self._workers: list[Process] = []
        self.process.ended.append(self._end_workers)

    @property
    def alive(self) -> bool:
        return self.process.alive

    def start(self, job: Any, log: Any) -> Popen:
        """A worker, which never begins where the server has just been killed."""
        worker = Popen(self._machines, [str(job)])
        self._workers.append(worker.process)
        if not self.alive:
            self._end_workers()
        return worker

    def close(self) -> None:
        self._machines.world.check()
        self._end()

    def _end(self) -> None:
        self._machines.world.kill(self.process, "is closed")

    def _end_workers(self) -> None:
        for worker in self._workers:
            self._machines.world.kill(worker, "ends with its server")


@contextmanager
def simulated_forks(machines: Machines) -> Any:
    """Inside, workers of a machine that is here are forked from simulated servers."""

    def server(*given: Any) -> ForkServer:
        return ForkServer(machines, *given)

    with (
        patch.object(local, "ForkServer", server),
        patch.object(local, "can_fork", lambda of: True),
    ):
        yield
