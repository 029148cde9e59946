"""The stage reward_model: it says what its scores are worth, and what it lacks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schemas.base import InputError, StageFailed
from schemas.examples import Trace
from tasks.contract.job import Job, read_jsonl, read_rows, write_jsonl
from tasks.devices.hosts import make_mesh
from tasks.models.loading import base_model, save_model
from tasks.models.scalar_head import load_scoring_model
from tasks.reward_models.pairs import TracePair
from tasks.reward_models.reliability import ATTACKS, read_calibration
from tasks.reward_models.scoring import TraceScorer
from tasks.stages import reward_model
from tests.tasks.jobs import job_at
from tests.tasks.reward_models.step_traces import EXAMPLES, TOKENIZER, preference
from tests.tasks.stages.bench import REWARD_MODEL

pytestmark = pytest.mark.usefixtures("one_layer")


def config(**changes: Any) -> reward_model.Config:
    return reward_model.Config.parse({**REWARD_MODEL, "prompts": 0, **changes})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir()
    write_jsonl(directory / "train.jsonl", EXAMPLES)
    write_jsonl(directory / "pairs.jsonl", [])
    return directory


def job(tmp_path: Path, data: Path, **changes: Any) -> Job[reward_model.Config]:
    return job_at(tmp_path, config(**changes), {"prompts": data})


def test_the_stage_leaves_a_model_its_held_out_scores_and_a_calibration(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
):
    scored, score = [], TraceScorer.score
    counted = lambda self, rows: scored.append(len(rows)) or score(self, rows)  # noqa: E731
    monkeypatch.setattr(TraceScorer, "score", counted)
    good, bad = (Trace(reasoning="r is r.", answer=answer).render() for answer in ("1", "2"))
    pairs = [preference(good, bad), preference(good, "no trace", "malformed")]
    write_jsonl(data / "pairs.jsonl", pairs)
    work = job(tmp_path, data, data_pairs=9)
    metrics = json.loads(json.dumps(reward_model.run(work)))
    assert metrics["pairs_by_origin"] == {"damaged": 60, "data": 1}
    assert metrics["origins"]["damaged"]["n"] > 5
    assert (metrics["left_out"], metrics["format_wins"]) == ({"malformed": 1}, 0.75)
    rows = list(read_rows(work.out / "heldout.jsonl"))
    assert len(rows) == metrics["n"] == metrics["pairs"]["heldout"]
    assert len(read_jsonl(work.out / "trace_pairs.jsonl", TracePair)) == metrics["pairs"]["train"]
    first = next(read_rows(work.out / "curves.jsonl"))
    assert {"loss", "rewards/accuracy", "rewards/margin"} < first.keys()
    assert set(metrics["attacks"]) == set(ATTACKS)
    # both traces once, and of those that are attacked the rejected one, as is planned
    attacks = [one["n"] for one in metrics["attacks"].values()]
    pairs = metrics["pairs"]
    assert scored == [2 * pairs["validation"], 2 * pairs["heldout"], *attacks]

    # what is on disk gives the scores that were measured, and other models do not have a head
    calibration = read_calibration(work.out)
    scorer = TraceScorer(load_scoring_model(work.out, make_mesh()), 3, calibration)
    fields = [{name: row[name] for name in TracePair.model_fields if name in row} for row in rows]
    pairs = [TracePair.model_validate_json(json.dumps(one)) for one in fields]
    again = scorer.score([row for pair in pairs for row in pair.rows(TOKENIZER)])
    chosen = [row["chosen_scores"]["trace"] for row in rows]
    assert np.allclose([one.trace for one in again[::2]], chosen, atol=1e-5)
    assert np.allclose(again[1].steps, rows[0]["rejected_scores"]["steps"], atol=1e-5)
    parts = [*again[0].steps, again[0].answer]
    assert min(parts) <= again[0].trace <= max(parts)
    assert (calibration.prompt_length, calibration.response_length) == (24, 64)
    bins = json.loads((work.out / "calibration.json").read_text())
    for kind in ("bins", "uncalibrated_bins"):
        assert sum(one["n"] for one in bins[kind]) == len(rows)
    save_model(base_model("gemma3-tiny", 0), tmp_path)
    with pytest.raises(InputError, match=r"no tensor score\.weight: it is no reward model"):
        load_scoring_model(tmp_path, make_mesh())


def test_a_model_that_learned_nothing_fails_the_stage(tmp_path: Path, data: Path):
    low = r"right on \d+\.\d% of \d+ held-out pairs.*min_accuracy = 99\.0%"
    with pytest.raises(StageFailed, match=low):
        reward_model.run(job(tmp_path, data, min_accuracy=0.99))


def test_too_few_pairs_fail_the_stage_and_say_where_they_went(tmp_path: Path, data: Path):
    with pytest.raises(StageFailed, match=r"'left_out': \{'too_long': 60\}.*min_pairs = 8"):
        reward_model.run(job(tmp_path, data, response_length=16))


def test_bad_configs_are_refused():
    for changes, message in (
        ({"damaged": 0}, "give no pairs"),
        ({"heldout_fraction": 0.5, "validation_fraction": 0.5}, "leave nothing to train on"),
        ({"samples_per_prompt": 1}, "greater than or equal to 2"),
    ):
        with pytest.raises(ValueError, match=message):
            config(**changes)
