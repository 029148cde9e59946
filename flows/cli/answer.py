"""What a command of `lyceum` answers, and what commands have in common."""

import argparse
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infra.context import context
from infra.store.store import Store
from schemas.reports import RunRecord

if TYPE_CHECKING:
    from flows.report.blocks import Block


@dataclass(frozen=True)
class Answer:
    """A command's outcome: one JSON object, the same for people, and the exit code."""

    value: dict[str, Any]
    shown: "Iterable[Block]" = ()
    code: int = 0


def say(text: str) -> None:
    """What people are told beside the answer."""
    print(text, file=sys.stderr)  # noqa: T201


def store_of(options: argparse.Namespace) -> Store:
    """The store that is looked at; only a run makes one."""
    return context().store(options.store, write=False)


def run_of(options: argparse.Namespace) -> tuple[Store, RunRecord]:
    """The run that a command is about, and where it is. Raises InputError naming similar runs."""
    from flows.runs.record import read_run

    store = store_of(options)
    return store, read_run(store, options.run)


def whole(left_out: Mapping[str, str]) -> int:
    """The exit code of what was told of a run: 1 when artifacts are gone or damaged, so that
    something is missing."""
    return 1 if left_out else 0


def summary(record: RunRecord) -> dict[str, Any]:
    """A run in a listing."""
    from flows.runs.record import run_status

    return {
        "run_id": record.run_id,
        "recipe": record.recipe.name,
        "target": record.target,
        "status": run_status(record),
        "started": record.started,
        "updated": record.updated,
        "finished": record.finished,
        "stages_done": sum(stage.status in ("cached", "ran") for stage in record.stages),
        "stages": len(record.recipe.stages),
        "report": record.report,
        "group": record.group,
    }
