"""A run's outcome as Prefect artifacts: a table of its stages, and a page that says where its report is."""

from typing import Any

import httpx
from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact, create_table_artifact

from flows.show import headline
from schemas.reports import RunRecord


def publish(record: RunRecord, verdict: str) -> None:
    """Publish a run and its verdict (Markdown). Prefect is only a view: when its API cannot be reached, the run has ended all the same."""
    key = record.recipe.name.replace("_", "-")
    try:
        create_table_artifact(table=stage_rows(record), key=f"{key}-stages", description=f"Stages of run {record.run_id}")
        create_markdown_artifact(markdown=page(record, verdict), key=f"{key}-run", description=f"Run {record.run_id}: {record.status}")
    except httpx.HTTPError as error:
        get_run_logger().warning("the run could not be shown in Prefect: %s", error)


def stage_rows(record: RunRecord) -> list[dict[str, Any]]:
    """One row per stage, for people."""
    return [
        {
            "stage": stage.name,
            "kind": stage.kind,
            "status": stage.status,
            "seconds": round(stage.seconds, 1),
            "metrics": headline(stage.metrics),
            "key": stage.key or "",
            "error": stage.error or "",
        }
        for stage in record.stages
    ]


def page(record: RunRecord, verdict: str) -> str:
    """The run in Markdown: what failed, what was gained, what it took."""
    seconds = (record.finished or record.started) - record.started
    failures = [f"**{stage.name}**: {stage.error}" for stage in record.stages if stage.error]
    head = [
        f"# {record.recipe.name}: {record.status}",
        f"Run `{record.run_id}` on target `{record.target}` took {seconds:.0f} s.",
        f"Store: `{record.store}`  \nReport: `{record.report}`",
    ]
    rows = ["| stage | kind | status | seconds | metrics |", "|---|---|---|---|---|"]
    rows += [f"| {row['stage']} | {row['kind']} | {row['status']} | {row['seconds']} | {row['metrics']} |" for row in stage_rows(record)]
    return "\n\n".join([*head, *failures, verdict, "\n".join(rows)]) + "\n"
