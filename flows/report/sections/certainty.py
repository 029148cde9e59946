"""What the evaluations could have found."""

from markupsafe import Markup

from flows.report import certainty_section
from flows.report.section import Section
from flows.report.templates import fragment
from flows.runs.results import RunResults


def html(run: RunResults) -> Markup:
    """The section."""
    return fragment(
        "sections/certainty.j2",
        comparisons=certainty_section.comparisons(run),
        noises=certainty_section.noises(run),
    )


SECTION = Section(title="Certainty", order=30, html=html)
