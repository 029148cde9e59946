"""The flow: a recipe's stages, each a cached task that leaves one artifact, and in the end a
report.

`lyceum run` calls it, `lyceum serve` offers it in the Prefect UI. Running it again continues: what
is valid is reused, whatever ended the run before.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.exceptions import CancelledRun, FailedRun
from prefect.states import Cancelled, Completed, Failed, State

from flows.chain import Chain
from flows.cli.interrupt import interruptible
from flows.planning.plan import DoesNotFit, check_fit
from flows.recipe.endpoints import check_endpoints
from flows.recipe.parameters import Data, Force, Overrides, Recipe, StoreUri, Target
from flows.recipe.resolve import resolve
from flows.report.page import report_of, write_report
from flows.report.publish import announce, publish
from flows.runs.record import RunLog
from flows.runs.results import read_results
from flows.trackers import track
from infra.settings import Settings
from infra.store.objects import Damaged
from infra.store.store import Store, open_store
from infra.targets import check_reach, check_target
from schemas.base import InputError, StageFailed
from tasks.stage import WATCH, Watch


def _tells_more_than_the_state(record: logging.LogRecord) -> bool:
    """Prefect logs how runs end twice: in a line of their state, and as an exception, with pages of
    its own code or none."""
    if not record.exc_info:
        return True
    kind = record.exc_info[0]
    return kind is not None and not issubclass(
        kind, (InputError, DoesNotFit, StageFailed, FailedRun, CancelledRun)
    )


for _name in ("prefect.flow_runs", "prefect.task_runs"):
    logging.getLogger(_name).addFilter(_tells_more_than_the_state)


@flow(
    name="post-train", persist_result=False, result_serializer="json"
)  # else an exception is pickled
def post_train(
    recipe: Recipe = "quickstart",
    target: Target = "local",
    store: StoreUri = "",
    overrides: Overrides = (),
    data: Data = "",
    force: Force = (),
) -> State[Any]:
    """Train a small model through a recipe's stages, reusing every stage whose artifact exists, and
    report what each stage was worth."""
    watch = WATCH.get(None) or Watch()
    WATCH.set(watch)
    try:
        settings, directory = Settings.from_environment(), Path(data).absolute() if data else None
        resolved = resolve(recipe, overrides, directory)
        check_target(target)
        for name in force:
            resolved.stage(name)
        check_reach(target, store or settings.store)
        opened = open_store(store or settings.store)
        opened.require_near(settings)
        check_endpoints(resolved, opened, target, force)
        if target != "local":
            get_run_logger().info(
                "planning for %s", target
            )  # minutes, where no plan like it was made on this machine
        plan = check_fit(resolved, opened, target)
    except (InputError, DoesNotFit, StageFailed) as error:
        get_run_logger().error("%s", error)
        return Failed(
            message=str(error), data=error
        )  # raised, Prefect would log it as a page of its own code
    run = RunLog(opened, resolved, target, watch.record)
    if plan is not None:
        run.plan(plan)
    announce(run.record, resolved, opened)
    chain = Chain(
        resolved,
        opened,
        run.stage,
        run=run.record.run_id,
        target=target,
        local_kinds=settings.local_kinds,
        data=directory,
        force=force,
        parallel=settings.parallel_jobs,
    )
    with interruptible(watch.stop):
        try:
            chain.walk(watch)
        except BaseException:
            watch.stop.set()  # the task runner waits for its threads, and those wait for this
            run.finish("failed")
            raise
    if watch.stop.is_set():
        run.finish("cancelled")
        return Cancelled(
            message=(
                f"run {run.record.run_id} was stopped; the same run again, or Retry, continues it"
            )
        )
    failed = [
        f"stage {stage.name}: {stage.error}"
        for stage in run.record.stages
        if stage.status == "failed"
    ]
    run.finish("failed" if failed else "succeeded")
    _publish(opened, run, watch)
    if failed:
        return Failed(message=f"run {run.record.run_id} failed; {'; '.join(failed)}")
    return Completed(message=f"run {run.record.run_id}: {run.record.report}")


def _publish(store: Store, run: RunLog, watch: Watch) -> None:
    """Write the report and show it in Prefect. Both are views: a store that fails now takes nothing
    from a run that has ended."""
    try:
        report = report_of(read_results(store, run.record))
        run.report(write_report(store, report))
        results = replace(report.run, record=run.record)
        publish(replace(report, run=results))
    except (OSError, InputError, Damaged) as error:
        why = f"could not be written: {error}; `lyceum report {run.record.run_id}` writes it later"
        watch.say("report", why)
        get_run_logger().warning("the report %s", why)
        return

    def warn(why: str) -> None:
        watch.say("trackers", why)
        get_run_logger().warning("%s", why)

    track(results, warn)
