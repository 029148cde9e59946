"""How long each stage took."""

from markupsafe import Markup

from flows.report import provenance_section
from flows.report.section import Section
from flows.report.templates import fragment
from flows.runs.results import RunResults


def html(run: RunResults) -> Markup:
    """The section."""
    return fragment(
        "sections/time.j2",
        times=provenance_section.times(run),
        stages=provenance_section.stage_rows(run),
    )


SECTION = Section(title="Time", order=70, html=html)
