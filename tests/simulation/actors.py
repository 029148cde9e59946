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

from flows import nightly
from flows.chain import Chain
from flows.cli.gc import collect_garbage
from flows.preamble import Prepared
from flows.promotion.champion import current, promote_by_hand, protected, rollback
from flows.promotion.nights import NewRows, decision_name, is_unchanged, last_nightly
from flows.recipe.resolve import ResolvedRecipe, resolve
from flows.runs.record import RunLog, left, read_runs, run_status
from infra.context import context
from infra.store.store import Store
from schemas.base import InputError, StageFailed, Stopped
from schemas.job import JobRequest
from schemas.reports import RunRecord
from tasks.running.backends import backend
from tasks.running.watch import WATCH, Watch
from tasks.stage import run_stage
from tests.fakes.recipe import TINY

if TYPE_CHECKING:
    from tests.simulation.history import History

TRAINING = """
[stages.sft]
kind = "sft"
inputs = {{ examples = "rebalance" }}
[stages.sft.config]
steps = {steps}
batch_size = 8
sequence_length = 64
optimizer = {{ learning_rate = 1e-3 }}
"""


@functools.cache
def resolved_recipe(stages: int, day: int) -> ResolvedRecipe:
    """A recipe of one stage, two or three, the third with something of its `day`."""
    parts = [*TINY.replace('"tiny"', '"simulated"').partition("[stages.rebalance]")]
    text = "".join(parts[: 1 if stages == 1 else 3])
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "simulated.toml")
        path.write_text(text + TRAINING.format(steps=10 + day) * (stages == 3), encoding="utf-8")
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


def follow(history: "History", resolved: ResolvedRecipe, forced: bool, day: int) -> int:
    """One run of the recipe, as `flows.post_train` frames it, and with a day as `flows.nightly`
    does. Returns the exit code."""
    process = history.world.check().process

    def say(stage: str, text: str) -> None:
        history.world.say(history.rootless(f"{process.name}: {stage}: {text}"))

    watch = Watch(say=say)
    WATCH.set(watch)
    threading.Thread(target=_stop_when_asked, args=(history, watch)).start()
    store = context().store()
    force = (resolved.stages[0].name,) if forced else ()
    if forced:
        history.laws.forced.add(resolved.stages[0].key({}))
    prepared = Prepared(resolved, store, history.plan.target, None, force)
    name = resolved.recipe.name
    try:
        last = last_nightly(store, name) if day else None
        if last and is_unchanged(store, resolved, *last, current(store, name)):
            return 0
    except OSError as error:
        history.world.say(f"{process.name} cannot begin: {error}")
        return 1
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
    if day and status == "succeeded":
        _decide(history, prepared, run.record, watch)
    return 0 if status == "succeeded" else 1


def _decide(history: "History", prepared: Prepared, run: RunRecord, watch: Watch) -> None:
    """The end of a night."""
    fresh = NewRows(rows=0, new=0, changed=0, gone=0, since=None)
    try:
        decision, _ = nightly._decide(prepared, run, fresh, watch)
        prepared.store.write_json(decision_name(run.run_id), decision)
    except (Stopped, InputError, StageFailed, OSError) as error:
        history.world.say(f"run {run.run_id} is not judged: {error}")


def _stop_when_asked(history: "History", watch: Watch) -> None:
    """Ctrl-C, and the deadline of `--hours`."""
    process = history.world.check().process
    while not watch.stop.is_set():
        history.world.sleep(1.0)
        if process.asked_to_pause:
            watch.pause.set()
        if process.asked_to_stop:
            watch.stop.set()


def operate(history: "History", what: str) -> int:
    """What an operator types: `lyceum promote`, or `lyceum gc --delete`, for the machines of the
    target too; to drop are all runs that have ended."""
    store = context().store()
    if what == "promote":
        runs = [one.run_id for one in read_runs(store) if run_status(one) == "succeeded"]
        if runs:
            promote_by_hand(store, history.world.random.choice(runs), "by hand")
    elif what == "rollback":
        rollback(store, "simulated", "by hand")
    else:
        _collect(history, store, what == "gc and drop")
    return 0


def _collect(history: "History", store: Store, drop: bool) -> None:
    say = lambda text: history.world.say(f"an operator is told: {text}")  # noqa: E731
    runs = read_runs(store) if drop else []
    kept = protected(store) if drop else {}
    ended = [one.run_id for one in runs if not run_status(one).startswith("running")]
    dropped = [one for one in ended if one not in kept]
    found = collect_garbage(store, dropped, True, context().settings, say)
    for item in found:
        history.world.say(f"gc: {item.kind} {item.name[:40]}: {'gone' if item.deleted else 'left'}")
    if history.plan.target != "local":
        for one in backend(history.plan.target).reap(store, True):
            history.world.say(f"gc: {one.name.split('/')[-1][:16]}: {one.why}: {one.removed}")
