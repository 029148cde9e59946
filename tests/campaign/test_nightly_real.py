"""Three real nights: a small model is trained, nothing happens, and then new rows come in."""

from pathlib import Path
from typing import Any

from prefect.states import State

from flows.nightly import nightly
from flows.promotion.champion import current
from flows.promotion.nights import last_nightly
from infra.store.store import open_store
from tasks.contract.job import write_jsonl

SMALL = """
name = "small"
model = "gemma3-tiny"

[stages.distill]
kind = "distill"
[[stages.distill.config.teachers]]
name = "dataset"
[[stages.distill.config.teachers.sources]]
path = "rows.jsonl"
domain = "math"
prompt = "question"
reasoning = "work"
answer = "answer"
check = "numeric"

[stages.rebalance]
kind = "rebalance"
inputs = { examples = "distill" }
[stages.rebalance.config]
heldout_fraction = 0.3
quotas = { math = { train = 100, validation = 4, heldout = 80 } }

[stages.sft]
kind = "sft"
inputs = { examples = "rebalance" }
[stages.sft.config]
steps = 80
batch_size = 8
sequence_length = 48
optimizer = { learning_rate = 6e-3, muon_learning_rate = 0.04 }

[stages.sft_eval]
kind = "reasoning_eval"
inputs = { prompts = "rebalance", policy = "sft" }
config = { prompt_length = 20, response_length = 40, batch_size = 40, min_items = 20 }
"""


def write_sums(data: Path, first: int) -> None:
    """300 sums whose first terms begin at `first`."""
    sums = [(one, other) for one in range(first, first + 20) for other in range(15)]
    row = lambda a, b: {"question": f"{a} + {b}?", "work": f"{a} and {b}", "answer": str(a + b)}  # noqa: E731
    write_jsonl(data / "rows.jsonl", [row(*one) for one in sums])


def test_three_real_nights(prefect_api: str, tmp_path: Path) -> None:
    """The first trains, has the base evaluated, and promotes; the second has nothing to do; then
    all rows are others, and in the third the first night's model answers the new held-out prompts
    before it is compared."""
    recipe, data, place = tmp_path / "small.toml", tmp_path / "data", tmp_path / "store"
    data.mkdir()
    recipe.write_text(SMALL)

    def night() -> State[Any]:
        state: State[Any] = nightly(
            recipe=str(recipe), store=str(place), data=str(data), return_state=True
        )
        return state

    write_sums(data, 0)
    first = night()
    assert first.name == "Promoted", first.message
    assert "won: " in (first.message or "")
    store = open_store(place)
    entry = current(store, "small")
    assert store.path(f"{entry.weights}/model.safetensors").is_file()
    assert (
        night().message
        == f"nothing is new since run {entry.run_id}; the champion stays run {entry.run_id}"
    )
    assert len(store.list_runs()) == 1

    write_sums(data, 20)
    third = night()
    assert third.name in ("Promoted", "Kept"), third.message
    assert f"300 rows, 300 new, 0 changed, 300 gone since {entry.run_id}" in (third.message or "")
    found = last_nightly(store, "small")
    verdict = found[1].gate
    assert (verdict.champion, len(verdict.evaluations)) == (entry.run_id, 1)
    assert {one.n for one in verdict.findings} == {80}
    evaluation = store.lookup(verdict.evaluations[0].kind, verdict.evaluations[0].key)
    assert evaluation.inputs["policy"] == entry.model
