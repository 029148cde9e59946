"""What data there was, and what became of it."""

from markupsafe import Markup

from flows.report import data_section
from flows.report.section import Section
from flows.report.templates import fragment
from flows.runs.results import RunResults
from schemas.examples import Domain


def html(run: RunResults) -> Markup:
    """The section."""
    return fragment(
        "sections/data.j2",
        mixes=data_section.mixes(run),
        sources=data_section.sources(run),
        domains=[domain.value for domain in Domain],
    )


SECTION = Section(title="Data", order=60, html=html)
