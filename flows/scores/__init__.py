"""A run's evaluations and curves in the formats of other tools: `lyceum scores`. A format is a file
in `formats/` that ends with `FORMAT = Format(...)`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.contract.plugins import Family

if TYPE_CHECKING:
    from flows.runs.results import RunResults


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format. `write` writes a run below a directory, and returns the number of files, 0 if the
    format has nothing for the run."""

    write: "Callable[[RunResults, Path], int]"


FORMATS: Family[Format] = Family("flows.scores.formats", Format)
