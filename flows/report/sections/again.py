"""How to make this run again."""

from markupsafe import Markup

from flows.report import provenance_section
from flows.report.section import Section
from flows.report.templates import fragment
from flows.runs.results import RunResults


def html(run: RunResults) -> Markup:
    """The section."""
    return fragment(
        "sections/again.j2",
        reproduction=provenance_section.reproduction(run),
    )


SECTION = Section(title="Run it again", order=100, html=html)
