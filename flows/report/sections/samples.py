"""What the models answered, before and after."""

from markupsafe import Markup

from flows.report import samples_section
from flows.report.section import Section
from flows.report.templates import fragment
from flows.runs.results import RunResults


def html(run: RunResults) -> Markup:
    """Prompts with every model's answer, and what filters them."""
    shown = samples_section.samples(run)
    filters = samples_section.filters(shown)
    return fragment(
        "sections/samples.j2", samples=shown, filters=filters, sample_rule=samples_section.RULE
    )


def style(run: RunResults) -> Markup:
    """What the filters do, without a script."""
    shown = samples_section.samples(run)
    return fragment(
        "sections/samples.css.j2", samples=shown, filters=samples_section.filters(shown)
    )


SECTION = Section(title="Samples", order=40, html=html, style=style)
