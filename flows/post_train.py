"""The flow: a recipe's stages, each a cached task that leaves one artifact, and in the end a
report.

`lyceum run` calls it, `lyceum serve` offers it in the Prefect UI. Running it again continues: what
is valid is reused, whatever ended the run before.
"""

import logging
from typing import Any

from prefect import flow, get_run_logger
from prefect.exceptions import CancelledRun, FailedRun
from prefect.states import Cancelled, Completed, Failed, State

from flows.chain import Chain
from flows.cli.interrupt import interruptible, suspendable
from flows.ending import give_up, report_run
from flows.preamble import Handed, Parameters, prepare, taken
from flows.recipe.parameters import Data, Force, Overrides, Recipe, StoreUri, Target
from flows.report.publish import announce, publish
from flows.runs.record import RunLog, left
from flows.trackers import followed, logged
from infra.context import context
from infra.store.store import Store
from schemas.base import DoesNotFit, InputError, StageFailed
from tasks.running.watch import WATCH, Watch


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


# else than as JSON an exception is pickled
@flow(name="post-train", persist_result=False, result_serializer="json")
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
    watch = WATCH.get(None) or followed(Watch(), logged)
    WATCH.set(watch)
    try:
        place = store or context().settings.store
        given = Parameters(recipe, target, place, overrides, data, force)
        prepared, begun = taken() or Handed(prepare(given))
        if target != "local":
            get_run_logger().info("planning for %s", target)
        plan, opened = prepared.plan, prepared.opened
    except (InputError, DoesNotFit, StageFailed, OSError) as error:
        return bad_input(error)
    resolved = prepared.resolved
    run = begun or RunLog(opened, resolved, target, watch.record, group=prepared.group)
    try:
        if plan is not None:
            run.plan(plan)
        announce(run.record, resolved, opened)
        chain = Chain(prepared, opened, run.record.run_id, run.stage)
        with interruptible(watch.stop), suspendable(watch):
            chain.walk(watch)
        ended = run.record.stages
        failed = [f"stage {one.name}: {one.error}" for one in ended if one.status == "failed"]
        deadline = watch.pause.is_set()
        paused = deadline and bool(left(run.record)) and not failed
        if paused or (watch.stop.is_set() and not deadline):
            run.finish("paused" if paused else "cancelled")
            again = "the same run again, or Retry, continues it"
            return Cancelled(message=f"run {run.record.run_id} was stopped; {again}")
        run.finish("failed" if failed else "succeeded")
        publish_report(opened, run, watch)
        prepared.ended(run.record)
        if failed:
            return Failed(message=f"run {run.record.run_id} failed; {'; '.join(failed)}")
        return Completed(message=f"run {run.record.run_id}: {run.record.report}")
    except BaseException:
        stopped = watch.stop.is_set()  # a second Ctrl-C
        if run.record.status == "running":
            watch.stop.set()  # the task runner waits for its threads, and those wait for this
        give_up(run, "cancelled" if stopped else "failed")
        raise


def bad_input(error: Exception) -> State[Any]:
    """The state of a flow that cannot begin. Raised, Prefect would log it as a page of its own
    code."""
    get_run_logger().error("%s", error)
    return Failed(message=str(error), data=error)


def publish_report(store: Store, run: RunLog, watch: Watch) -> None:
    """Write the report and show it in Prefect."""

    def warn(about: str, why: str) -> None:
        watch.say(about, why)
        get_run_logger().warning("%s: %s", about, why)

    report_run(store, run, warn, publish)
