"""The run record: `runs/<run_id>/run.json`, written when a run begins and when it ends, and
`stages/<name>.json` beside it whenever a stage begins or ends, so that what a run writes grows as
its stages do. `read_run` and `read_runs` put both together. A view; the manifests are the truth.

A run that was planned has `plan.json` beside it, to be compared with the outcome.

The record names every key that the run has worked on, even after a SIGKILL, so that `flows.cli.gc`
keeps them.
"""

import functools
import json
import logging
import platform
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, Literal

from flows.recipe.resolve import ResolvedRecipe
from infra.cores import usable_cores
from infra.distribution import DISTRIBUTION
from infra.process_identity import is_gone, is_here, this_process
from infra.secrets import mask
from infra.store.objects import name_problem
from infra.store.store import Store
from schemas.base import InputError, nearest
from schemas.reports import RunRecord, StageRecord, StageVersion

log = logging.getLogger("lyceum.run")

PACKAGES = (DISTRIBUTION, "jax", "google-tunix", "flax", "optax", "qwix", "prefect")
"""Packages whose versions a run record states."""

SAVE_SECONDS = 10.0
"""Seconds that a run waits for a store that does not take its record; at its end it waits as long
as the store does."""


def new_run_id(recipe: str) -> str:
    """`quickstart-20261121-101500-ab12`: recipe, UTC, in which clocks that are changed keep the
    order, and four random characters against two starts in one second."""
    now = time.gmtime(time.time())
    return f"{recipe}-{time.strftime('%Y%m%d-%H%M%S', now)}-{secrets.token_hex(2)}"


def run_folder(run_id: str) -> str:
    """The name in the store below which all files of a run lie."""
    return f"runs/{run_id}"


def record_name(run_id: str) -> str:
    return f"{run_folder(run_id)}/run.json"


class RunLog:
    """Keeps the record of a run in the store while the run goes on; `watch` sees every new version
    of it.

    A version that the store does not take is logged, and written with the next one; the run goes
    on.

    Args:
        started: when the run began, seconds since the epoch; None: now.
        stages: what the run names from its first version on.
        group: the id that it shares with runs of the same recipe under other seeds; its own id has
            its seed, since many may begin in one second.
    """

    def __init__(
        self,
        store: Store,
        resolved: ResolvedRecipe,
        target: str,
        watch: Callable[[RunRecord], None],
        started: float | None = None,
        group: str | None = None,
        stages: Sequence[StageRecord] = (),
    ) -> None:
        self._store = store
        self._watch = watch
        self._began: dict[str, float] = {}
        self._unwritten: dict[str, StageRecord] = {}
        recipe = resolved.recipe
        name = recipe.name if group is None else f"{recipe.name}-seed{recipe.seed}"
        self.record = RunRecord(
            run_id=new_run_id(name),
            group=group,
            recipe=recipe,
            target=target,
            store=store.uri,
            status="running",
            started=started or time.time(),
            process=this_process(),
            execution=_execution(),
            stages=tuple(stages),
        )
        self._update(SAVE_SECONDS)

    def stage(self, *changed: StageRecord) -> None:
        """Record stages that began or ended, in place of their earlier records."""
        now, updated = time.monotonic(), time.time()
        self._began |= {one.name: now for one in changed if one.status == "running"}
        self._unwritten |= {one.name: one for one in changed}
        stages = _with(self.record, changed)
        self.record = self.record.model_copy(update={"stages": stages, "updated": updated})
        with self._going_on("record"):
            for name, stage in list(self._unwritten.items()):
                version = StageVersion(updated=updated, stage=stage)
                place = _version_name(self.record.run_id, name)
                self._store.write_json(place, version, SAVE_SECONDS)
                del self._unwritten[name]
        self._watch(self.record)

    def finish(
        self,
        status: Literal["succeeded", "failed", "cancelled", "paused"],
        ended: Sequence[StageRecord] = (),
    ) -> None:
        """Record the end of the run and of these stages. Stages without a record never began."""
        stages = tuple(
            stage if stage.status != "running" else self._interrupted(stage)
            for stage in _with(self.record, ended)
        )
        self._update(None, status=status, finished=time.time(), stages=stages)

    def plan(self, plan: dict[str, Any]) -> None:
        text = json.dumps(plan, indent=2).encode() + b"\n"
        with self._going_on("plan"):
            self._store.write_bytes(_plan_name(self.record.run_id), text, SAVE_SECONDS)

    def report(self, location: str) -> None:
        self._update(None, report=location)

    def _update(self, seconds: float | None, **changes: Any) -> None:
        self.record = self.record.model_copy(update={**changes, "updated": time.time()})
        with self._going_on("record"):
            self._store.write_json(record_name(self.record.run_id), self.record, seconds)
        self._watch(self.record)

    def _interrupted(self, stage: StageRecord) -> StageRecord:
        seconds = time.monotonic() - self._began[stage.name]
        why = "the run ended before it did"
        return stage.model_copy(update={"status": "skipped", "seconds": seconds, "error": why})

    @contextmanager
    def _going_on(self, what: str) -> Iterator[None]:
        """Log a store that does not take it, and go on."""
        try:
            yield
        except (OSError, InputError) as error:
            said = "the %s of run %s could not be written; the run goes on: %s"
            log.warning(said, what, self.record.run_id, error)


def run_status(record: RunRecord) -> str:
    """The run's status as far as it can be known from here.

    A run that says it is running is `interrupted` when its process is gone, and `running?` when it
    ran on another machine.
    """
    if record.status != "running":
        return record.status
    if record.process is None or not is_here(record.process):
        return "running?"
    return "interrupted" if is_gone(record.process) else "running"


def left(record: RunRecord) -> list[str]:
    """The stages of a run that have made nothing yet, in file order."""
    made = {stage.name for stage in record.stages if stage.status in ("ran", "cached")}
    return [stage.name for stage in record.recipe.stages if stage.name not in made]


def read_run(store: Store, run_id: str) -> RunRecord:
    """The record of a run. Raises InputError naming the known runs."""
    allowed = not (name_problem(run_id) or "/" in run_id)
    record = store.read_json(record_name(run_id), RunRecord) if allowed else None
    if record is None:
        known = store.list_runs()
        valid = nearest(run_id, known) if known else " It has no runs; --store URI names another."
        raise InputError(f"unknown run {run_id!r} in store {store.uri}.{valid}")
    if record.run_id != run_id:
        raise InputError(
            f"store {store.uri}: {record_name(run_id)} is the record of another run,"
            f" {record.run_id!r}. Remove the file."
        )
    return in_full(store, record)


def read_runs(store: Store) -> list[RunRecord]:
    """The records of all runs, the one that began last at the end. Raises InputError for one that
    is damaged."""
    known = store.list_runs()
    records = (
        store.parsed(record_name(run), raw, RunRecord)
        for run, raw in zip(known, store.read_all(list(map(record_name, known))), strict=True)
    )
    found = [in_full(store, record) for record in records if record]
    return sorted(found, key=lambda record: record.started)


def in_full(store: Store, record: RunRecord) -> RunRecord:
    """A record with what `stages/` says, where its run has not come to write all of it. Raises
    InputError for a damaged part."""
    if record.status != "running":
        return record
    # read it by name: a listing may lag behind
    names = [_version_name(record.run_id, stage.name) for stage in record.recipe.stages]
    read = zip(names, store.read_all(names), strict=True)
    versions = [one for name, raw in read if (one := store.parsed(name, raw, StageVersion))]
    stages = _with(record, [version.stage for version in versions])
    updated = max([record.updated or 0.0, *(version.updated for version in versions)])
    return record.model_copy(update={"stages": stages, "updated": updated})


def _with(record: RunRecord, changed: Sequence[StageRecord]) -> tuple[StageRecord, ...]:
    """A record's stages with newer versions of some, in the recipe's order."""
    known = {one.name: one for one in (*record.stages, *changed)}
    return tuple(known[stage.name] for stage in record.recipe.stages if stage.name in known)


def read_plan(store: Store, run_id: str) -> dict[str, Any] | None:
    """The plan that a run began with, as `lyceum plan --json` prints it; None when it was not
    planned. Raises InputError: it is damaged."""
    raw = store.read_bytes(_plan_name(run_id))
    try:
        plan: dict[str, Any] | None = None if raw is None else json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"store {store.uri}: {_plan_name(run_id)} is damaged ({error}). Remove the file."
        ) from error
    return plan


def _version_name(run_id: str, stage: str) -> str:
    return f"{run_folder(run_id)}/stages/{stage}.json"


def _plan_name(run_id: str) -> str:
    return f"{run_folder(run_id)}/plan.json"


@functools.cache
def _packages() -> dict[str, str]:
    return {name: version(name) for name in PACKAGES}


def _execution() -> dict[str, Any]:
    return {
        "host": platform.node(),
        "cores": usable_cores(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": _packages(),
        "command": [mask(argument) for argument in sys.argv],
    }
