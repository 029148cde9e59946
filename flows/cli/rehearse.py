"""`lyceum rehearse`: cut the recipe, run it beside a stand-in for its endpoints, look for what is
wrong, and write the page."""

import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flows.cli.launch import run_alone
from flows.preamble import Parameters, Prepared
from flows.rehearsal.cut import Rehearsed, check_rows, rehearsed
from flows.rehearsal.findings import findings_of
from flows.rehearsal.page import page_blocks, write_rehearsal
from flows.runs.record import run_folder
from flows.runs.results import read_results
from infra.context import context
from infra.cores import usable_cores
from schemas.reports import RunRecord
from tasks.models.model_source import TINY
from tasks.rehearsal.environment import GLIBC_TUNABLES, XLA_FLAGS
from tasks.rehearsal.scripted import Script
from tasks.rehearsal.stand_in import URL_VARIABLE, StandIn, Tally

_PARALLEL = "LYCEUM_PARALLEL_JOBS"

NAME = "rehearsal.json"
"""Beside the run's record: what the rehearsal told."""


def rehearse_recipe(
    recipe: str,
    *,
    store: str,
    overrides: tuple[str, ...],
    data: Path | None,
    code: Collection[Path],
    rows: int,
    model: str = TINY,
) -> dict[str, Any]:
    """Rehearse a recipe; returns what `lyceum rehearse --json` prints.

    Raises:
        InputError: bad input; nothing was started.
        StageFailed: Prefect's API or the store does not answer.
        Stopped: Ctrl-C before the flow began.
    """
    check_rows(rows)
    opened = context().store(store, write=False)
    ready = rehearsed(recipe, overrides, data, code, rows, model, opened)
    given = Parameters(recipe, "local", store, overrides, str(data or ""))
    told: dict[str, Any] = {}
    with StandIn(Script(ready.rows)) as stand_in:

        def ended(record: RunRecord) -> None:
            from flows.report.publish import publish_page, view

            told.update(_tell(record, ready, stand_in.tallies))
            what = f"Rehearsal of {told['recipe']}, run {record.run_id}"
            view(lambda: publish_page(record, "rehearsal", page_blocks(told), what))

        where = data and data.absolute()
        prepared = Prepared(given, ready.resolved, opened, where, ended)
        with jobs_environment(stand_in.url, tiny=model == TINY):
            record = run_alone(prepared)
        return told or _tell(record, ready, stand_in.tallies)


def exit_code(told: Mapping[str, Any]) -> int:
    """3 where something was found that is not allowed, which may be why a stage failed; else 1
    where one failed."""
    if told["status"] == "cancelled":
        return 130
    if any(one["allowed"] is None for one in told["findings"]):
        return 3
    return 0 if told["status"] == "succeeded" else 1


@contextmanager
def jobs_environment(url: str, *, tiny: bool) -> Iterator[None]:
    """What jobs find in the environment: the stand-in, which has no proxy before it; a compiler in
    a hurry, for much of a rehearsal's time is its; memory that stays; and of `gemma3-tiny`, which
    keeps no two cores busy and takes at most 3 GiB, as many jobs side by side as there are
    cores."""
    unproxied = ",".join(filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1")))
    ours = {
        URL_VARIABLE: url,
        "NO_PROXY": unproxied,
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", XLA_FLAGS),
        "GLIBC_TUNABLES": os.environ.get("GLIBC_TUNABLES", GLIBC_TUNABLES),
    }
    if tiny and _PARALLEL not in os.environ:
        ours[_PARALLEL] = str(usable_cores())
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _tell(record: RunRecord, ready: Rehearsed, tallies: Mapping[str, Tally]) -> dict[str, Any]:
    """What came of it, kept beside the run's record with the page."""
    store = context().store(record.store)
    results = read_results(store, record)
    found = findings_of(results, ready, tallies)
    told = {
        "run_id": record.run_id,
        "recipe": ready.whole.name,
        "store": record.store,
        "status": record.status,
        "rows": ready.sizes.read,
        "model": ready.resolved.recipe.model,
        **found,
        "report": record.report,
    }
    told["page"] = write_rehearsal(store, told)
    name = f"{run_folder(record.run_id)}/{NAME}"
    store.write_bytes(name, json.dumps(told, indent=1).encode() + b"\n")
    return told
