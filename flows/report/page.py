"""The report of a run: one self-contained HTML page, verdict first, drawn from the run's record and artifacts alone.

The page loads nothing, runs no script (a Content-Security-Policy forbids both, beside the escaping of every text), and shows whatever a
run left: one that failed half-way has a report, which begins with what failed.
"""

from functools import cache
from time import gmtime, strftime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from flows.report import (
    certainty_section,
    data_section,
    effects_section,
    gate_section,
    plan_section,
    provenance_section,
    safety_section,
    samples_section,
    training_section,
)
from flows.report.verdict import stage_verdicts, verdict
from flows.runs.results import RunResults, read_results
from flows.runs.wording import bounds, clip, duration, percent, points
from infra.store.store import Store
from infra.visible import visible
from schemas.examples import Domain
from schemas.reports import RunRecord
from tasks.statistics.intervals import Interval


def render_report(store: Store, record: RunRecord) -> str:
    """Write `runs/<run_id>/report.html` and return where it lies: a path, or a `gs://` URI.

    Raises:
        InputError: the store is full or cannot be written.
        Damaged: a file of an artifact was damaged on its way here.
    """
    return write_report(store, record.run_id, report_html(read_results(store, record)))


def write_report(store: Store, run_id: str, page: str) -> str:
    """Write the page of a run. Returns and raises what `render_report` does."""
    name = f"runs/{run_id}/report.html"
    store.write_bytes(name, page.encode())
    return store.location(name)


def report_html(run: RunResults) -> str:
    """The page. Equal results give equal text."""
    shown = samples_section.samples(run)
    return rendered(
        "page.html.j2",
        run=run,
        record=run.record,
        began=strftime("%Y-%m-%d %H:%M UTC", gmtime(run.record.started)),
        took=duration(run.record.finished - run.record.started) if run.record.finished else None,
        verdict=verdict(run),
        verdicts=stage_verdicts(run),
        gate=gate_section.gate_verdict(run),
        tiles=effects_section.tiles(run),
        comparisons=certainty_section.comparisons(run),
        noises=certainty_section.noises(run),
        sampled=certainty_section.sampled_plots(run),
        waterfalls=effects_section.waterfalls(run),
        suite_waterfalls=effects_section.suite_waterfalls(run),
        levels=effects_section.levels(run),
        heat_maps=effects_section.heat_maps(run),
        safety=safety_section.safety(run),
        opinions=safety_section.opinions(run),
        trainings=training_section.trainings(run),
        proofs=training_section.proofs(run),
        pairs=training_section.preference_pairs(run),
        rollouts=training_section.rollout_groups(run),
        mixes=data_section.mixes(run),
        sources=data_section.sources(run),
        domains=[domain.value for domain in Domain],
        samples=shown,
        filters=samples_section.filters(shown),
        sample_rule=samples_section.RULE,
        plan=plan_section.plan_versus_actual(run),
        times=provenance_section.times(run),
        stages=provenance_section.stage_rows(run),
        lineage=provenance_section.lineage(run),
        environments=provenance_section.environments(run),
        reproduction=provenance_section.reproduction(run),
    )


def rendered(template: str, **values: Any) -> str:
    """A page of a template, in which no character acts or hides (`infra.visible`), wherever it comes from."""
    return visible(environment().get_template(template).render(**values))


@cache
def environment() -> Environment:
    """Jinja with escaping always on; a name that a template uses and nobody gave raises."""
    made = Environment(
        loader=PackageLoader("flows.report", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {
        "percent": percent,
        "points": points,
        "clip": clip,
        "duration": lambda seconds: "" if seconds is None else duration(seconds),
        "bounds": lambda row: bounds(Interval(row["low"], row["high"])),
        "signed_bounds": lambda row: bounds(Interval(row["low"], row["high"]), signed=True),
    }
    return made
