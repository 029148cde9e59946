"""The contract of a section of the report: one `SECTION = Section(...)` in a file of
`flows/report/sections/`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flows.report.blocks import Block
from flows.runs.results import RunResults
from tasks.contract.plugins import Family


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of a run's report.

    Attributes:
        title: its name in the links at the top of the page.
        order: sections with lower numbers come first.
        blocks: its content for a run; empty when the run has none.
    """

    title: str
    heading: str
    order: int
    blocks: Callable[[RunResults], Sequence[Block]]


SECTIONS: Family[Section] = Family("flows.report.sections", Section)
