"""The report of a run: one self-contained HTML page, verdict first, drawn from the run's record and
artifacts alone.

The page loads nothing, runs no script (a Content-Security-Policy forbids both, beside the escaping
of every text), and shows whatever a run left: one that failed half-way has a report, which begins
with what failed.
"""

from time import gmtime, strftime

from flows.report import effects_section, gate_section
from flows.report.section import SECTIONS
from flows.report.templates import rendered
from flows.report.verdict import stage_verdicts, verdict
from flows.runs.results import RunResults, read_results
from flows.runs.wording import duration
from infra.store.store import Store
from schemas.reports import RunRecord


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
    names = sorted(SECTIONS.names(), key=lambda name: (SECTIONS[name].order, name))
    parts = {name: SECTIONS[name].html(run) for name in names}
    return rendered(
        "page.html.j2",
        run=run,
        record=run.record,
        began=strftime("%Y-%m-%d %H:%M UTC", gmtime(run.record.started)),
        took=duration(run.record.finished - run.record.started) if run.record.finished else None,
        links=[
            (name, SECTIONS[name].title) for name, html in parts.items() if f'id="{name}"' in html
        ],
        verdict=verdict(run),
        verdicts=stage_verdicts(run),
        gate=gate_section.gate_verdict(run),
        tiles=effects_section.tiles(run),
        sections=list(parts.values()),
        styles=[SECTIONS[name].style(run) for name in names],
    )
