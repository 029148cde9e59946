"""Saves time when no Prefect API runs, since starting Prefect's server takes ten seconds and more.

If every stage is cached, it starts nothing, like make; the run is recorded and reported like any
other. Otherwise the stages that wait for no other begin while the server starts, if they run on
this machine, and the flow finds them under way. A stage's own rule (`tasks.running.execution`)
decides what is cached; a look without changes only tells whether to ask it.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from flows.ending import give_up, report_run
from flows.preamble import Prepared
from flows.recipe.explain import Outlook
from flows.recipe.resolve import ResolvedStage
from flows.runs.record import RunLog, run_folder
from schemas.artifact import Manifest
from schemas.base import InputError
from schemas.job import JobRequest
from schemas.reports import StageRecord
from tasks.running.backends import close_backends
from tasks.running.early_start import begin, take
from tasks.running.execution import adopt
from tasks.running.watch import Watch


def run_cached(prepared: Prepared, outlooks: Sequence[Outlook], watch: Watch) -> bool:
    """Run a recipe whose stages are all cached. Returns False, and leaves no record, if one is not,
    or is forced.

    Raises InputError, and OSError when the store does not answer.
    """
    store, started = prepared.opened, time.time()
    ending = prepared.given.force or watch.stop.is_set() or watch.pause.is_set()
    if ending or not all(one.manifest for one in outlooks):
        return False
    found: list[StageRecord] = []
    run = RunLog(
        store,
        prepared.resolved,
        prepared.given.target,
        lambda version: watch.record(version) if found else None,
        started,
        prepared.group,
        # before they are looked for: `lyceum gc` leaves what a run on record names
        [_record(one.stage, one.key, status="running") for one in outlooks],
    )
    try:
        found = _adopted(prepared, outlooks, watch)
    finally:
        if len(found) < len(outlooks):
            with suppress(OSError, InputError):
                store.remove(run_folder(run.record.run_id))
    if len(found) < len(outlooks):
        return False
    if prepared.plan is not None:
        run.plan(prepared.plan)
    for message in close_backends():
        watch.say("machines", message)
    run.finish("succeeded", found)
    report_run(store, run, watch.say)
    return True


def _adopted(prepared: Prepared, outlooks: Sequence[Outlook], watch: Watch) -> list[StageRecord]:
    """The records of stages that are cached, up to the first that is not, or to a stop."""
    made: dict[str, Manifest] = {}
    found: list[StageRecord] = []
    for one in outlooks:
        began, job = time.monotonic(), prepared.request(one.stage, made, run="")
        if watch.stop.is_set() or watch.pause.is_set() or job.key != one.key:
            break
        manifest = adopt(job, prepared.opened, watch, partial(watch.say, one.stage.name))
        if manifest is None:
            break
        made[one.stage.name] = manifest
        ended = {"status": "cached", "seconds": time.monotonic() - began}
        kept = {"artifact": manifest.ref(), "metrics": manifest.metrics}
        found.append(_record(one.stage, one.key, **ended, **kept))
    return found


def _record(stage: ResolvedStage, key: str | None, **more: Any) -> StageRecord:
    return StageRecord(name=stage.name, kind=stage.kind, key=key, **more)


@contextmanager
def begun(prepared: Prepared, outlooks: Sequence[Outlook], watch: Watch) -> Iterator[RunLog | None]:
    """Begin and record the stages that must run and wait for no other. Yields the record, with
    which the flow continues; None if nothing was begun.

    At the end, those that no flow has taken over are stopped, and their run ends.
    """
    made = {one.stage.name: one.manifest for one in outlooks if one.manifest}
    jobs: dict[str, JobRequest] = {}
    if not (prepared.given.force or watch.stop.is_set() or watch.pause.is_set()):
        for one in outlooks:
            if one.manifest is None and set(one.stage.inputs.values()) <= made.keys():
                job = prepared.request(one.stage, made, run="")
                if job.target == "local":
                    jobs.setdefault(job.key, job)
    if not jobs:
        yield None
        return
    target, group = prepared.given.target, prepared.group
    run = RunLog(prepared.opened, prepared.resolved, target, watch.record, group=group)
    for job in jobs.values():
        run.stage(StageRecord(name=job.stage, kind=job.kind, key=job.key, status="running"))
        begin(job.model_copy(update={"run": run.record.run_id}), watch)
    try:
        yield run
    finally:
        stopped = watch.stop.is_set()
        alone = [stage for key in jobs if (stage := take(key)) is not None]
        if alone:
            watch.stop.set()
        for stage in alone:
            stage.wait()
        give_up(run, "cancelled" if stopped else "failed")
