"""Plan versus actual."""

from markupsafe import Markup

from flows.report import plan_section
from flows.report.section import Section
from flows.report.templates import fragment
from flows.runs.results import RunResults


def html(run: RunResults) -> Markup:
    """The section."""
    return fragment(
        "sections/plan.j2",
        plan=plan_section.plan_versus_actual(run),
        record=run.record,
    )


SECTION = Section(title="Plan", order=80, html=html)
