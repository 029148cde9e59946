"""The report of a run: one self-contained HTML page, verdict first, drawn from the run's record and artifacts alone.

The page loads nothing, runs no script (a Content-Security-Policy forbids both, beside the escaping of every text), and shows whatever a
run left: one that failed half-way has a report, which begins with what failed.
"""

from functools import cache
from pathlib import Path
from time import gmtime, strftime

from jinja2 import Environment, PackageLoader, StrictUndefined

from flows import report_data, report_effects, report_provenance, report_samples, report_training
from flows.results import RunResults, read_results
from flows.wording import bounds, clip, duration, percent, points, stage_verdict
from infra.store import Store
from schemas.reports import RunRecord
from tasks.intervals import Interval


def render_report(store: Store, record: RunRecord) -> Path:
    """Write `runs/<run_id>/report.html` and return where it lies on this machine.

    Raises:
        InputError: the store is full or cannot be written.
    """
    name = f"runs/{record.run_id}/report.html"
    store.write_text(name, report_html(read_results(store, record)))
    return store.path(name)


def report_html(run: RunResults) -> str:
    """The page. Equal results give equal text."""
    trained = [model for model in run.models.values() if model.parent is not None]
    shown = report_samples.samples(run)
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            run=run,
            record=run.record,
            began=strftime("%Y-%m-%d %H:%M UTC", gmtime(run.record.started)),
            took=duration(run.record.finished - run.record.started) if run.record.finished else None,
            verdicts=[stage_verdict(run, model) for model in trained],
            tiles=report_effects.tiles(run),
            waterfalls=report_effects.waterfalls(run),
            levels=report_effects.levels(run),
            heat_maps=report_effects.heat_maps(run),
            safety=report_effects.safety(run),
            trainings=report_training.trainings(run),
            proofs=report_training.proofs(run),
            pairs=report_training.preference_pairs(run),
            rollouts=report_training.rollout_groups(run),
            mixes=report_data.mixes(run),
            sources=report_data.sources(run),
            samples=shown,
            sample_groups=report_samples.groups(shown),
            sample_rule=report_samples.RULE,
            times=report_provenance.times(run),
            stages=report_provenance.stage_rows(run),
            lineage=report_provenance.lineage(run),
            environments=report_provenance.environments(run),
            reproduction=report_provenance.reproduction(run),
        )
    )


@cache
def environment() -> Environment:
    """Jinja with escaping always on; a name that a template uses and nobody gave raises."""
    made = Environment(loader=PackageLoader("flows", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {
        "percent": percent,
        "points": points,
        "clip": clip,
        "duration": lambda seconds: "" if seconds is None else duration(seconds),
        "bounds": lambda row: bounds(Interval(row["low"], row["high"])),
        "signed_bounds": lambda row: bounds(Interval(row["low"], row["high"]), signed=True),
    }
    return made
