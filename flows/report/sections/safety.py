"""How safe answers are, beside how helpful."""

from markupsafe import Markup

from flows.report import safety_section
from flows.report.section import Section
from flows.report.templates import fragment
from flows.runs.results import RunResults


def html(run: RunResults) -> Markup:
    """The section."""
    return fragment(
        "sections/safety.j2",
        safety=safety_section.safety(run),
        opinions=safety_section.opinions(run),
    )


SECTION = Section(title="Safety", order=20, html=html)
