"""Flows: the functions of both, as they are, without Prefect's engine and its API."""

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

import httpx
from markupsafe import Markup
from prefect.futures import PrefectFuture
from prefect.states import Completed, State

from flows import ahead, nightly, preamble
from flows import post_train as flow
from flows.ahead import run_cached
from flows.chain import Chain
from flows.cli import main
from flows.post_train import post_train
from flows.preamble import Parameters
from flows.recipe import resolve as recipes
from flows.recipe.resolve import ResolvedRecipe, resolve
from flows.report import plots, publish
from flows.report.blocks import Figure
from infra.context import context
from schemas.base import InputError, StageFailed
from schemas.job import JobRequest
from schemas.reports import RunRecord
from tasks import stage
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


def recipe_name(stages: int, day: int) -> str:
    """What people type for it."""
    return f"{stages} stages, day {day}"


def _resolved(name: str, *rest: Any, **more: Any) -> ResolvedRecipe:
    """`resolve`, which would read the same file again in each history."""
    stages, day = (int(part.split()[-1 if "day" in part else 0]) for part in name.split(", "))
    return resolved_recipe(stages, day)


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


ENDED: ContextVar[Callable[[State[Any]], State[Any]]] = ContextVar("ended")
"""Of a process: is told when its run has ended."""


@contextmanager
def frames(reports: bool) -> Iterator[None]:
    """Inside, the functions of both flows find their like without Prefect's engine and API, without
    handlers of this process' signals, and reports without plots. A run writes its report if
    `reports`."""
    run = post_train.fn

    def api(*given: Any, **more: Any) -> None:
        raise httpx.ConnectError("there is no Prefect API in a simulation")

    with ExitStack() as stack:
        for module, name, stand_in in (
            (flow, "Chain", functools.partial(Chain, submit=TaskFuture)),
            (flow, "interruptible", lambda stop: nullcontext()),
            (nightly, "interruptible", lambda stop: nullcontext()),
            (nightly, "submit_stage", TaskFuture),
            (nightly, "post_train", lambda return_state, **given: ENDED.get()(run(**given))),
            *((module, "resolve", _resolved) for module in (preamble, recipes)),
            (main, "parser", functools.cache(main.parser)),  # of one store, in all of a history
            *((publish, name, api) for name in ("get_client", "create_markdown_artifact")),
            *((stage, f"create_{kind}_artifact", api) for kind in ("progress", "link", "markdown")),
            *((plots, name, lambda *rest, **more: _DRAWN) for name in _PLOTS),
            *([] if reports else [(flow, "publish_report", lambda *rest: None)]),
            *([] if reports else [(ahead, "report_run", lambda *rest: None)]),
        ):
            stack.enter_context(patch.object(module, name, stand_in))
        yield


_PLOTS = [name for name, one in vars(plots).items() if hasattr(one, "__wrapped__")]
_DRAWN = Figure("a plot", Markup("<svg/>"))


def _all_cached(given: dict[str, Any], watch: Watch) -> bool:
    """Whether it was a run of which all is cached, which is over then (`flows.cli.launch`). Where
    nobody can tell, the flow says so."""
    try:
        prepared = preamble.prepare(Parameters(store=context().settings.store, **given))
        return run_cached(prepared, prepared.outlook(), watch)
    except (InputError, OSError, StageFailed):
        return False


def follow(history: "History", recipe: str, forced: bool, nightly_too: bool) -> int:
    """One run of the recipe by `flows.post_train`, or by `flows.nightly`. Returns the exit code."""
    process = history.world.check().process

    def say(stage: str, text: str) -> None:
        history.world.say(history.rootless(f"{process.name}: {stage}: {text}"))

    versions: list[RunRecord] = []
    watch = Watch(say=say, record=lambda version: versions.__setitem__(slice(None), [version]))
    WATCH.set(watch)
    process.on_signal = {"stop": watch.stop.set, "pause": watch.pause.set}
    force: tuple[str, ...] = ()
    if forced:
        first = _resolved(recipe).stages[0]
        history.laws.forced.add(first.key({}))
        force = (first.name,)

    def ended(state: State[Any]) -> State[Any]:
        if versions:
            record = versions[0]
            failed = [one for one in record.stages if one.status == "failed"]
            why = "; ".join(f"{one.name}: {one.error}" for one in failed)
            history.ended(process, record, f"{record.status} {why}".strip())
        return state

    ENDED.set(ended)
    given: dict[str, Any] = {"recipe": recipe, "target": history.plan.target, "force": force}
    given["data"] = str(history.root / "data") if history.plan.data else ""
    if history.plan.cold and not nightly_too and _all_cached(given, watch):
        ended(Completed())
        return 0
    state = nightly.nightly.fn(**given) if nightly_too else ended(post_train.fn(**given))
    history.world.say(history.rootless(f"{process.name}: {state.name}: {state.message}"))
    return 0 if state.is_completed() else 1
