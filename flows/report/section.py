"""What a section of the report is: one `SECTION = Section(...)` in a file of
`flows/report/sections/`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flows.report.blocks import Block
from flows.runs.results import RunResults
from tasks.contract.plugins import Family


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of a run's report.

    Attributes:
        title: how the links at the top of the page call it.
        heading: what stands over it.
        order: where it stands: before those of a higher number.
        blocks: what it shows of a run, and nothing where the run has nothing to say of it.
        style: CSS for it.
    """

    title: str
    heading: str
    order: int
    blocks: Callable[[RunResults], Sequence[Block]]
    style: Callable[[RunResults], str] = field(default=lambda run: "")


SECTIONS: Family[Section] = Family("flows.report.sections", Section)
