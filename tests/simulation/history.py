"""One history: a plan is played from its begin until everything has come to its end, then the same
command is given once more, undisturbed, and must succeed with what is there."""

import json
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from prefect.logging import disable_run_logger

from flows import nightly
from infra import source
from infra.context import Context, using
from infra.settings import Settings
from infra.store import compiled
from infra.tpu.types import TPU_TYPES
from schemas.base import InputError
from schemas.job import JobSpec
from schemas.reports import RunRecord
from tests.simulation.actors import follow, frames, recipe_name, resolved_recipe
from tests.simulation.bucket import Service, objects_of
from tests.simulation.contexts import (
    BUCKET,
    DIRECTORY,
    SETTINGS,
    TPU,
    SimulatedContext,
    stores_on,
)  # fmt: skip
from tests.simulation.disk import Disk, SimulatedFiles
from tests.simulation.faults import Faults
from tests.simulation.forks import simulated_forks
from tests.simulation.happenings import happening
from tests.simulation.laws import Laws
from tests.simulation.library import Machines, simulated_library
from tests.simulation.naming import short
from tests.simulation.operators import Terminal, operate, terminals
from tests.simulation.plan import Plan
from tests.simulation.threads import ProcessLock
from tests.simulation.worker import Work
from tests.simulation.world import Endless, Late, Process, World


@dataclass
class Result:
    """What a history came to: its lines, the law that it broke, virtual seconds and steps."""

    plan: Plan
    lines: list[str]
    law: str = ""
    how: str = ""
    seconds: float = 0.0
    steps: int = 0
    commits: int = 0


class History:
    """A plan, and the world that it is played in. `root` is a directory of this history alone."""

    def __init__(self, plan: Plan, root: Path) -> None:
        self.plan, self.root = plan, root
        self.world = World(f"course {plan.seed}")
        self.faults = Faults(self.world, plan, lambda *said: self.laws.observe(*said))
        self.laws = Laws(self.world, self.read, SETTINGS.lease_seconds)
        self.machines = Machines(self.world, self._start_worker, self._metadata, self.faults.change)
        self.flows: list[Process] = []
        self.calm = False  # from here on nothing goes wrong
        self.disk = Disk(self.world, any(one.action == "power" for one in plan.events))
        self.service: Service | None = None
        self.cloud: Any = None
        self.uri = BUCKET if plan.place == "bucket" else DIRECTORY
        if plan.place == "bucket":
            self.service = Service(self.world, self.faults, plan.region)
        if plan.target != "local":
            from tests.simulation.cloud import Cloud

            kind = TPU_TYPES[plan.target]
            price = kind.usd_per_chip_hour[TPU.tier] * kind.chips / 3600
            self.laws.payments.budget = None if plan.budget is None else plan.budget / price
            self.cloud = Cloud(self.world, self.faults, self.laws, plan, self.uri, self._boot)
        outages = ("storm", "away", "reluctant", "stockout", "stuck", "unbootable")
        self.laws.lenient = any(
            event.action in outages and (event.seconds >= 100.0 or event.action != "storm")
            for event in plan.events
        )
        refused = [event.who for event in plan.events if event.action == "refusal"]
        self.laws.refused = bool(refused)
        self.laws.lenient |= "store" in refused
        self.terminals: tuple[Terminal, ...] = ()
        self._ends: dict[Process, str] = {}
        self._last_keys: set[str] = set()

    # What there is

    def read(self, name: str) -> bytes | None:
        if self.service is not None:
            found = self.service.objects.get(f"{_PREFIX}/{name}")
            return None if found is None else found.data
        try:
            return (self.root / "store" / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def rot(self, name: str, data: bytes) -> None:
        """An object's bytes become others by themselves."""
        if self.service is None:
            (self.root / "store" / name).write_bytes(data)
        else:
            self.service.damage(f"{_PREFIX}/{name}", data)

    def names(self, prefix: str) -> list[str]:
        """Names of objects, sorted."""
        if self.service is not None:
            return sorted(name for name, _ in objects_of(self.service, prefix))
        root = self.root / "store"
        found = sorted(root.glob(f"{prefix}**/*"))
        return [one.relative_to(root).as_posix() for one in found if one.is_file()]

    def remove(self, name: str) -> None:
        """Somebody removes an object by hand."""
        if self.service is not None:
            self.service.objects.pop(f"{_PREFIX}/{name}", None)
        else:
            (self.root / "store" / name).unlink(missing_ok=True)

    def _directory(self) -> SimulatedFiles:
        return SimulatedFiles(self.root / "store", DIRECTORY, self.faults, self.disk)

    def context(self, machine: str, settings: Settings = SETTINGS) -> Context:
        return SimulatedContext(settings, self.uri, self.root / machine)

    # Who there is

    def start_flow(self, number: str, machine: str, forced: bool = False, day: int = 0) -> Process:
        """A run; of the nightly flow, with the data of a `day`."""
        budget = None if number == "last" else self.plan.budget
        settings = SETTINGS.model_copy(update={"max_usd": budget})
        recipe = recipe_name(self.plan.stages, day)
        resolved_recipe(self.plan.stages, day)  # out here: kept for all histories

        def main() -> int:
            with using(self.context(machine, settings)):
                return follow(self, recipe, forced, bool(day))

        process = self.world.process(f"flow {number}", machine, main, context=copy_context())
        self.flows.append(process)
        return process

    def start_operator(self, number: int, what: str) -> Process:
        def main() -> int:
            with using(self.context("laptop")):
                return operate(self, what)

        return self.world.process(f"operator {number}", "laptop", main, context=copy_context())

    def _start_worker(self, command: list[str]) -> Process:
        parent = self.world.check().process
        job = Path(command[-1])
        key, attempt = job.parts[-3], job.parts[-2]

        def main() -> int:
            with using(self.context(parent.machine)):
                return Work(self.world, process, job, self._step, self.laws.payments.pay).run()

        number = sum(one.role == "worker" for one in self.world.processes) + 1
        process = self.world.process(
            f"worker {number}", parent.machine, main, parent, copy_context()
        )
        self.laws.worker(process, key, attempt, parent.machine)
        return process

    def _step(self, spec: JobSpec, step: int) -> None:
        self.laws.step(spec.key, spec.attempt, step)
        self.faults.operation("start step", f"{step} of {spec.stage}", lambda: None)

    def _boot(self, machine: Any, host: int) -> Process:
        from tests.simulation.vm import place_of, run_agent, run_script

        number = f"{machine.number}.{host}" if host else f"{machine.number}"
        name, world, place = f"vm{number}", self.world, place_of(machine, host, self.root)
        environment = json.loads(machine.metadata["lyceum-environment"])
        given = {"LYCEUM_CACHE": "", "LYCEUM_COMPILE_CACHE": "", **environment}
        settings = Settings.from_environment(given)

        def of_agent() -> int:
            with using(self.context(name, settings)):
                return run_agent(world, place)

        def of_script() -> int:
            with using(self.context(name, settings)):
                return run_script(world, place, self.plan.target, agent)

        agent = world.process(f"agent {number}", name, of_agent, context=copy_context())
        return world.process(f"script {number}", name, of_script, context=copy_context())

    def _metadata(self, url: str) -> str:
        name = self.world.check().process.machine.partition(".")[0]
        for machine in self.cloud.machines:
            if f"vm{machine.number}" == name:
                return self.cloud.metadata(machine, url)
        raise OSError("no metadata server")

    # What happens

    def play(self) -> Result:
        """From the begin to the end."""
        for place in ("store", "data/more"):
            (self.root / place).mkdir(parents=True)
        for name in ("data/rows.csv", "data/more/rows.csv"):
            (self.root / name).write_text(f"question,answer\n1+1,2\n{name}", encoding="utf-8")
        world, plan = self.world, self.plan
        with ExitStack() as stack:
            stack.enter_context(self._clients())
            stack.enter_context(simulated_forks(self.machines))
            stack.enter_context(simulated_library(self.machines))
            for number, at in enumerate(plan.flows, 1):
                world.at(at, self._starting(str(number)))
            for number, event in enumerate(plan.events, 1):
                if event.who.startswith("artifact"):
                    self.laws.on_first.append((event.at, happening(self, event, number)))
                elif not event.who.startswith("machine"):
                    world.at(event.at, happening(self, event, number))
            over = max(max(plan.flows) + 95, *(event.at + 5 for event in plan.events), 0.0)
            world.at(over, lambda: None)
            try:
                self._run(lambda: not world.busy and world.now >= over)
                self._machines_end_themselves()
                self._last_flow()
            except Endless as error:
                self.laws.break_("every run ends", str(error))
            result = self._result()
            world.close()
        return result

    def _result(self) -> Result:
        world, broken = self.world, self.laws.broken
        law, how = (broken.law, str(broken)) if broken is not None else ("", "")
        lines = list(world.lines)
        return Result(self.plan, lines, law, how, world.now, world.steps, self.laws.commits)

    def _run(self, done: Callable[[], bool]) -> None:
        self.world.run(done, self._failed)
        if self.laws.broken is None and not done():
            self.laws.break_("every run ends", "nobody can go on, and not all have ended")

    def _failed(self, process: Process) -> None:
        self.laws.fault_of(process, _EXPECTED.get(process.role, ()))

    def _last_flow(self) -> None:
        """Undisturbed, the same command ends well, and nothing is left."""
        if self.laws.broken is not None:
            return
        self.world.say("from here on nothing goes wrong")
        self.calm = True
        self.faults.end()
        self.laws.payments.budget = None
        self.laws.on_first.clear()
        self.world.now += 1.0
        if self.service is not None:
            self.service.storm = self.service.stale = self.service.refused = 0.0
            self.laws.on_record.lag = 0.0, 0.0
        self.disk.refused = 0.0
        for name in self.laws.spoiled:  # as messages say
            if name.startswith("runs/"):
                self.remove(name)
        if self.cloud is not None:
            self.cloud.calm()
        last = self.start_flow("last", "desk")
        self._run(lambda: not last.alive)
        if self.laws.broken is None and last.code != 0:
            self.laws.break_("every run can be continued", f"the last run: {self.ends(last)}")
        # what came late is found by gc: its job had ended before, by the store's records
        mine = lambda one: one.labels["lyceum-key"] in self._last_keys and not one.late  # noqa: E731
        self._nothing_left(mine)
        if any(one.there and not one.leaving for one in self._machines()):
            operator = self.start_operator(0, "gc")
            self._run(lambda: not operator.alive)
        self._nothing_left(lambda one: True)

    def _machines(self) -> list[Any]:
        return [] if self.cloud is None else self.cloud.machines

    def _nothing_left(self, among: Callable[[Any], bool]) -> None:
        for one in self._machines():
            if one.there and not one.leaving and among(one):
                self.laws.break_("nothing is paid for after the end", f"machine {one.number}")

    def _machines_end_themselves(self) -> None:
        """A machine whose job has ended goes, though nobody follows it any more."""
        if self.laws.broken is not None or self.cloud is None:
            return
        working = lambda: [one for one in self.cloud.machines if one.done]  # noqa: E731
        ended = self.world.now
        while working() and (until := self._calm_after(ended)) > self.world.now:
            self.world.at(until, lambda: None)
            self._run(lambda until=until: not working() or self.world.now >= until)
        for one in working():
            self.laws.break_("machines end themselves", f"machine {one.number} is still there")

    def _calm_after(self, ended: float) -> float:
        """When machines have had their time: who stands still has it afterwards."""
        still = [one.paused for one in self.world.processes]
        calm = max(ended, self.cloud.away, self.cloud.reluctant, self.service.storm, *still)
        return calm + 3 * TPU.silence_seconds + 60.0

    def _starting(self, number: str) -> Callable[[], None]:
        machine = "laptop" if number != "2" else "server"
        return lambda: (self.start_flow(number, machine), None)[1]

    def ended(self, process: Process, record: RunRecord, how: str) -> None:
        """A flow has come to an end of its own, with this record."""
        self._ends[process] = how = short(self.rootless(how))
        self.laws.record(process, record)
        if process.name == "flow last" and record.status == "succeeded":
            self.laws.sound(record)
            self._last_keys = {(stage.key or "")[:24] for stage in record.stages}
        for one in self._machines() if not self.laws.lenient else ():
            left = self.laws.is_left(one.labels["lyceum-key"], process)
            if one.asked_by is process and one.followed and not left:
                how = f"machine {one.number} outlives {process.name}"
                self.laws.break_("nothing is paid for after the end", how)
        self.world.say(f"{process.name} ends: {how}")

    def rootless(self, text: str) -> str:
        """The text without the directory of this history, of which another's may be equal."""
        return text.replace(str(self.root), "")

    def ends(self, process: Process) -> str:
        return self._ends.get(process, f"exit code {process.code}")

    @contextmanager
    def _clients(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(disable_run_logger())
            stack.enter_context(patch.object(nightly, "gate", self.laws.champions.judged))
            stack.enter_context(patch.dict(os.environ))
            self.terminals = stack.enter_context(terminals(self.world))
            stack.enter_context(frames(self.plan.reports))
            stack.enter_context(stores_on(self._directory))
            stack.enter_context(patch.object(compiled, "SMALLEST", 16))
            stack.enter_context(patch.object(source, "_sending_data", ProcessLock(self.world)))
            if self.service is not None:
                from tests.simulation.clients import simulated_storage

                stack.enter_context(simulated_storage(self.service))
            if self.cloud is not None:
                from tests.simulation.clients import simulated_client

                stack.enter_context(simulated_client(self.cloud))
            yield


_PREFIX = "lyceum"
_EXPECTED: dict[str, tuple[type[BaseException], ...]] = {
    "operator": (),
    "worker": (OSError, InputError),
    "agent": (),
    "script": (),
    "flow": (),
}
"""Role -> errors that its command line turns into a message."""


LONGEST = 120
"""Seconds of this machine after which a history is not going to end: somebody waits for ever."""


def _late(*given: object) -> None:
    raise Late(f"the history has not ended after {LONGEST} s")


_QUIET = logging.NullHandler()
"""With it agents open no log files for all of this process."""


def play(plan: Plan) -> Result:
    """The history of a plan."""
    logging.disable(logging.CRITICAL)
    logging.getLogger().addHandler(_QUIET)
    memory = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(prefix="lyceum-", dir=memory if memory.is_dir() else None))
    before = signal.signal(signal.SIGALRM, _late)
    signal.alarm(LONGEST)
    try:
        return History(plan, root).play()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        logging.disable(logging.NOTSET)
        logging.getLogger().removeHandler(_QUIET)
        shutil.rmtree(root, ignore_errors=True)
