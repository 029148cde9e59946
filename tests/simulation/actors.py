"""Flows and operators: the frames around Lyceum's own chain, garbage collection and reaper, as
`flows.post_train` and the command line have them, without Prefect's engine and its API."""

import functools
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from prefect.futures import PrefectFuture
from prefect.states import State

from flows.chain import Chain
from flows.cli.gc import collect_garbage
from flows.preamble import Prepared
from flows.recipe.resolve import ResolvedRecipe, resolve
from flows.runs.record import RunLog, left, read_runs, run_status
from infra.context import context
from schemas.job import JobRequest
from tasks.stage import WATCH, Watch, backend, run_stage

if TYPE_CHECKING:
    from tests.simulation.history import History

RECIPE = """
name = "simulated"
model = "gemma3-tiny"

[stages.distill]
kind = "distill"
[[stages.distill.config.teachers]]
name = "procedural"
rows = { summarization = 60 }
grounded = {}
"""
SECOND = """
[stages.rebalance]
kind = "rebalance"
inputs = { examples = "distill" }
[stages.rebalance.config]
near_duplicates = false
[stages.rebalance.config.quotas]
summarization = { train = 20, validation = 1, heldout = 2 }
"""


@functools.cache
def resolved_recipe(stages: int) -> ResolvedRecipe:
    """A recipe of one stage or two."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "simulated.toml")
        path.write_text(RECIPE + SECOND * (stages - 1), encoding="utf-8")
        return resolve(str(path))


class TaskFuture(PrefectFuture[Any]):
    """The future of a stage's task that runs in a thread, without Prefect's engine."""

    def __init__(self, request: JobRequest) -> None:
        self._task_run_id = uuid4()
        self._final_state: State[Any] | None = None
        self._spec = request.model_dump(mode="json")
        self._ended = threading.Event()
        self._told: list[Callable[[PrefectFuture[Any]], None]] = []
        threading.Thread(target=self._run, name=request.stage).start()

    def _run(self) -> None:
        self._final_state = run_stage.fn(self._spec)
        self._ended.set()
        for tell in self._told:
            tell(self)

    @property
    def state(self) -> State[Any]:
        assert self._final_state is not None
        return self._final_state

    def __hash__(self) -> int:
        return hash(self._task_run_id)

    def wait(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)

    def result(self, timeout: float | None = None, raise_on_failure: bool = True) -> Any:
        raise NotImplementedError("a stage's task has no result")

    def add_done_callback(self, fn: Callable[[PrefectFuture[Any]], None]) -> None:
        if self._ended.is_set():
            fn(self)
        else:
            self._told.append(fn)


def follow(history: "History", forced: bool) -> int:
    """One run of the recipe, as `flows.post_train` frames it. Returns the exit code."""
    process = history.world.check().process
    watch = Watch(say=lambda stage, text: history.world.say(f"{process.name}: {stage}: {text}"))
    WATCH.set(watch)
    threading.Thread(target=_stop_when_asked, args=(history, watch)).start()
    store, resolved = context().store(), history.resolved
    force = (resolved.stages[0].name,) if forced else ()
    if forced:
        history.laws.forced.add(resolved.stages[0].key({}))
    prepared = Prepared(resolved, store, history.plan.target, None, force)
    run = RunLog(store, resolved, history.plan.target, watch.record)
    try:
        Chain(prepared, store, run.record.run_id, run.stage, TaskFuture).walk(watch)
    except BaseException:
        watch.stop.set()
        run.finish("failed")
        raise
    failed = [one for one in run.record.stages if one.status == "failed"]
    status = "failed" if failed else "succeeded"
    if watch.stop.is_set() or (watch.pause.is_set() and left(run.record) and not failed):
        status = "cancelled" if watch.stop.is_set() else "paused"
    run.finish(status)  # type: ignore[arg-type]
    why = "; ".join(f"{one.name}: {one.error}" for one in failed)
    history.ended(process, run.record, f"{status} {why}".strip())
    return 0 if status == "succeeded" else 1


def _stop_when_asked(history: "History", watch: Watch) -> None:
    """Ctrl-C, and the deadline of `--hours`."""
    process = history.world.check().process
    while not watch.stop.is_set():
        history.world.sleep(1.0)
        if process.asked_to_pause:
            watch.pause.set()
        if process.asked_to_stop:
            watch.stop.set()


def collect(history: "History", drop: bool) -> int:
    """`lyceum gc --delete`, for the machines of the target too; with `drop` all runs that have
    ended are given up."""
    say = lambda text: history.world.say(f"an operator is told: {text}")  # noqa: E731
    store = context().store()
    runs = read_runs(store) if drop else []
    ended = [one.run_id for one in runs if not run_status(one).startswith("running")]
    found = collect_garbage(store, ended, True, context().settings, say)
    for item in found:
        history.world.say(f"gc: {item.kind} {item.name[:40]}: {'gone' if item.deleted else 'left'}")
    if history.plan.target != "local":
        for one in backend(history.plan.target).reap(store, True):
            history.world.say(f"gc: {one.name.split('/')[-1][:16]}: {one.why}: {one.removed}")
    return 0
