"""Saves time when no Prefect API runs, since starting Prefect's server takes ten seconds and more.

If every stage is cached, it starts nothing, like make; the run is recorded and reported like any
other. Otherwise the first stage that must run begins while the server starts, if it runs on this
machine, and the flow finds it under way. The stage's own rule (`tasks.running.execution`) decides
what is cached; a look without changes only tells whether to ask it.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from flows.ending import report_run
from flows.preamble import Prepared
from flows.recipe.explain import Outlook
from flows.runs.record import RunLog
from infra.store.store import Store
from schemas.artifact import Manifest
from schemas.reports import StageRecord
from tasks.running.backends import close_backends
from tasks.running.early_start import begin, take
from tasks.running.execution import adopt
from tasks.running.watch import Watch


def run_cached(prepared: Prepared, store: Store, outlooks: Sequence[Outlook], watch: Watch) -> bool:
    """Run a recipe whose stages are all cached. Returns False, and records nothing, if one is not,
    or is forced.

    Raises InputError, and OSError when the store does not answer.
    """
    started, made = time.time(), dict[str, Manifest]()
    stages: list[StageRecord] = []
    if prepared.force or not all(one.manifest for one in outlooks):
        return False
    for stage in prepared.resolved.stages:
        if watch.stop.is_set() or watch.pause.is_set():
            return False
        began, job = time.monotonic(), prepared.request(stage, made, run="")
        manifest = adopt(job, store, watch, partial(watch.say, stage.name))
        if manifest is None:
            return False
        made[stage.name] = manifest
        stages.append(
            StageRecord(
                name=stage.name,
                kind=stage.kind,
                key=job.key,
                status="cached",
                seconds=time.monotonic() - began,
                artifact=manifest.ref(),
                metrics=manifest.metrics,
            )
        )
    run = RunLog(store, prepared.resolved, prepared.target, watch.record, started, prepared.group)
    if prepared.plan is not None:
        run.plan(prepared.plan)
    for message in close_backends():
        watch.say("machines", message)
    run.finish("succeeded", stages)
    report_run(store, run, watch.say)
    return True


@contextmanager
def begun(
    prepared: Prepared, store: Store, outlooks: Sequence[Outlook], watch: Watch
) -> Iterator[RunLog | None]:
    """Begin and record the first stage that must run. Yields the record, with which the flow
    continues; None if nothing was begun.

    At the end, a stage that no flow has taken over is stopped, and its run ends.
    """
    made = {one.stage.name: one.manifest for one in outlooks if one.manifest}
    first = next((one.stage for one in outlooks if one.manifest is None), None)
    ending = prepared.force or watch.stop.is_set() or watch.pause.is_set()
    job = None if first is None or ending else prepared.request(first, made, run="")
    if job is None or job.target != "local":
        yield None
        return
    run = RunLog(store, prepared.resolved, prepared.target, watch.record, group=prepared.group)
    run.stage(StageRecord(name=job.stage, kind=job.kind, key=job.key, status="running"))
    begin(job.model_copy(update={"run": run.record.run_id}), watch)
    try:
        yield run
    finally:
        stopped = watch.stop.is_set()
        if (alone := take(job.key)) is not None:
            watch.stop.set()
            alone.wait()
        if run.record.status == "running":
            run.finish("cancelled" if stopped else "failed")
