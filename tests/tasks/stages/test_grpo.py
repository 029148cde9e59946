"""The GRPO stage: rollouts that are functions of (weights, seed, step), what is measured of them,
and a reward that rises."""

import json
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flax import nnx

from schemas.examples import Example
from schemas.trainer_config import LoraConfig
from tasks.contract.reward import Resources
from tasks.devices.hosts import BATCH
from tasks.models.loading import LoadedModel, base_model
from tasks.models.lora import add_lora
from tasks.reinforcement.batches import RolloutBatches, initial_policy
from tasks.reinforcement.rewarding import Rewards
from tasks.reinforcement.rollout import Rollout, group_advantages
from tasks.sampling.rollouts import rollout_programs
from tasks.stages import grpo
from tests.tasks.jobs import job_at
from tests.tasks.prompts import trace
from tests.tasks.stages.bench import example


def changed(number: int, **changes) -> Example:
    return Example(**{**dict(example(number)), **changes})


EXAMPLES = [example(number) for number in range(8)]
TABLE = {
    "steps": 30, "batch_size": 32, "group_size": 8, "rewards": [{"name": "format"}], "beta": 0.01,
    "prompt_length": 24, "response_length": 16, "optimizer": {"learning_rate": 1e-2},
}  # fmt: skip


def config(**changes) -> grpo.Config:
    return grpo.Config.parse({**TABLE, **changes})


@pytest.fixture
def loaded(one_layer: None) -> LoadedModel:
    return base_model("gemma3-tiny", 0)


def test_defaults_of_the_rewards_are_part_of_the_config():
    assert config(rewards=[{"name": "exact_answer"}]).rewards == (
        {"name": "exact_answer", "weight": 1.0, "domains": None},
    )
    parsed = config()
    assert grpo.Config.parse(json.loads(parsed.model_dump_json())) == parsed


def test_bad_configs_are_refused():
    for changes, message in (
        ({"rewards": []}, "at least 1 item"),
        ({"rewards": [{"name": "corect"}]}, "unknown reward 'corect'"),
        ({"batch_size": 30}, "batch_size = 30 .*must be a multiple of group_size = 8"),
        ({"group_size": 1}, "greater than or equal to 2"),
        ({"epsilon": 1.5}, "less than 1"),
        ({"algorithm": "ppo"}, "'grpo', 'dr_grpo', 'dapo' or 'gspo'"),
        ({"oversampling": 2}, "2 samples groups to choose from; it needs dynamic_sampling = true"),
        ({"truncation": 0.5}, "truncation = 0.5 would scale down"),
    ):
        with pytest.raises(ValueError, match=message):
            config(**changes)


@pytest.mark.parametrize(
    ("algorithm", "knobs"),
    [
        ("grpo", ("group", "sequence", "token", 0.2, 0.2, 0.04, False, 1)),
        ("dr_grpo", ("none", "fixed", "token", 0.2, 0.2, 0.0, False, 1)),
        ("dapo", ("group", "token", "token", 0.2, 0.28, 0.0, True, 2)),
        ("gspo", ("group", "sequence", "sequence", 3e-4, 4e-4, 0.0, False, 1)),
    ],
)
def test_an_algorithm_is_what_its_paper_says(algorithm: str, knobs: tuple):
    names = (
        "scale_rewards", "aggregation", "importance", "epsilon", "epsilon_high", "beta",
        "dynamic_sampling", "oversampling",
    )  # fmt: skip
    plain = {name: value for name, value in TABLE.items() if name != "beta"}
    found = grpo.Config.parse({**plain, "algorithm": algorithm})
    assert tuple(getattr(found, name) for name in names) == knobs
    chosen = grpo.Config.parse({**plain, "algorithm": algorithm, "epsilon_high": 0.5, "beta": 0.1})
    assert (chosen.epsilon_high, chosen.beta, chosen.aggregation) == (0.5, 0.1, knobs[1])
    narrow = grpo.Config.parse({**plain, "algorithm": algorithm, "epsilon": 0.1})
    assert narrow.epsilon_high == {"dapo": 0.28, "gspo": 4e-4}.get(algorithm, 0.1)


def test_without_a_kl_there_is_no_reference(tmp_path: Path, loaded: LoadedModel):
    assert batches_of(tmp_path, config(beta=0), loaded).reference is None


def test_rows_are_no_longer_than_the_longest_prompt_needs_and_a_batch_is_cut_in_four():
    """60 + 60 tokens, the longest prompt 33: 93 fit 96. On 16 devices the batch of 32 has two
    parts; a size of micro-batches that is set stays."""

    def fitted(devices: int, longest: int, **changes) -> tuple[int, int]:
        asked = config(prompt_length=60, response_length=60, **changes)
        found = grpo.fitted(asked, SimpleNamespace(shape={BATCH: devices}), longest)
        return found.prompt_length, found.micro_batch_size

    assert fitted(1, 33) == (36, 8)
    assert fitted(16, 60) == (60, 16)
    assert fitted(32, 60) == (60, 32)
    assert fitted(1, 61 - 8, micro_batch_size=16) == (60, 16)


def rollout(*groups: list[tuple[Example, str, float | None]]) -> Rollout:
    """Groups of (prompt, text, reward); a text that ends in ~ was cut off."""
    rows = [row for group in groups for row in group]
    total = np.array([np.nan if reward is None else reward for _, _, reward in rows])
    completions = [
        SimpleNamespace(
            text=text.rstrip("~"), tokens=[9] * len(text), terminated=not text.endswith("~")
        )
        for _, text, _ in rows
    ]
    size = len(groups[0])
    return Rollout(
        [row[0] for row in rows],
        completions,
        Rewards({"test": total}, total),
        group_advantages(total, size),
        size,
    )


def test_groups_that_teach_nothing_are_told_apart():
    right, wrong = trace("1"), trace("7")
    free_text = changed(0, check="none")
    metrics = rollout(
        [(EXAMPLES[0], right, 1.0), (EXAMPLES[0], right, 1.0)],  # all right
        [(EXAMPLES[0], wrong, 0.0), (EXAMPLES[0], "~", 0.0)],  # all wrong
        [(EXAMPLES[0], right, 1.0), (EXAMPLES[0], wrong, 0.0)],  # teaches: std of (1, 0) is .7071
        # equal rewards, neither right nor wrong
        [(free_text, right, 0.5), (free_text, wrong, 0.5)],
        [(free_text, "~", None), (free_text, "~", 1.0)],  # one reward: nothing to compare with
    ).metrics()
    assert metrics["zero_variance"] == 4 / 5
    assert (metrics["all_right"], metrics["all_wrong"]) == (1 / 5, 1 / 5)
    assert metrics["effective_groups"] == 1
    assert metrics["unrewarded"] == 1 / 10
    assert metrics["truncated"] == 3 / 10
    assert metrics["reward"] == metrics["reward/test"] == pytest.approx(5 / 9)
    assert metrics["reward_std"] == pytest.approx(0.5**0.5 / 4)


def test_a_rollout_without_any_reward_reports_none():
    metrics = rollout([(EXAMPLES[0], "x", None), (EXAMPLES[0], "y", None)]).metrics()
    assert metrics["unrewarded"] == 1
    assert not {"reward", "reward/test", "reward_std"} & set(metrics)


def test_rollout_rows_say_what_was_scored():
    first, second = rollout([(EXAMPLES[0], trace("1"), 1.0), (EXAMPLES[0], "no~", None)]).rows(
        step=3
    )
    asked = {"step": 3, "id": EXAMPLES[0].id, "prompt": "What is 0 + 1?", "reference": "1"}
    said = {"completion": trace("1"), "terminated": True, "rewards": {"test": 1.0}}
    assert first == asked | said | {"reward": 1.0, "advantage": 0.0}
    found = (second["terminated"], second["rewards"], second["reward"])
    assert found == (False, {"test": None}, None)


# Batches
# --------------------------------------------------------------------------------------------------


def batches_of(
    tmp_path: Path, config: grpo.Config, loaded: LoadedModel, examples: list[Example] = EXAMPLES
) -> RolloutBatches:
    programs = rollout_programs(config, loaded, config.batch_size)
    job, resources = job_at(tmp_path, config, {}), Resources({}, answers=None)
    return RolloutBatches(config, loaded, programs, examples, job, resources)


def test_a_rollout_is_reused_and_the_sampler_says_what_the_trainer_says(tmp_path, loaded):
    """Two updates per rollout: 0 and 1 train on one rollout, 2 on the next."""
    changes = {
        "num_iterations": 2,
        "batch_size": 16,
        "response_length": 8,
        "rewards": [{"name": "exact_answer"}],
    }
    changes |= {"truncation": 0}
    verifiable_in_part = [changed(n, check="none" if n % 2 else "exact") for n in range(4)]
    batches = batches_of(tmp_path, config(**changes), loaded, verifiable_in_part)
    first, again, second = (batches.batch_at(step) for step in range(3))
    assert again is first
    assert not np.array_equal(first.tokens, second.tokens)
    # the policy is still the reference
    np.testing.assert_allclose(first.ref_per_token_logps, first.old_per_token_logps)
    assert first.old_per_token_logps[first.predicts].any()
    assert first.sampler_per_token_logps is None
    assert batches.metrics[1]["sampler_gap"] < 0.01
    assert batches.metrics[2] == batches.metrics[1]
    # half the prompts cannot be verified
    assert batches.metrics[1]["unrewarded"] == batches.metrics[1]["abstained/exact_answer"] == 0.5


def test_the_reference_stays_when_the_policy_moves(loaded: LoadedModel):
    reference = initial_policy(loaded.model)
    before = np.asarray(reference["final_norm"].get_value())
    nnx.update(loaded.model, jax.tree.map(lambda weights: weights + 1, nnx.state(loaded.model)))
    np.testing.assert_array_equal(reference["final_norm"].get_value(), before)


def test_with_adapters_the_reference_shares_the_frozen_weights(loaded: LoadedModel):
    add_lora(loaded.model, LoraConfig(rank=2, alpha=2.0), seed=0)
    reference, layers = initial_policy(loaded.model), loaded.model.layers
    assert reference["layers"]["q_proj"].get_value() is layers.q_proj.get_value()
    assert reference["layers"]["q_proj_lora_a"].get_value() is not layers.q_proj_lora_a.get_value()
