"""`lyceum run --seeds`: what is said first, and what becomes of seeds that end badly. Nonsense:
test_bad_input.py. Real stages: tests/end_to_end/flows/cli/test_seeds.py."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flows.cli.launch import _Lane, _run_each
from flows.cli.launch_seeds import NOT_BEGUN, Grouped, first_lines
from flows.cli.terminal import Terminal
from flows.recipe.resolve import resolve
from flows.runs.forecast import Forecast
from flows.runs.replicates import read_replicates
from schemas.base import InputError, StageFailed
from tests.flows.runs.test_replicates import under_seed


def forecast(seconds: float | None) -> Forecast:
    resolved = resolve("quickstart")
    names = [stage.name for stage in resolved.stages]
    stages = [{"name": one, "cached": False, "seconds": seconds, "cost_usd": 0.0} for one in names]
    return Forecast(resolved.recipe, stages, False, 1)


def test_the_first_lines_count_what_is_shared_once() -> None:
    """11 stages of 10 s, then 9 of them: 200 s in one lane, half in two."""
    resolved, shared = resolve("quickstart"), ["distill", "rebalance"]
    number = len(resolved.stages)
    took = 10 * number + 10 * (number - 2)
    known = [forecast(10.0), forecast(10.0)]
    first, second = first_lines(resolved, [7, 8, 9], shared, 1, known)
    same = "The same for all: distill and rebalance."
    cached = "7 to 9, 1 of them cached; one after another."
    assert first == f"quickstart under 3 seeds, {cached} {same}"
    assert second == f"About {took // 60} min {took % 60} s for all of them, as in earlier runs."
    assert first_lines(resolved, [7, 8], shared, 2, known)[1] != second
    assert "No estimate yet" in first_lines(resolved, [7, 8], shared, 1, [forecast(None)])[1]


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_seed_that_cannot_go_on_ends_no_other_and_after_a_stop_none_begins(lanes, monkeypatch):
    called: list[str] = []

    def call(lane: _Lane) -> None:
        called.append(lane.prepared.label)
        if lane.prepared.label == "seed 7":
            raise StageFailed("the store is full")

    monkeypatch.setattr(_Lane, "_call", call)
    stop, pause = threading.Event(), threading.Event()
    runs = [cast(Any, SimpleNamespace(label=f"seed {number}")) for number in (7, 8, 9)]
    made = [_Lane(one, Terminal(), stop, pause) for one in runs]
    _run_each(made, lanes, print, alone=False)
    assert sorted(called) == ["seed 7", "seed 8", "seed 9"]
    assert [str(one.ended) for one in made] == ["the store is full", "None", "None"]
    with pytest.raises(StageFailed):
        _run_each(made[:1], 1, print, alone=True)
    stop.set()
    _run_each(made, lanes, print, alone=False)
    assert called[4:] == ["seed 7"], "the first, whose own flow knows of the stop"


def test_the_answer_says_what_became_of_every_seed(tmp_path: Path) -> None:
    """Seed 7 succeeded, 8 failed in GRPO, 9 could not begin, 10 was not begun."""
    store, first = under_seed(tmp_path, 7, 0.4, 0.7)
    _, second = under_seed(tmp_path, 8, 0.4, 0.7, stop_before="grpo")
    ended = {7: first, 8: second, 9: InputError("the store is full"), 10: None}
    runs = read_replicates(store, [first, second])
    grouped = Grouped("demo", "local", store.uri, "g", ended, runs, "page")
    value = grouped.json()
    statuses = [one["status"] for one in value["seeds"]]
    assert statuses == ["succeeded", "failed", "failed", "not run"]
    assert [one["error"] for one in value["seeds"][2:]] == ["the store is full", NOT_BEGUN]
    assert (value["status"], grouped.code) == ("failed", 2)
    alone = Grouped("demo", "local", store.uri, "g", {7: first, 8: first}, runs, "page")
    assert (alone.status, alone.code) == ("succeeded", 0)
