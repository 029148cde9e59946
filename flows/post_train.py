"""The flow: a recipe's stages, each a cached task that leaves one artifact, and in the end a report.

`lyceum run` calls it, `lyceum serve` offers it in the Prefect UI. Running it again continues: what is valid is reused, whatever ended the
run before.
"""

from pathlib import Path
from typing import Annotated, Any

from prefect import flow, get_run_logger
from prefect.states import Cancelled, Completed, Failed, State
from pydantic import Field

from flows.chain import Chain
from flows.interrupt import interruptible
from flows.publish import publish
from flows.report.page import render_report
from flows.report.results import read_results
from flows.report.wording import verdict_markdown
from flows.resolve import resolve
from flows.run_record import RunLog
from infra.objects import Damaged
from infra.settings import Settings
from infra.store import Store, open_store
from infra.targets import check_target
from schemas.base import InputError
from tasks.stage import WATCH, Watch


@flow(name="post-train", flow_run_name="{recipe}", persist_result=False, result_serializer="json")  # else an exception is pickled
def post_train(
    recipe: Annotated[str, Field(title="Recipe", description="A shipped recipe's name, or the path of a TOML file")] = "quickstart",
    target: Annotated[str, Field(title="Target", description="Where jobs run")] = "local",
    store: Annotated[str | None, Field(title="Store", description="Path or URI; empty for LYCEUM_STORE, or else ./.lyceum")] = None,
    overrides: Annotated[tuple[str, ...], Field(title="Overrides", description="E.g. stages.grpo.config.steps=20")] = (),
    data: Annotated[str | None, Field(title="Data", description="Directory of the data files that the recipe reads")] = None,
    force: Annotated[tuple[str, ...], Field(title="Force", description="Stages to run again although they are cached")] = (),
) -> State[Any]:
    """Train a small model through a recipe's stages, reusing every stage whose artifact exists, and report what each stage was worth."""
    watch = WATCH.get(None) or Watch()
    WATCH.set(watch)
    settings = Settings.from_environment()
    directory = Path(data).absolute() if data else None
    resolved = resolve(recipe, overrides, directory)
    check_target(target)
    for name in force:
        resolved.stage(name)
    opened = open_store(store or settings.store)
    opened.require_near(settings)
    run = RunLog(opened, resolved, target, watch.record)
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
        return Cancelled(message=f"run {run.record.run_id} was stopped; run the same command again to continue")
    failed = [stage.name for stage in run.record.stages if stage.status == "failed"]
    run.finish("failed" if failed else "succeeded")
    _publish(opened, run, watch)
    if failed:
        return Failed(message=f"run {run.record.run_id}: stage {', '.join(failed)} failed")
    return Completed(message=f"run {run.record.run_id}: {run.record.report}")


def _publish(store: Store, run: RunLog, watch: Watch) -> None:
    """Write the report and show it in Prefect. Both are views: a store that fails now takes nothing from a run that has ended."""
    try:
        run.report(render_report(store, run.record))
        publish(run.record, verdict_markdown(read_results(store, run.record)))
    except (OSError, InputError, Damaged) as error:
        why = f"could not be written: {error}; `lyceum report {run.record.run_id}` writes it later"
        watch.say("report", why)
        get_run_logger().warning("the report %s", why)
