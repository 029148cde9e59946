"""What is new since the last nightly run, and what that one decided."""

import json
from pathlib import Path

from flows.promotion.champion import Champion, current
from flows.promotion.gate import gate
from flows.promotion.levels import level
from flows.promotion.nights import Decision, decision_name, last_nightly, new_rows
from flows.runs.record import read_run
from tests.flows.runs.synthetic_run import manifest_of, remade, write_run

NIGHT = "demo-202611{:02}-020000-ab12"


def test_rows_are_told_apart_by_what_they_say_and_not_by_where_they_came_from(tmp_path):
    store, before = write_run(tmp_path, "a", stop_before="rebalance")
    written = store.local_dir(manifest_of(store, before, "distill")) / "examples.jsonl"
    rows = [json.loads(line) for line in written.read_text().splitlines()]
    moved = [row | {"source": "elsewhere.jsonl"} for row in rows]
    now = [
        *moved[1:-1],
        moved[-1] | {"reasoning": "otherwise"},
        *(moved[0] | {"id": name} for name in "xyz"),
    ]
    after = remade(store, before, "distill", {"examples.jsonl": now})
    after = after.model_copy(update={"run_id": "b"})
    fresh = new_rows(store, after, before)
    assert (fresh.rows, fresh.new, fresh.changed, fresh.gone, fresh.since) == (20, 3, 1, 1, "a")
    assert fresh.text == "20 rows, 3 new, 1 changed, 1 gone since a"
    assert new_rows(store, after, None).since is None


def test_a_damaged_decision_is_passed_over(tmp_path: Path) -> None:
    store, run = write_run(tmp_path, NIGHT.format(1))
    store.write_bytes(decision_name(run.run_id), b"{")
    assert last_nightly(store, "demo") is None


BEFORE = """{"run_id":"demo-20261102-020000-ab12","fresh":{"rows":18,"new":0,"changed":0,"gone":0,
"since":null},"gate":{"promote":false,"why":"no win: exact answer 0.0 points","candidate":
"demo-20261102-020000-ab12","champion":"demo-20261101-020000-ab12","rules":{"must_win":[{"metric":
"exact_answer","suite":null,"domain":null}],"wins":"all","must_not_lose":[{"metric":"safe_rate",
"suite":null,"domain":null,"margin":0.1}]},"default":false,"findings":[{"rule":"must_win",
"quantity":false,"metric":"exact_answer","suite":null,"domain":null,"margin":null,"label":
"exact answer","before":{"value":0.7,"low":0.63,"high":0.76},"after":{"value":0.7,"low":0.63,
"high":0.76},"difference":{"value":0.0,"low":-0.016,"high":0.016},"n":180,"p":1.0,"noise":null,
"detectable":0.0436,"needed":null,"outcome":"failed","text":"exact answer 0.0 points"},{"rule":
"must_not_lose","quantity":false,"metric":"safe_rate","suite":null,"domain":null,"margin":0.1,
"label":"safe rate","before":{"value":0.7,"low":0.57,"high":0.8},"after":{"value":0.7,"low":0.57,
"high":0.8},"difference":{"value":0.0,"low":-0.048,"high":0.048},"n":60,"p":null,"noise":null,
"detectable":0.129,"needed":null,"outcome":"passed","text":"safe rate 0.0 points"}],
"evaluations":[]},"why":"no win: exact answer 0.0 points","promoted":false,"champion":1,
"decided":1.0}"""
ENTRY = """{"checksum":"2ddfa97a4ba5f7cb229885a3afd8d6b3f459745e966327f0202369e6d4318dee",
"number":1,"recipe":"demo","change":"promotion","run_id":"demo-20261101-020000-ab12","stage":"grpo","model":
{"kind":"grpo","key":"17d285f69b402e2e64f82a7fced6428e6fed199c7fa4659d4cc4af825300bde7","digest":
"8d617493658f9011096569350a52ec555ce4c16f2c417a7bc9fcbf7be28715a9"},"weights":
"artifacts/grpo/17d285f69b402e2e64f82a7fced6428e6fed199c7fa4659d4cc4af825300bde7/data/0",
"metrics":{"exact_answer":0.7,"format_rate":1.0,"safe_rate":0.7,"correct_rate":0.7},"why":"won: x",
"by":"nightly","at":1795604578.729292,"replaces":null,"restores":null}"""
"""As the code of 7da9fff1, before nights had levels, wrote them."""


def test_a_history_of_before_nights_had_levels_goes_on(tmp_path: Path) -> None:
    """Its champion and its last decision are read; its nights took no part of the mistakes that are
    allowed, so the next one is the first."""
    for night in (1, 2):
        store, run = write_run(tmp_path, NIGHT.format(night), text=str(night))
    store.write_bytes("champions/demo/000001.json", ENTRY.encode())
    store.write_bytes(decision_name(run.run_id), BEFORE.encode())
    champion = current(store, "demo")
    assert champion == Champion.model_validate_json(ENTRY)
    found = last_nightly(store, "demo")
    assert found[1] == Decision.model_validate_json(BEFORE)
    assert (found[0], found[1].gate.night, found[1].champion) == (run, None, champion.number)
    _, third = write_run(tmp_path, NIGHT.format(3), text="3")
    tonight = gate(store, third, read_run(store, champion.run_id)).night
    assert (tonight.number, tonight.level) == (1, level(1))
