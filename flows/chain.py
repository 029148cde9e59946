"""Walks a recipe's stages: starts those whose inputs exist, and decides what each end means for the
others."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from prefect import get_run_logger
from prefect.exceptions import Pause
from prefect.futures import PrefectFuture, as_completed
from prefect.states import Cancelled, State

from flows.preamble import Prepared
from flows.recipe.resolve import ResolvedStage
from infra.context import context
from infra.store.store import Store
from schemas.artifact import Manifest
from schemas.base import InputError
from schemas.job import JobRequest
from schemas.reports import StageRecord
from tasks.running.backends import backend, close_backends
from tasks.running.early_start import begun
from tasks.running.watch import Watch
from tasks.stage import BAD_INPUT, CACHED, UNSOUND, submit_stage


@dataclass(frozen=True)
class _Submitted:
    """A stage under way: its job, its input artifacts (by the stage that made them), and how long
    it has run."""

    stage: ResolvedStage
    spec: JobRequest
    given: dict[str, Manifest]
    seconds: Callable[[], float]


class Chain:
    """The stages of one run.

    An artifact may disappear during the run (deleted, or damaged and set aside). The stage that
    failed without it runs again, once, after the stage that makes it; if that made other bytes this
    time, everything made from the old ones runs again, too.

    Args:
        prepared: the recipe, the target and `--data`. The artifacts of stages that are forced are
            set aside first.
        store: the run's, open for writing.
        run: the run's id.
        changed: receives the record of each stage that begins, ends, is skipped or fails.
        submit: begins a stage's task.
    """

    def __init__(
        self,
        prepared: Prepared,
        store: Store,
        run: str,
        changed: Callable[[StageRecord], None],
        submit: Callable[[JobRequest], PrefectFuture[Any]] = submit_stage,
    ) -> None:
        self._settings = context().settings
        self._prepared, self._store, self._run, self._changed = prepared, store, run, changed
        self._begin = submit
        self._resolved, self._force = prepared.resolved, set(prepared.given.force)
        self._stages = {stage.name: stage for stage in self._resolved.stages}
        self._users: dict[str, list[str]] = {name: [] for name in self._stages}
        for stage in self._resolved.stages:
            for source in set(stage.inputs.values()):
                self._users[source].append(stage.name)
        self._waiting = list(self._resolved.stages)
        self._running: dict[PrefectFuture[Any], _Submitted] = {}
        self._made: dict[str, Manifest] = {}
        self._made_from: dict[str, dict[str, Manifest]] = {}
        self._lost: set[str] = set()
        self._healed: set[str] = set()

    def walk(self, watch: Watch) -> None:
        """Run every stage as soon as its inputs are there, in file order, until all have ended or
        `watch.stop` or `watch.pause` is set.

        A failed stage ends those that need it; the others go on. When this returns none of their
        machines is left.
        """
        # the client of a cloud takes seconds to load: it does so while the first stages are looked
        # up
        backend(self._prepared.given.target)
        self._walk(watch)
        for message in close_backends():
            watch.say("machines", message)
            get_run_logger().error(message)

    def _walk(self, watch: Watch) -> None:
        def ending() -> bool:
            return watch.stop.is_set() or watch.pause.is_set()

        while self._running or (self._waiting and not ending()):
            for stage in list(self._waiting):
                if self._lost & set(stage.inputs.values()):
                    self._skip(stage)
                elif (
                    set(stage.inputs.values()) <= self._made.keys()
                    and len(self._running) < self._settings.parallel_jobs
                    and not ending()
                ):
                    self._submit(stage, watch)
            if self._running:
                future = next(as_completed(list(self._running)))
                try:
                    # before this the future knows no state of its own, and asks an API that lags
                    future.wait()
                    state = future.state
                except Pause:  # by a person, in Prefect's UI: it keeps no state of the task here
                    watch.pause.set()
                    state = Cancelled(message="the run was paused before it ended")
                self._finish(state, self._running.pop(future), watch)

    def _skip(self, stage: ResolvedStage) -> None:
        self._waiting.remove(stage)
        causes = sorted(self._lost & set(stage.inputs.values()))
        self._lost.add(stage.name)
        why = f"input missing: {', '.join(causes)}"
        self._changed(StageRecord(name=stage.name, kind=stage.kind, status="skipped", error=why))

    def _submit(self, stage: ResolvedStage, watch: Watch) -> None:
        self._waiting.remove(stage)
        given = {source: self._made[source] for source in stage.inputs.values()}
        spec = self._prepared.request(stage, given, self._run)
        early = begun(spec.key)
        seconds = early.seconds if early else partial(_since, time.monotonic())
        submitted = _Submitted(stage, spec, given, seconds)
        self._changed(StageRecord(name=stage.name, kind=stage.kind, key=spec.key, status="running"))
        try:
            if stage.name in self._force:
                self._store.discard(spec.kind, spec.key)
                self._force.remove(stage.name)
            self._running[self._begin(spec)] = submitted
        except (OSError, InputError) as error:
            self._end(submitted, _failure(error), watch)

    def _finish(self, state: State[Any], job: _Submitted, watch: Watch) -> None:
        """Record how a stage ended. What it made is read from the store."""
        try:
            done, stopped = state.is_completed(), state.is_cancelled() or watch.stop.is_set()
            manifest = self._store.lookup(job.spec.kind, job.spec.key) if done else None
            if manifest is None and not stopped and self._heal(job, done, watch):
                return
        except (OSError, InputError) as error:
            self._end(job, _failure(error), watch)
            return
        if manifest is None:
            self._end(job, _loss(state), watch)
            return
        self._made[job.stage.name], self._made_from[job.stage.name] = manifest, job.given
        status = "cached" if state.name == CACHED else "ran"
        made = {"artifact": manifest.ref(), "metrics": manifest.metrics}
        repaired = watch.repairs.get(job.stage.name)
        self._end(job, {"status": status, **made, "repaired": repaired}, watch)
        self._run_again_what_is_stale(job.stage.name, watch)

    def _end(self, job: _Submitted, changes: dict[str, Any], watch: Watch) -> None:
        if changes["status"] not in ("ran", "cached"):
            self._lost.add(job.stage.name)
        name = job.stage.name
        self._changed(
            StageRecord(
                name=name,
                kind=job.stage.kind,
                key=job.spec.key,
                seconds=job.seconds(),
                cost_usd=watch.costs.get(name),
                usage=watch.usages.get(name),
                **changes,
            )
        )

    def _heal(self, job: _Submitted, completed: bool, watch: Watch) -> bool:
        """Whether a stage without an artifact gets another try, because its input or its output is
        gone from the store.

        The store decides, whatever the error was. This also notices damage, and sets damaged
        artifacts aside.
        """
        name = job.stage.name
        if name in self._healed:
            return False
        gone = [
            source
            for source, given in job.given.items()
            if self._store.valid(given.kind, given.key) != given
        ]
        if not gone and not completed:
            return False
        self._healed.add(name)
        for source in gone:
            if self._made.get(source) != job.given[source]:
                continue  # it is being made again already
            damaged = f"its artifact was gone or damaged when {name} needed it"
            watch.repairs.setdefault(source, f"{damaged}, and has been made again")
            why = f"its artifact, an input of {name}, is gone from the store or damaged"
            self._again(source, watch, f"{why}; making it again")
        why = f"its input {', '.join(gone)} was gone or damaged"
        why = why if gone else "its artifact was removed as soon as it was made"
        self._again(name, watch, f"{why}; trying once more")
        return True

    def _run_again_what_is_stale(self, ended: str, watch: Watch) -> None:
        """Run again those of the ended stage and its dependants that were made from an artifact
        that has since been replaced by other bytes."""
        for name in (ended, *self._users[ended]):
            for source, given in self._made_from.get(name, {}).items():
                both = name in self._made and source in self._made
                if both and self._made[source].digest != given.digest:
                    self._again(name, watch, f"its input {source} has other bytes now")

    def _again(self, name: str, watch: Watch, why: str) -> None:
        self._made.pop(name, None)
        self._waiting = [
            stage for stage in self._stages.values() if stage in self._waiting or stage.name == name
        ]
        watch.say(name, why)
        get_run_logger().warning("stage %s: %s", name, why)


def _since(began: float) -> float:
    return time.monotonic() - began


def _loss(state: State[Any]) -> dict[str, Any]:
    """Why a task left no artifact."""
    if state.is_cancelled():
        return {"status": "skipped", "error": state.message}
    if state.is_completed():
        gone = "its artifact was removed from the store as soon as it was made"
        return {"status": "failed", "error": gone, "exit_code": 1}
    code = {BAD_INPUT: 2, UNSOUND: 3}.get(state.name or "", 1)
    return {"status": "failed", "error": state.message, "exit_code": code}


def _failure(error: Exception) -> dict[str, Any]:
    code = 2 if isinstance(error, InputError) else 1
    return {"status": "failed", "error": str(error), "exit_code": code}
