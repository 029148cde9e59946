"""A stage's job: its validated config, input directories, an output directory, and progress
reports."""

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from infra.store.answers import Answers
from infra.store.workspace import Workspace
from schemas.base import StrictModel
from schemas.job import Progress

ConfigT = TypeVar("ConfigT", bound=StrictModel)
ModelT = TypeVar("ModelT", bound=StrictModel)


@dataclass(frozen=True)
class Job(Generic[ConfigT]):
    """One execution of a stage.

    Attributes:
        config: the stage's validated config.
        inputs: input name -> directory of its artifact (read-only); optional inputs that are not
            connected are absent.
        out: an empty directory; every file in it becomes part of the artifact.
        work: the workspace that the attempts of this stage share: checkpoints, journals.
        data: the directory of `--data`, or None.
        checkpoint_seconds, checkpoint_steps: how often a trainer saves a checkpoint; see
            `infra.settings.Settings`.
        pausing: whether the job is asked to stop where it can resume; a trainer looks between
            steps.
        report: receives progress; the worker writes it to status.json.
    """

    config: ConfigT
    inputs: dict[str, Path]
    out: Path
    work: Workspace
    data: Path | None = None
    checkpoint_seconds: float = 60.0
    checkpoint_steps: int | None = None
    pausing: Callable[[], bool] = field(default=lambda: False)
    report: Callable[[Progress], None] = field(default=lambda _: None)
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("lyceum"))

    @property
    def answers(self) -> Answers:
        """Paid answers of teachers and judges, stored for all runs."""
        return self.work.answers

    def progress(self, done: int, total: int, unit: str = "steps", /, **values: float) -> None:
        """Report that `done` of `total` units are finished, with the newest metric values."""
        self.report(Progress(done=done, total=total, unit=unit, values=values))


def read_jsonl(path: Path, model: type[ModelT]) -> list[ModelT]:
    """Read one pydantic model per line. The file is from a verified artifact, so a bad line is a
    bug and raises."""
    with path.open(encoding="utf-8") as lines:
        return [model.model_validate_json(line) for line in lines]


def write_jsonl(path: Path, rows: Iterable[StrictModel | dict[str, Any]]) -> int:
    """Write one JSON object per line (UTF-8, keys in field order); returns the number of rows."""
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as out:
        for row in rows:
            text = (
                row.model_dump_json()
                if isinstance(row, StrictModel)
                else json.dumps(row, ensure_ascii=False, allow_nan=False)
            )
            out.write(text + "\n")
            count += 1
    return count


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Iterate over the JSON objects of a JSONL file (curves, items)."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
