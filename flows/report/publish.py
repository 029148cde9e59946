"""A run as Prefect artifacts: before it the plan; after it its stages, its verdict, its plots, and
what its models answered.

All of them are views: when Prefect's API or the store cannot be reached, the run goes on, or has
ended, all the same.
"""

import base64
import html
import re
from collections.abc import Callable
from typing import Any
from uuid import UUID

import httpx
from prefect import get_run_logger, runtime
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.client.orchestration import get_client

from flows.recipe import explain
from flows.recipe.resolve import ResolvedRecipe
from flows.report.samples_section import Sample, samples
from flows.report.templates import environment
from flows.report.verdict import verdict_markdown
from flows.runs.results import RunResults
from flows.runs.wording import duration, headline
from infra.store.objects import Damaged
from infra.store.store import Store
from infra.visible import visible
from schemas.base import InputError
from schemas.reports import RunRecord

_FIGURE = re.compile(
    r'<figure class="plot"><figcaption>(.*?)</figcaption>(<svg.*?</svg>)', re.DOTALL
)
_FOLDED = re.compile(r"<details.*?</details>", re.DOTALL)
MOST_DIFFERENCES = 4
"""Fields of a stage's identity that the plan names when they differ from the nearest artifact's."""


def announce(record: RunRecord, resolved: ResolvedRecipe, store: Store) -> None:
    """Give Prefect's flow run the run's id as its name, and publish the plan: what is cached, what
    will run, and why."""

    def show() -> None:
        with get_client(sync_client=True) as client:
            client.update_flow_run(UUID(runtime.flow_run.id), name=record.run_id)
        _markdown(
            record,
            "plan",
            plan(resolved, store),
            f"What run {record.run_id} is going to do on target {record.target}",
        )

    _view(show)


def publish(results: RunResults, report: str) -> None:
    """Publish a run that has ended; `report` is the text of its HTML report, whose plots are
    shown."""
    record = results.record

    def show() -> None:
        with get_client(sync_client=True) as client:
            client.api_healthcheck()  # waits a moment for a server that is being started again
        create_table_artifact(
            table=stage_rows(record),
            key=_key(record, "stages"),
            description=f"Stages of run {record.run_id}",
        )
        _markdown(
            record,
            "report",
            page(record, verdict_markdown(results)),
            f"Run {record.run_id}: {record.status}",
        )
        for name, text, what in (
            ("plots", plots(report), "Plots"),
            ("samples", answers(samples(results)), "Held-out prompts and answers"),
        ):
            if text:
                _markdown(record, name, text, f"{what} of run {record.run_id}")

    _view(show)


def _view(show: Callable[[], None]) -> None:
    try:
        show()
    except (httpx.HTTPError, OSError, InputError, Damaged) as error:
        get_run_logger().warning("the run could not be shown in Prefect: %s", error)


def _markdown(record: RunRecord, name: str, text: str, description: str) -> None:
    create_markdown_artifact(
        markdown=visible(text), key=_key(record, name), description=description
    )


def _key(record: RunRecord, name: str) -> str:
    """A Prefect artifact's key has only lower-case letters, digits and dashes."""
    return f"{record.recipe.name.replace('_', '-')}-{name}"


def plan(resolved: ResolvedRecipe, store: Store) -> str:
    """What a run would do, in Markdown: one row per stage, and for those that run, what differs
    from the nearest artifact."""
    outlooks = explain.outlook(resolved, store)
    made = explain.Made(store)
    stages = [explain.stage_plan(one, outlooks, made) for one in outlooks]
    rows = ["| stage | kind | | expected | because |", "|---|---|---|---|---|"]
    differences = []
    for one, stage in zip(outlooks, stages, strict=True):
        expected = "?" if stage["seconds"] is None else duration(stage["seconds"])
        rows.append(
            f"| {stage['name']} | {stage['kind']} | {'cached' if stage['cached'] else '**runs**'} |"
            f" {expected} | {stage['reason']} |"
        )
        near = (
            explain.nearest_artifact(outlooks, one.stage.name, made)
            if one.key and not one.manifest
            else None
        )
        if near:
            changed = [
                f"`{_short(each.field)}`: {_short(each.there)} → {_short(each.here)}"
                for each in near[1]
            ]
            shown = [
                *changed[:MOST_DIFFERENCES],
                *(["..."] if len(changed) > MOST_DIFFERENCES else []),
            ]
            differences.append(
                f"- **{stage['name']}** differs from its nearest artifact in {'; '.join(shown)}"
            )
    seconds = explain.total([stage["seconds"] for stage in stages])
    runs = sum(not stage["cached"] for stage in stages)
    expected = (
        "how long that takes is not known"
        if seconds is None
        else f"expected to take {duration(seconds)}, judging by earlier runs"
    )
    head = (
        f"{runs} of {len(stages)} stages will run; {expected}."
        if runs
        else f"All {len(stages)} stages are cached; nothing will run."
    )
    return "\n\n".join([head, "\n".join(rows), "\n".join(differences)]).strip() + "\n"


def _short(value: Any, most: int = 60) -> str:
    text = re.sub(r"\s+", " ", str(value)).replace("|", "\\|")
    return text if len(text) <= most else f"{text[: most - 3]}..."


def stage_rows(record: RunRecord) -> list[dict[str, Any]]:
    """One row per stage, for people."""
    return [
        {
            "stage": stage.name,
            "kind": stage.kind,
            "status": stage.status,
            "seconds": round(stage.seconds, 1),
            "metrics": headline(stage.metrics),
            "error": visible(stage.error or ""),
        }
        for stage in record.stages
    ]


def page(record: RunRecord, verdict: str) -> str:
    """The run in Markdown: what failed, what was gained, what it took, and where the report is."""
    seconds = (record.finished or record.started) - record.started
    failures = [
        f"**{stage.name}** ({stage.status}):\n\n{_fenced(stage.error)}"
        for stage in record.stages
        if stage.error
    ]
    head = [
        f"# {record.recipe.name}: {record.status}",
        f"Run `{record.run_id}` on target `{record.target}` took {duration(seconds)}.",
        f"Report: {_link(record.report)}  \nStore: `{record.store}`",
    ]
    rows = ["| stage | kind | status | seconds | metrics |", "|---|---|---|---|---|"]
    rows += [
        f"| {row['stage']} | {row['kind']} | {row['status']} | {row['seconds']} |"
        f" {row['metrics']} |"
        for row in stage_rows(record)
    ]
    return "\n\n".join([*head, *failures, verdict, "\n".join(rows)]) + "\n"


def _link(report: str | None) -> str:
    """Browsers open an object of a bucket (for those who may read it), but no file from a page that
    a server sent."""
    if report and report.startswith("gs://"):
        return f"[{report}](https://storage.cloud.google.com/{report.removeprefix('gs://')})"
    return f"`{report}`"


def plots(report: str) -> str:
    """The plots that an HTML report shows at first sight, in Markdown: each an image within its own
    address."""
    colours = environment().get_template("style.css.j2").render().partition("*")[0]
    style = (
        f"<style>{colours} svg {{ background: var(--card); color: var(--ink); font-family:"
        " sans-serif }</style>"
    )
    images = []
    for title, svg in _FIGURE.findall(_FOLDED.sub("", report)):
        encoded = base64.b64encode(svg.replace("<defs>", f"{style}<defs>", 1).encode()).decode()
        images.append(f"### {title}\n\n![{title}](data:image/svg+xml;base64,{encoded})")
    return "\n\n".join(images)


def answers(shown: list[Sample]) -> str:
    """Of each group of prompts one that the last model got right and one that it did not, in
    Markdown, to be unfolded."""
    chosen = {(sample.group, sample.mark): sample for sample in reversed(shown)}
    parts = []
    for sample in reversed(chosen.values()):
        facts = [
            (f"{answer.model}: {', '.join([answer.mark, *answer.notes])}", answer.text)
            for answer in sample.answers
        ]
        blocks = [
            f"**{title}**\n\n{_fenced(text)}"
            for title, text in [("prompt", sample.prompt), ("reference", sample.reference), *facts]
        ]
        summary = (
            f"<summary>{html.escape(f'{sample.group}, {sample.mark}: {sample.title}')}</summary>"
        )
        parts.append("\n\n".join([f"<details>{summary}", *blocks, "</details>"]))
    return "\n\n".join(parts)


def _fenced(text: str) -> str:
    """Text as it is, whatever it holds."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"
