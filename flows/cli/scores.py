"""`lyceum scores`: write a run's items, scores and curves for other tools. The directory appears
when it is whole, or not at all."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.cli.new_directory import new_directory, require_new
from flows.runs.results import RunResults, left_out_text
from flows.scores import FORMATS
from schemas.base import InputError, StageFailed
from tasks.data.data_files import files_below


def export_scores(run: RunResults, to: Path, formats: Sequence[str]) -> dict[str, Any]:
    """Write `to/<format>/...` and say what was written.

    Args:
        to: a directory to make; one that exists must be empty.
        formats: of FORMATS; empty: all that have something to say of the run.

    Raises:
        InputError: `to` cannot be made or holds something, or the run has nothing to write in a
            format that was asked for.
        StageFailed: it has nothing to write because its artifacts are gone or damaged.
    """
    to, written = require_new(to), {}
    with new_directory(to) as partial:
        for name in dict.fromkeys(formats) or FORMATS.names():
            (partial / name).mkdir()
            written[name] = FORMATS[name].write(run, partial / name)
            if not written[name]:
                (partial / name).rmdir()
        nothing = [name for name, count in written.items() if not count]
        if formats and nothing:
            raise _nothing(run, f" for {', '.join(nothing)}")
        if len(nothing) == len(written):
            raise _nothing(run, " to write")
    return {
        "run_id": run.record.run_id,
        "directory": str(to),
        "formats": {
            name: [f"{name}/{file}" for file in files_below(to / name)]
            for name, count in written.items()
            if count
        },
        "left_out": run.left_out,
    }


def _nothing(run: RunResults, what: str) -> Exception:
    said = f"run {run.record.run_id!r} has nothing{what}: "
    if run.left_out:
        return StageFailed(f"{said}{left_out_text(run.left_out)}")
    return InputError(f"{said}no evaluation and no training of it was finished.")
