"""Publishes a run as Prefect artifacts: the plan before it; stages, verdict, plots and samples
after it.

All of them are views: without Prefect's API or the store, the run goes on and ends all the same.
"""

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

import httpx
from prefect import get_run_logger, runtime
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.client.orchestration import get_client

from flows.recipe.resolve import ResolvedRecipe
from flows.report.blocks import Block, Figure, plain, walk
from flows.report.markdown import markdown
from flows.report.page import Report, run_page
from flows.report.sample_choice import right_and_wrong, samples
from flows.report.sections.samples import sample_blocks
from flows.report.summaries import plan_page, stages_done
from infra.store.objects import Damaged
from infra.store.store import Store
from infra.visible import visible
from schemas.base import InputError
from schemas.reports import RunRecord


def announce(record: RunRecord, resolved: ResolvedRecipe, store: Store) -> None:
    """Name Prefect's flow run after the run's id, and publish the plan: what is cached, what will
    run, and why."""

    def show() -> None:
        with get_client(sync_client=True) as client:
            client.update_flow_run(UUID(runtime.flow_run.id), name=record.run_id)
        what = f"What run {record.run_id} is going to do on target {record.target}"
        publish_page(record, "plan", plan_page(resolved, store, record.target), what)

    view(show)


def publish(report: Report) -> None:
    """Publish a run that has ended, with the visible plots of its report."""
    record = report.run.record

    def show() -> None:
        with get_client(sync_client=True) as client:
            client.api_healthcheck()  # waits a moment for a server that is being started again
        drawn = [one for one in walk(report.main, folded=False) if isinstance(one, Figure)]
        answers = sample_blocks(right_and_wrong(samples(report.run)))
        run = f"run {record.run_id}"
        key, said = _key(record, "stages"), f"Stages of {run}"
        create_table_artifact(table=stage_rows(record), key=key, description=said)
        publish_page(
            record, "report", run_page(report.run), f"Run {record.run_id}: {record.status}"
        )
        publish_page(record, "plots", drawn, f"Plots of {run}")
        publish_page(record, "samples", answers, f"Held-out prompts and answers of {run}")

    view(show)


def view(show: Callable[[], None]) -> None:
    """Show something in Prefect; a server or store that does not answer is logged, and the run goes
    on."""
    try:
        show()
    except (httpx.HTTPError, OSError, InputError, Damaged) as error:
        get_run_logger().warning("the run could not be shown in Prefect: %s", error)


def publish_page(record: RunRecord, name: str, blocks: Iterable[Block], description: str) -> None:
    """Publish blocks, if any, as a page of Markdown."""
    if shown := list(blocks):
        create_markdown_artifact(
            markdown=markdown(shown), key=_key(record, name), description=description
        )


def _key(record: RunRecord, name: str) -> str:
    """A Prefect artifact's key has only lower-case letters, digits and dashes."""
    return f"{record.recipe.name.replace('_', '-')}-{name}"


def stage_rows(record: RunRecord) -> list[dict[str, Any]]:
    """One row per stage, for people."""
    table = stages_done(record)
    names = [plain(column.title) for column in table.heads]
    rows = [dict[str, Any](zip(names, row, strict=True)) for row in table.rows]
    for row, stage in zip(rows, record.stages, strict=True):
        row |= {"seconds": round(stage.seconds, 1), "error": visible(stage.error or "")}
    return rows
