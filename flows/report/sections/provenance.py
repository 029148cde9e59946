"""Where everything comes from: keys, digests, machines, versions."""

from markupsafe import Markup

from flows.report import provenance_section
from flows.report.section import Section
from flows.report.templates import fragment
from flows.runs.results import RunResults


def html(run: RunResults) -> Markup:
    """The section."""
    return fragment(
        "sections/provenance.j2",
        lineage=provenance_section.lineage(run),
        stages=provenance_section.stage_rows(run),
        environments=provenance_section.environments(run),
    )


SECTION = Section(title="Provenance", order=90, html=html)
