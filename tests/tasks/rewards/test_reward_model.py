"""The reward reward_model, and the model with a scalar head below it: calibrated scores, nothing
malformed, what transformers says."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from schemas.base import InputError
from schemas.examples import Domain, Prompt, Trace, parse_trace
from tasks.contract.reward import Resources, Response
from tasks.devices.hosts import make_mesh
from tasks.models.gemma import SIZES
from tasks.models.loading import base_model, save_model
from tasks.models.scalar_head import add_head
from tasks.planning.programs import abstract_model
from tasks.reinforcement.rewarding import Scorer, parse_rewards
from tasks.reward_models.calibration import Calibration
from tasks.reward_models.scoring import TraceScorer
from tasks.rewards import reward_model as reward
from tasks.stages import reward_model
from tests.tasks.reward_models.step_traces import EXAMPLES, LENGTHS, example
from tests.tasks.rewards.test_attacks import WORTHLESS


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """`gemma3-tiny` with one layer, which compiles quickly."""
    monkeypatch.setitem(
        SIZES, "gemma3-tiny", replace(SIZES["gemma3-tiny"], num_layers=1, hidden_dim=64)
    )


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """A reward model that has learned nothing, with a head that tells traces apart."""
    directory = tmp_path / "model"
    directory.mkdir()
    loaded = base_model("gemma3-tiny", 0)
    add_head(
        loaded,
        np.random.Generator(np.random.Philox(1))
        .normal(size=loaded.config.embed_dim)
        .astype(np.float32),
    )
    save_model(loaded, directory)
    found = Calibration(centre=0.5, temperature=2.0, **LENGTHS)
    (directory / "calibration.json").write_text(json.dumps({"calibration": found.model_dump()}))
    return directory


def scorer(artifact: Path, **changes: Any) -> Scorer:
    table = {"name": "reward_model", "batch_size": 4, **changes}
    return Scorer(
        parse_rewards([table], "rewards"),
        Resources({"reward_model": artifact}, answers=None, response_length=48),
    )


def test_the_reward_of_a_trace_is_the_calibrated_score_and_the_ledger_has_its_steps(artifact: Path):
    one = EXAMPLES[0]
    spaced = one.response().replace("\n", "  \n ").replace("</answer>", " </answer>")
    prompts, texts = (
        [one.as_prompt()] * 6,
        [one.response(), spaced, *[example(n).response() for n in range(4)]],
    )
    found = scorer(artifact).score(prompts, [Response(text) for text in texts])
    values, details = found.components["reward_model"], found.details["reward_model"]
    assert len(details[0]["steps"]) == 3
    assert values[0] == pytest.approx(1 / (1 + np.exp(-(details[0]["score"] - 0.5) / 2)), abs=1e-3)
    assert values[1] == values[0]  # white space is not seen
    assert len(set(values)) == 5
    assert ((values > 0) & (values < 1)).all()


def test_what_is_no_trace_is_worth_nothing_and_is_never_shown_to_the_model(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
):
    shown: list[Any] = []
    score = TraceScorer.score
    monkeypatch.setattr(
        TraceScorer, "score", lambda self, rows: shown.extend(rows) or score(self, rows)
    )
    good = EXAMPLES[0].response()
    malformed = [
        f"I swear this is right. {good}",
        *(text for text in WORTHLESS.values() if parse_trace(text) is None),
    ]
    responses = [
        Response(good),
        *[Response(text) for text in malformed],
        Response(good, truncated=True),
    ]
    found = scorer(artifact).score([EXAMPLES[0].as_prompt()] * len(responses), responses)
    assert len(malformed) > 15
    assert found.total[0] > 0
    assert not found.total[1:].any()
    because = [detail.get("unscored") for detail in found.details["reward_model"]]
    assert because == [None, *["no well-formed trace"] * len(malformed), "cut off"]
    assert len(shown) == 1


def test_a_prompt_that_is_too_long_for_the_model_abstains_and_a_response_that_is_earns_nothing(
    artifact: Path,
):
    long = Prompt(id="1" * 16, prompt="word " * 30, domain=Domain.MATH)
    found = scorer(artifact).score(
        [long, EXAMPLES[0].as_prompt()], [Response(EXAMPLES[0].response())] * 2
    )
    assert np.isnan(found.total).tolist() == [True, False]
    wordy = Trace(reasoning="r is r. " * 200, answer="1").render()
    (one,) = (
        scorer(artifact)
        .score([EXAMPLES[0].as_prompt()], [Response(wordy)])
        .components["reward_model"]
    )
    assert one == 0.0  # an abstention would be worth what its other rewards are


def test_one_program_scores_any_number_of_responses(artifact: Path):
    prepared = reward.prepare(
        reward.Config(batch_size=4), Resources({"reward_model": artifact}, answers=None)
    )
    for count in (1, 4, 7):
        assert (
            len(
                reward.score(
                    prepared,
                    [EXAMPLES[0]] * count,
                    [Response(EXAMPLES[n].response()) for n in range(count)],
                )
            )
            == count
        )
    assert prepared.scorer.compiles == 1


def test_a_policy_that_may_write_more_than_the_model_was_trained_on_is_refused(artifact: Path):
    with pytest.raises(InputError, match="at most 64 tokens, and here they have up to 65"):
        reward.prepare(
            reward.Config(), Resources({"reward_model": artifact}, answers=None, response_length=65)
        )
    with pytest.raises(InputError, match='add `reward_model = "STAGE"`'):
        reward.prepare(reward.Config(), Resources({}, answers=None))


def test_the_reward_runs_the_program_that_plan_compiles(artifact: Path):
    mesh, table = make_mesh(), reward.Config(batch_size=4)
    optimizer = {"learning_rate": 1e-3}
    trained = reward_model.Config.parse(
        {
            "model": "gemma3-tiny",
            "steps": 1,
            "batch_size": 2,
            "damaged": 1,
            "optimizer": optimizer,
            **LENGTHS,
        }
    )
    model = abstract_model("gemma3-tiny", SIZES["gemma3-tiny"], mesh)
    (program,) = reward.programs(table, model, 10, {"reward_model": trained})
    prepared = reward.prepare(table, Resources({"reward_model": artifact}, answers=None))
    (own,) = [prepared.scorer.program(2.5)]
    with jax.set_mesh(mesh):
        assert (
            program.function.lower(*program.args).as_text()
            == own.function.lower(*own.args).as_text()
        )
    assert (program.name, program.calls) == ("score_traces", 2.5)


# transformers
# --------------------------------------------------------------------------------------------------
