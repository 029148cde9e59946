"""The reward reward_model, and the model with a scalar head below it: calibrated scores, nothing
malformed, what transformers says."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from schemas.base import InputError
from schemas.examples import Domain, Prompt, Trace, parse_trace
from tasks.contract.reward import Resources, Response
from tasks.devices.hosts import make_mesh
from tasks.models.decoder import SIZES
from tasks.models.loading import base_model, save_model
from tasks.models.scalar_head import add_head
from tasks.planning.programs import abstract_model
from tasks.reinforcement.rewarding import Rewards, Scorer, parse_rewards
from tasks.reward_models.reliability import Calibration
from tasks.reward_models.scoring import TraceScorer
from tasks.rewards import reward_model as reward
from tasks.stages import reward_model
from tests.tasks.reward_models.step_traces import EXAMPLES, LENGTHS, example
from tests.tasks.rewards.test_attacks import WORTHLESS

pytestmark = pytest.mark.usefixtures("one_layer")


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """A reward model that has learned nothing, with a head that tells traces apart."""
    directory = tmp_path / "model"
    directory.mkdir()
    loaded = base_model("gemma3-tiny", 0)
    rng = np.random.Generator(np.random.Philox(1))
    add_head(loaded, rng.normal(size=loaded.config.embed_dim).astype(np.float32))
    save_model(loaded, directory)
    found = Calibration(centre=0.5, temperature=2.0, **LENGTHS)
    (directory / "calibration.json").write_text(json.dumps({"calibration": found.model_dump()}))
    return directory


def resources(artifact: Path | None, response_length: int = 48) -> Resources:
    inputs = {"reward_model": artifact} if artifact else {}
    return Resources(inputs, answers=None, response_length=response_length)


def scored(artifact: Path, prompts: list[Prompt], *responses: Response | str) -> Rewards:
    configs = parse_rewards([{"name": "reward_model", "batch_size": 4}], "rewards")
    given = [Response(one) if isinstance(one, str) else one for one in responses]
    return Scorer(configs, resources(artifact)).score(prompts, given)


def test_the_reward_of_a_trace_is_the_calibrated_score_and_the_ledger_has_its_steps(artifact: Path):
    one = EXAMPLES[0]
    spaced = one.response().replace("\n", "  \n ").replace("</answer>", " </answer>")
    texts = [one.response(), spaced, *[example(n).response() for n in range(4)]]
    found = scored(artifact, [one.as_prompt()] * 6, *texts)
    values, details = found.components["reward_model"], found.details["reward_model"]
    assert len(details[0]["steps"]) == 3
    assert values[0] == pytest.approx(1 / (1 + np.exp(-(details[0]["score"] - 0.5) / 2)), abs=1e-3)
    assert values[1] == values[0]  # white space is not seen
    assert len(set(values)) == 5
    assert ((values > 0) & (values < 1)).all()


def test_what_is_no_trace_is_worth_nothing_and_is_never_shown_to_the_model(artifact, monkeypatch):
    shown, score = [], TraceScorer.score
    seen = lambda self, rows: shown.extend(rows) or score(self, rows)  # noqa: E731
    monkeypatch.setattr(TraceScorer, "score", seen)
    good = EXAMPLES[0].response()
    malformed = [text for text in WORTHLESS.values() if parse_trace(text, "trace") is None]
    malformed.append(f"I swear this is right. {good}")
    prompts = [EXAMPLES[0].as_prompt()] * (len(malformed) + 2)
    found = scored(artifact, prompts, good, *malformed, Response(good, truncated=True))
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
    short = EXAMPLES[0].as_prompt()
    wordy = Trace(reasoning="r is r. " * 200, answer="1").render()
    good = EXAMPLES[0].response()
    found = scored(artifact, [long, short, short], good, good, wordy)
    assert np.isnan(found.total).tolist() == [True, False, False]
    # an abstention would be worth what others to the prompt are on average
    assert found.components["reward_model"][2] == 0.0


def test_a_policy_that_may_write_more_than_the_model_was_trained_on_is_refused(artifact: Path):
    with pytest.raises(InputError, match="at most 64 tokens, and here they have up to 65"):
        reward.prepare(reward.Config(), resources(artifact, 65))
    with pytest.raises(InputError, match='add `reward_model = "STAGE"`'):
        reward.prepare(reward.Config(), resources(None))


def test_the_reward_runs_the_program_that_plan_compiles(artifact: Path):
    mesh, table = make_mesh(), reward.Config(batch_size=4)
    sizes = {"model": "gemma3-tiny", "steps": 1, "batch_size": 2, "damaged": 1}
    optimizer = {"learning_rate": 1e-3}
    trained = reward_model.Config.parse({**sizes, "optimizer": optimizer, **LENGTHS})
    model = abstract_model("gemma3-tiny", SIZES["gemma3-tiny"], mesh)
    (program,) = reward.programs(table, model, 10, {"reward_model": trained})
    own = reward.prepare(table, resources(artifact)).scorer.program(2.5)
    with jax.set_mesh(mesh):
        planned = program.function.lower(*program.args).as_text()
        assert planned == own.function.lower(*own.args).as_text()
    assert (program.name, program.calls) == ("score_traces", 2.5)
