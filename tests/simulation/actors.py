"""Flows and operators: the functions of both flows, garbage collection and the reaper, as they are,
without Prefect's engine and its API."""

import functools
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from uuid import uuid4

from prefect.futures import PrefectFuture
from prefect.states import State

from flows import nightly
from flows import post_train as flow
from flows.chain import Chain
from flows.cli.gc import collect_garbage
from flows.preamble import Prepared, handed
from flows.promotion.champion import promote_by_hand, protected, rollback
from flows.recipe.resolve import ResolvedRecipe, resolve
from flows.runs.record import read_runs, run_status
from infra.context import context
from infra.store.store import Store
from schemas.job import JobRequest
from schemas.reports import RunRecord
from tasks.running.backends import backend
from tasks.running.watch import WATCH, Watch
from tasks.stage import run_stage
from tests.fakes.recipe import TINY

if TYPE_CHECKING:
    from tests.simulation.history import History

TRAINING = """
[stages.{name}]
kind = "sft"
inputs = {{ examples = "rebalance" }}
[stages.{name}.config]
steps = {steps}
batch_size = 8
sequence_length = 64
optimizer = {{ learning_rate = 1e-3 }}
"""


@functools.cache
def resolved_recipe(stages: int, day: int) -> ResolvedRecipe:
    """A recipe of one stage, two or three, the third with something of its `day`; or four, of which
    the last two need the second only."""
    parts = [*TINY.replace('"tiny"', '"simulated"').partition("[stages.rebalance]")]
    text = "".join(parts[: 1 if stages == 1 else 3])
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "simulated.toml")
        text += TRAINING.format(name="sft", steps=10 + day) * (stages >= 3)
        text += TRAINING.format(name="beside", steps=8) * (stages == 4)
        path.write_text(text, encoding="utf-8")
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


FLOW: ContextVar[tuple[Prepared, Callable[..., State[Any]]]] = ContextVar("flow")
"""Of a process: what its nightly flow prepares, and the run that it starts."""


@contextmanager
def frames() -> Iterator[None]:
    """Inside, the functions of both flows find their like without Prefect's engine and API, without
    reports, and without handlers of this process' signals."""
    with ExitStack() as stack:
        for module, name, stand_in in (
            (flow, "Chain", functools.partial(Chain, submit=TaskFuture)),
            (flow, "announce", lambda *rest: None),
            (flow, "publish_report", lambda *rest: None),
            (flow, "interruptible", lambda stop: nullcontext()),
            (nightly, "interruptible", lambda stop: nullcontext()),
            (nightly, "submit_stage", TaskFuture),
            (nightly, "prepare", lambda given: FLOW.get()[0]),
            (nightly, "post_train", lambda **given: FLOW.get()[1]()),
        ):
            stack.enter_context(patch.object(module, name, stand_in))
        yield


def follow(history: "History", resolved: ResolvedRecipe, forced: bool, day: int) -> int:
    """One run of the recipe by `flows.post_train`, and with a day by `flows.nightly`. Returns the
    exit code."""
    process = history.world.check().process

    def say(stage: str, text: str) -> None:
        history.world.say(history.rootless(f"{process.name}: {stage}: {text}"))

    versions: list[RunRecord] = []
    watch = Watch(say=say, record=lambda version: versions.__setitem__(slice(None), [version]))
    WATCH.set(watch)
    process.on_signal = {"stop": watch.stop.set, "pause": watch.pause.set}
    store = context().store()
    force = (resolved.stages[0].name,) if forced else ()
    if forced:
        history.laws.forced.add(resolved.stages[0].key({}))
    prepared = Prepared(resolved, store, history.plan.target, None, force)

    def run() -> State[Any]:
        with handed(prepared):
            state = flow.post_train.fn()
        if versions:
            record = versions[0]
            failed = [one for one in record.stages if one.status == "failed"]
            why = "; ".join(f"{one.name}: {one.error}" for one in failed)
            history.ended(process, record, f"{record.status} {why}".strip())
        return state

    FLOW.set((prepared, run))
    state = nightly.nightly.fn(store=store.uri) if day else run()
    history.world.say(history.rootless(f"{process.name}: {state.name}: {state.message}"))
    return 0 if state.is_completed() else 1


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
