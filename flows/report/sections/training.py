"""Curves, pairs, rollouts, and on what was trained."""

from markupsafe import Markup

from flows.report import training_section
from flows.report.section import Section
from flows.report.templates import fragment
from flows.runs.results import RunResults


def html(run: RunResults) -> Markup:
    """The section."""
    return fragment(
        "sections/training.j2",
        trainings=training_section.trainings(run),
        proofs=training_section.proofs(run),
        pairs=training_section.preference_pairs(run),
        rollouts=training_section.rollout_groups(run),
    )


SECTION = Section(title="Training", order=50, html=html)
