"""Summaries of a run and of a plan as blocks, for a terminal and for Prefect."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flows.recipe import explain
from flows.recipe.resolve import ResolvedRecipe
from flows.report import blocks as ui
from flows.runs.forecast import Forecast
from flows.runs.wording import duration, headline
from infra.context import context
from infra.store.store import Store
from schemas.reports import RunRecord

MOST_DIFFERENCES = 4
"""The most differing fields, between a stage and the nearest artifact, that the plan names."""


def stages_done(record: RunRecord, title: str = "") -> ui.Table:
    """A row for each stage of a run; with what its machines cost, where any was paid."""
    rows, priced = [], record.cost_usd is not None
    for stage in record.stages:
        usd = "" if stage.cost_usd is None else f"{stage.cost_usd:.2f}"
        took = f"{stage.seconds:.1f}", *[usd] * priced
        rows.append((stage.name, stage.kind, stage.outcome, *took, headline(stage.metrics)))
    heads = "stage", "kind", "status", "seconds", *["USD"] * priced, "metrics"
    return ui.Table(heads, rows, title)


def stages_planned(
    stages: Sequence[Mapping[str, Any]], title: str = "", *, priced: bool = False
) -> ui.Table:
    """A row for each stage of a plan."""
    rows = []
    for stage in stages:
        seconds, usd = stage["seconds"], stage["cost_usd"]
        times = ["?" if seconds is None else duration(seconds)]
        times += ["?" if usd is None else f"{usd:.2f}"] if priced else []
        what: ui.Text = "cached" if stage["cached"] else ui.strong("would run")
        because = stage["reason"] + (f"; from {stage['basis']}" if "basis" in stage else "")
        rows.append((stage["name"], stage["kind"], what, *times, because))
    return ui.Table(("stage", "kind", "", "time", *["USD"] * priced, "because"), rows, title)


def plan_page(resolved: ResolvedRecipe, store: Store, target: str) -> Iterator[ui.Block]:
    """A plan: one row per stage, with the differences from the nearest artifact for stages that
    run."""
    outlooks = explain.outlook(resolved, store)
    neighbours = explain.Neighbours(outlooks, store)
    stages = neighbours.plans(resolved, target)
    slots = context().settings.parallel_jobs
    yield from Forecast(resolved.recipe, stages, planned=False, slots=slots).lines()
    yield stages_planned(stages)
    differing: list[tuple[ui.Text, ...]] = []
    for one in outlooks:
        waits = one.key is None or one.manifest is not None
        near = None if waits else neighbours.nearest(one.stage.name)
        name, found = one.stage.name, near[1] if near else []
        for field in found[:MOST_DIFFERENCES]:
            short = ui.code(_short(field.field)), _short(field.there), _short(field.here)
            differing.append((name, *short))
        differing += [(name, "...", "", "")] * (len(found) > MOST_DIFFERENCES)
    if differing:
        yield ui.Table(("stage", *ui.words("differs in", "nearest artifact", "here")), differing)


def _short(value: Any) -> str:
    text = re.sub(r"\s+", " ", str(value))
    return text if len(text) <= 60 else f"{text[:57]}..."
