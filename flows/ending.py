"""Ends a run after its last stage: writes its report, and sends its numbers to trackers.

Both are views: a run has ended even if a store or a service fails now.
"""

from collections.abc import Callable
from typing import Literal

from flows.report.page import Report, report_name, report_of, write_report
from flows.runs.next_commands import copied
from flows.runs.record import RunLog
from flows.runs.results import read_results
from flows.trackers import stopped, track
from infra.store.objects import Damaged
from infra.store.store import Store
from schemas.base import InputError


def report_run(
    store: Store,
    run: RunLog,
    warn: Callable[[str, str], None],
    show: Callable[[Report], None] = lambda report: None,
) -> None:
    """Write the report of a run that has ended, show it, and send the run to the trackers that its
    environment names. `warn` is told what that is about and why it was not possible."""
    try:
        location = store.location(report_name(run.record.run_id))
        ended = run.record.model_copy(update={"report": location})
        report = report_of(read_results(store, ended))
        run.report(write_report(store, report))
        show(report)
    except (OSError, InputError, Damaged) as error:
        again = copied("report", run.record.run_id, store=store.uri)
        why = f"could not be written: {error}; `{again}` writes it later"
        warn("report", why)
    else:
        track(report.run, lambda why: warn("trackers", why))
    finally:
        stopped(run.record)  # where it was not sent


def give_up(run: RunLog, status: Literal["failed", "cancelled"]) -> None:
    """End a run that did not come to its end, unless it has ended already; at its trackers, too."""
    if run.record.status == "running":
        run.finish(status)
    stopped(run.record)
