"""The state that a nightly run begins with: the rows that are new since the one before, and the
decision of that one.

Rows are compared by content, since their files grow, are split and renamed.
"""

import re
from collections.abc import Iterable
from typing import Any

from flows.promotion.champion import Champion
from flows.promotion.gate import Gate
from flows.recipe.explain import outlook
from flows.recipe.resolve import ResolvedRecipe
from flows.runs.record import record_name, run_folder
from flows.runs.results import read_results
from flows.runs.wording import amount
from infra.store.store import Store
from schemas.base import InputError, StrictModel, digest
from schemas.reports import RunRecord


class NewRows(StrictModel):
    """The examples of a run's distill stages against those of the run `since`: `new` and `gone`
    prompts, and `changed` ones, which now have another answer or another trace. All rows are new
    without such a run, or when its examples are gone from the store."""

    rows: int
    new: int
    changed: int
    gone: int
    since: str | None

    @property
    def text(self) -> str:
        """Say for people: `3,282 rows, 57 new, 0 changed, 3 gone since
        tiny-20261121-020000-ab12`."""
        if self.since is None:
            return f"{amount(self.rows, 'row')}, nothing to compare them with"
        return (
            f"{amount(self.rows, 'row')}, {self.new:,} new, {self.changed:,} changed,"
            f" {self.gone:,} gone since {self.since}"
        )


class Decision(StrictModel):
    """`runs/<run_id>/nightly.json`: the decision of a nightly run, written after it was carried
    out.

    `champion` is the number of the entry that counts since (`flows.promotion.champion`), None when
    there is no champion.
    """

    run_id: str
    fresh: NewRows
    gate: Gate
    why: str
    promoted: bool
    champion: int | None
    decided: float


class Rematches(StrictModel):
    """`runs/<run_id>/rematches.json`: the keys of evaluations that a nightly run compares by and
    that are none of its stages, named before anybody looks for them."""

    keys: tuple[str, ...]


DECISION, REMATCHES = "nightly.json", "rematches.json"
"""Beside the run record of a nightly run."""


def decision_name(run_id: str) -> str:
    return f"{run_folder(run_id)}/{DECISION}"


def name_rematches(store: Store, run_id: str, keys: Iterable[str]) -> None:
    """Put these keys on record, beside those that are there."""
    name = f"{run_folder(run_id)}/{REMATCHES}"
    before = store.read_json(name, Rematches)
    named = Rematches(keys=tuple(dict.fromkeys([*(before.keys if before else ()), *keys])))
    if named != before:
        store.write_json(name, named)


def needed_by_night(file: str, raw: bytes) -> set[str]:
    """The keys of evaluations that a file of a nightly run, DECISION or REMATCHES, names. Raises
    pydantic.ValidationError: it is damaged."""
    if file == REMATCHES:
        return set(Rematches.model_validate_json(raw).keys)
    return {one.key for one in Decision.model_validate_json(raw).gate.evaluations}


def last_nightly(store: Store, recipe: str) -> tuple[RunRecord, Decision] | None:
    """The newest nightly run of a recipe that came to a decision; None without one. Skips those
    that cannot be read."""
    # `flows.runs.record.new_run_id`: sorted by name is sorted by time
    of_recipe = re.compile(rf"{re.escape(recipe)}-\d{{8}}-\d{{6}}-\w+")
    decided = (found.name.split("/")[1] for found in store.each("runs", DECISION))
    for run_id in sorted(filter(of_recipe.fullmatch, decided), reverse=True):
        try:
            decision = store.read_json(decision_name(run_id), Decision)
            record = store.read_json(record_name(run_id), RunRecord) if decision else None
        except InputError:
            continue
        if record is not None and decision is not None:
            return record, decision
    return None


def new_rows(store: Store, run: RunRecord, before: RunRecord | None) -> NewRows:
    """Compare the rows of a run, which has its distill artifacts, with those of the run before."""
    now, then = _rows(store, run), _rows(store, before) if before else {}
    return NewRows(
        rows=len(now),
        new=len(now.keys() - then.keys()),
        changed=sum(then[row] != content for row, content in now.items() if row in then),
        gone=len(then.keys() - now.keys()),
        since=before.run_id if before and then else None,
    )


def is_unchanged(
    store: Store,
    resolved: ResolvedRecipe,
    last: RunRecord,
    decision: Decision,
    champion: Champion | None,
) -> bool:
    """Whether a run now would find every stage cached, with the very artifacts of the last nightly
    run, for its gate and its champion."""
    if resolved.recipe.gate != last.recipe.gate:
        return False
    made = {stage.name: stage.artifact for stage in last.stages}
    found = {
        one.stage.name: one.manifest.ref() if one.manifest else None
        for one in outlook(resolved, store)
    }
    return (
        made == found
        and None not in found.values()
        and decision.champion == (champion.number if champion else None)
    )


def _rows(store: Store, run: RunRecord) -> dict[str, str]:
    """Prompt id -> digest of the row without its source, for all distill stages."""
    stages = read_results(store, run).of_kind("distill")
    rows: list[dict[str, Any]] = [row for stage in stages for row in stage.rows("examples.jsonl")]
    return {
        row["id"]: digest({name: value for name, value in row.items() if name != "source"})
        for row in rows
    }
