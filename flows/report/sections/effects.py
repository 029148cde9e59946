"""What each stage changed, and what every model reached."""

from markupsafe import Markup

from flows.report import certainty_section, effects_section
from flows.report.section import Section
from flows.report.templates import fragment
from flows.runs.results import RunResults


def html(run: RunResults) -> Markup:
    """The section."""
    return fragment(
        "sections/effects.j2",
        waterfalls=effects_section.waterfalls(run),
        suite_waterfalls=effects_section.suite_waterfalls(run),
        levels=effects_section.levels(run),
        heat_maps=effects_section.heat_maps(run),
        sampled=certainty_section.sampled_plots(run),
    )


SECTION = Section(title="Effects", order=10, html=html)
