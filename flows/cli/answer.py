"""The answer of a command of `lyceum`, and functions that commands share."""

import argparse
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

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
    """Print a message for people beside the answer; where nobody takes it, nothing ends for it."""
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except OSError:
        drop(sys.stderr)


def drop(stream: TextIO) -> None:
    """Let what a stream holds, and is told from now on, go nowhere: its reader has gone, or its
    disk is full, and Python would try again as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def store_of(options: argparse.Namespace) -> Store:
    """The store to look at; only a run creates one."""
    return context().store(options.store, write=False)


def run_of(options: argparse.Namespace) -> tuple[Store, RunRecord]:
    """The store and record of a command's run. Raises InputError naming similar runs."""
    from flows.runs.record import read_run

    store = store_of(options)
    return store, read_run(store, options.run)


def whole(left_out: Mapping[str, str]) -> int:
    """The exit code of a command about a run: 1 when artifacts are gone or damaged, so that its
    answer is incomplete."""
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
