"""What is new since the last nightly run, and what that one decided."""

import json
from pathlib import Path
from typing import Any

from flows.promotion.nights import decision_name, last_nightly, new_rows
from infra.store.store import Store
from schemas.reports import RunRecord
from tasks.contract.job import write_jsonl
from tests.flows.runs.synthetic_run import manifest_of, with_stage, write_run

NIGHT = "demo-202611{:02}-020000-ab12"


def test_rows_are_told_apart_by_what_they_say_and_not_by_where_they_came_from(
    tmp_path: Path,
) -> None:
    store, before = write_run(tmp_path, "a", stop_before="rebalance")
    written = store.local_dir(manifest_of(store, before, "distill")) / "examples.jsonl"
    rows = [json.loads(line) for line in written.read_text().splitlines()]
    moved = [row | {"source": "elsewhere.jsonl"} for row in rows]
    now = [
        *moved[1:-1],
        moved[-1] | {"reasoning": "otherwise"},
        *(moved[0] | {"id": name} for name in "xyz"),
    ]
    after = with_rows(store, tmp_path, before, now)
    fresh = new_rows(store, after, before)
    assert (fresh.rows, fresh.new, fresh.changed, fresh.gone, fresh.since) == (20, 3, 1, 1, "a")
    assert fresh.text == "20 rows, 3 new, 1 changed, 1 gone since a"
    assert new_rows(store, after, None).since is None


def with_rows(store: Store, root: Path, run: RunRecord, rows: list[dict[str, Any]]) -> RunRecord:
    out = root / "rows"
    out.mkdir()
    write_jsonl(out / "examples.jsonl", rows)
    made = manifest_of(store, run, "distill").model_copy(update={"key": "a" * 64, "files": ()})
    changed = with_stage(run, "distill", artifact=store.commit(made, out).ref())
    return changed.model_copy(update={"run_id": "b"})


def test_a_damaged_decision_is_passed_over(tmp_path: Path) -> None:
    for night in (1, 2):
        store, _ = write_run(tmp_path, NIGHT.format(night), text=str(night))
    assert last_nightly(store, "demo") is None
    store.write_bytes(decision_name(NIGHT.format(2)), b"{")
    assert last_nightly(store, "demo") is None
