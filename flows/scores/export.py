"""`lyceum scores`: write a run's items, scores and curves for other tools. The directory appears when it is whole, or not at all."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.new_directory import new_directory, require_new
from flows.report.results import RunResults
from flows.scores import FORMATS
from schemas.base import InputError


def export_scores(run: RunResults, to: Path, formats: Sequence[str]) -> dict[str, Any]:
    """Write `to/<format>/...` and say what was written.

    Args:
        to: a directory to make; one that exists must be empty.
        formats: of FORMATS; empty: all that have something to say of the run.

    Raises:
        InputError: `to` cannot be made or holds something, or the run has nothing to write in a format that was asked for.
    """
    to, written = require_new(to), {}
    with new_directory(to) as partial:
        for name in dict.fromkeys(formats) or FORMATS:
            (partial / name).mkdir()
            written[name] = importlib.import_module(f"flows.scores.formats.{name}").write(run, partial / name)
            if not written[name]:
                (partial / name).rmdir()
        nothing = [name for name, count in written.items() if not count]
        if formats and nothing:
            raise InputError(f"run {run.record.run_id!r} has nothing for {', '.join(nothing)}: {_why(run)}")
        if len(nothing) == len(written):
            raise InputError(f"run {run.record.run_id!r} has nothing to write: {_why(run)}")
    return {
        "run_id": run.record.run_id,
        "directory": str(to),
        "formats": {
            name: sorted(path.relative_to(to).as_posix() for path in (to / name).rglob("*") if path.is_file())
            for name, count in written.items()
            if count
        },
    }


def _why(run: RunResults) -> str:
    gone = [f"{stage.name}: {stage.problem}" for stage in run.stages.values() if stage.problem]
    return "; ".join(gone) or "no evaluation and no training of it was finished."
