"""What a section of the report is: one `SECTION = Section(...)` in a file of
`flows/report/sections/`."""

from collections.abc import Callable
from dataclasses import dataclass, field

from flows.runs.results import RunResults
from tasks.contract.plugins import Family


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of a run's report.

    Attributes:
        title: how the links at the top of the page call it.
        order: where it stands: before those of a higher number.
        html: what it shows of a run, and nothing where the run has nothing to say of it. What is no
            `Markup` is escaped. The id of its heading is the name of its file.
        style: CSS for it.
    """

    title: str
    order: int
    html: Callable[[RunResults], str]
    style: Callable[[RunResults], str] = field(default=lambda run: "")


SECTIONS: Family[Section] = Family("flows.report.sections", Section)
