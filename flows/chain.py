"""Walking a recipe's stages: which may start, which run, which have ended, and what that means for the others."""

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from prefect.futures import PrefectFuture, as_completed
from prefect.states import State

from flows.resolve import ResolvedRecipe, ResolvedStage
from infra.store import Store
from schemas.artifact import Manifest
from schemas.base import InputError
from schemas.job import JobSpec
from schemas.reports import StageRecord
from tasks.stage import TaskResult, Watch, submit_stage


class Chain:
    """The stages of one run.

    Args:
        ended: receives the record of each stage that ends, is skipped or fails.
        target: where jobs run.
        data: the absolute directory of `--data`, or None.
        force: names of stages whose artifacts are set aside first.
        parallel: how many stages may run side by side. More than the target runs at once would only wait there, and look slow.
    """

    def __init__(
        self,
        resolved: ResolvedRecipe,
        store: Store,
        ended: Callable[[StageRecord], None],
        *,
        target: str,
        data: Path | None,
        force: Collection[str],
        parallel: int,
    ) -> None:
        self._store, self._ended = store, ended
        self._target, self._data, self._force, self._parallel = target, data, force, parallel
        self._waiting = list(resolved.stages)
        self._running: dict[PrefectFuture[Any], tuple[ResolvedStage, JobSpec, float]] = {}
        self._made: dict[str, Manifest] = {}
        self._lost: set[str] = set()

    def walk(self, watch: Watch) -> None:
        """Run every stage as soon as its inputs are there, in file order, until all have ended or `watch.stop` is set.

        A stage that fails takes those that need it with it; the others go on.
        """
        while self._running or (self._waiting and not watch.stop.is_set()):
            for stage in list(self._waiting):
                if self._lost & set(stage.inputs.values()):
                    self._skip(stage)
                elif set(stage.inputs.values()) <= self._made.keys() and len(self._running) < self._parallel and not watch.stop.is_set():
                    self._submit(stage)
            if self._running:
                future = next(as_completed(list(self._running)))
                future.wait()  # before this the future knows no state of its own, and asks an API that lags behind
                self._finish(future.state, *self._running.pop(future))

    def _skip(self, stage: ResolvedStage) -> None:
        self._waiting.remove(stage)
        causes = sorted(self._lost & set(stage.inputs.values()))
        self._lost.add(stage.name)
        self._ended(StageRecord(name=stage.name, kind=stage.kind, status="skipped", error=f"its input {', '.join(causes)} was not made"))

    def _submit(self, stage: ResolvedStage) -> None:
        self._waiting.remove(stage)
        began = time.monotonic()
        inputs = {name: self._made[source].ref() for name, source in stage.inputs.items()}
        spec = JobSpec(
            stage=stage.name,
            kind=stage.kind,
            key=stage.key({name: ref.digest for name, ref in inputs.items()}),
            attempt="",
            store=self._store.uri,
            target=self._target,
            config=stage.config_json,
            dependencies=stage.dependencies,
            inputs=inputs,
            data=str(self._data) if self._data else None,
        )
        if stage.name in self._force:
            self._store.discard(spec.kind, spec.key)
        self._running[submit_stage(spec, self._store)] = (stage, spec, began)

    def _finish(self, state: State[Any], stage: ResolvedStage, spec: JobSpec, began: float) -> None:
        """Record how a stage ended. What it made is read from the store: a result that Prefect cached may be about another store."""
        manifest = self._store.lookup(stage.kind, spec.key) if state.is_completed() else None
        changes: dict[str, Any]
        if manifest is not None:
            self._made[stage.name] = manifest
            changes = {"status": "ran" if _ran(state) else "cached", "artifact": manifest.ref(), "metrics": manifest.metrics}
        else:
            self._lost.add(stage.name)
            changes = _loss(state)
        seconds = time.monotonic() - began
        self._ended(StageRecord(name=stage.name, kind=stage.kind, key=spec.key, seconds=seconds, **changes))


def _ran(state: State[Any]) -> bool:
    """Whether a completed task ran a job; otherwise it found the artifact, or Prefect answered from its cache."""
    return state.name != "Cached" and TaskResult.parse(state.result()).ran


def _loss(state: State[Any]) -> dict[str, Any]:
    """Why a task left no artifact."""
    if state.is_cancelled():
        return {"status": "skipped", "error": state.message}
    if state.is_completed():
        return {"status": "failed", "error": "its artifact was removed from the store as soon as it was made", "exit_code": 1}
    error = state.result(raise_on_failure=False)
    return {"status": "failed", "error": str(error), "exit_code": 2 if isinstance(error, InputError) else 1}
