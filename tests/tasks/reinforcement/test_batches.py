"""What a GRPO stage trains on, update by update: with a sampler and rewards that are made up, so
that no model is compiled."""

import gzip
import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from schemas.base import InputError, StageFailed
from schemas.examples import Domain, Prompt
from schemas.ledger import LedgerRow
from tasks.contract.reward import Resources, Response
from tasks.devices.hosts import make_mesh
from tasks.models.tiny import tiny_tokenizer
from tasks.reinforcement import batches as batches_of_a_stage
from tasks.reinforcement.batches import RolloutBatches
from tasks.reinforcement.collapse import sign_of
from tasks.reinforcement.rewarding import Rewards
from tasks.reinforcement.rollout import PolicyBatch
from tasks.sampling.sampler import Completion
from tasks.stages import grpo
from tests.tasks.jobs import job_at

PROMPTS = [
    Prompt(id=f"{number:016d}", prompt=f"{number}?", domain=Domain.MATH, check="none")
    for number in range(8)
]
TOKENIZER = tiny_tokenizer()


class Policy(nnx.Module):
    """Its one weight is the number of updates that it has had."""

    def __init__(self) -> None:
        self.updates = nnx.Param(jnp.zeros(()))


class FakeSampler:
    """Responses whose first token says how often the policy was updated when they were sampled, and
    their second one their place."""

    response_length = 8

    def __init__(self, policy: Policy) -> None:
        self.policy, self.compiles, self.calls = policy, 1, 0

    def generate(self, prompts: list[str], **_: Any) -> list[Completion]:
        self.calls += 1
        updates = 20 + int(self.policy.updates.get_value())
        return [self.completion_of([updates, 20 + row % 4, 5], None) for row in range(len(prompts))]

    def completion_of(self, tokens: list[int], logps: np.ndarray | None) -> Completion:
        logps = np.full(len(tokens), -1.5, np.float32) if logps is None else logps
        return Completion(list(tokens), " ".join(map(str, tokens[:2])), True, logps)


def fake_logps(state: Any, rows: Any, temperature: Any) -> Any:
    """-1 minus a tenth of the updates, for every token that is predicted."""
    return jnp.where(rows[3], -1 - 0.1 * state["updates"].get_value(), 0)


def sampled_at(batch: PolicyBatch) -> int:
    """How often the policy was updated when the batch was sampled."""
    first = np.flatnonzero(batch.predicts[0])[0]
    return int(batch.tokens[0, first + 1] - 20)


Worth = Callable[[int, Prompt, Response], float | None]


class FakeScorer:
    """Rewards that are there when a test says so: `futures[n]` is the n-th rollout's. `worth` is of
    (place in it, prompt, response)."""

    def __init__(self, worth: Worth, *, at_once: bool = True) -> None:
        self.worth, self.at_once = worth, at_once
        self.futures: list[Future[Rewards]] = []
        self.updates: list[int] = []
        self._asked: list[tuple[list[Prompt], list[Response]]] = []
        self.usd = 0.0

    def values(self) -> dict[str, dict[str, float]]:
        return {"format": {"usd": self.usd}}

    def count_on(self, values: dict[str, dict[str, float]]) -> None:
        self.usd = max(self.usd, values["format"]["usd"])

    def submit(self, prompts, responses, update: int) -> "Future[Rewards]":
        self.futures.append(Future())
        self.usd += 1.0
        self.updates.append(update)
        self._asked.append((prompts, responses))
        if self.at_once:
            self.answer(len(self.futures) - 1)
        return self.futures[-1]

    def answer(self, number: int) -> None:
        asked = zip(*self._asked[number], strict=True)
        values = [self.worth(place, *one) for place, one in enumerate(asked)]
        numbers = np.array([np.nan if value is None else value for value in values])
        details = [{"place": place} if value is None else {} for place, value in enumerate(values)]
        self.futures[number].set_result(Rewards({"format": numbers}, numbers, {"format": details}))

    def close(self) -> None:
        self.at_once = False


def config(**changes) -> grpo.Config:
    table = {"steps": 6, "batch_size": 8, "group_size": 4, "rewards": [{"name": "format"}]}
    table |= {"prompt_length": 16, "response_length": 8, "optimizer": {"learning_rate": 1e-3}}
    return grpo.Config.parse(table | changes)


def batches_of(
    directory: Path, config: grpo.Config, scorer: FakeScorer, prompts: list[Prompt] = PROMPTS
) -> RolloutBatches:
    job, policy = job_at(directory, config, {}), Policy()
    loaded: Any = SimpleNamespace(model=policy, tokenizer=TOKENIZER, mesh=make_mesh())
    programs = FakeSampler(policy), jax.jit(lambda *given: fake_logps(*given))
    batches = RolloutBatches(config, loaded, programs, prompts, job, Resources({}, None))
    batches.scorer = scorer
    return batches


def update(batches: RolloutBatches) -> None:
    """What a training step does."""
    weight = batches.loaded.model.updates
    weight.set_value(weight.get_value() + 1)


def ledger(path: Path) -> list[LedgerRow]:
    lines = gzip.decompress(path.read_bytes()).splitlines()
    return [LedgerRow.model_validate_json(line) for line in lines]


def alternate(place: int, prompt: Prompt, response: Response) -> float:
    """Right and wrong by turns."""
    return float(place % 2)


@pytest.mark.parametrize(
    ("lag", "expected"), [(0, [0, 1, 2, 3, 4, 5]), (1, [0, 0, 1, 2, 3, 4]), (2, [0, 0, 0, 1, 2, 3])]
)
def test_a_rollout_is_sampled_from_the_weights_of_so_many_updates_before(tmp_path, lag, expected):
    batches = batches_of(tmp_path, config(rollout_lag=lag), FakeScorer(alternate))
    found = []
    for step in range(6):
        batch = batches.batch_at(step)
        found.append(sampled_at(batch))
        if lag:  # log-probabilities are of then, not of now
            old = batch.old_per_token_logps[batch.predicts]
            np.testing.assert_allclose(old, -1 - 0.1 * expected[step])
        update(batches)
    assert found == expected
    assert batches.sampler.calls == 6


def test_sampling_goes_on_while_a_judge_takes_its_time(tmp_path: Path):
    """With a lag of 1, update 0 needs no more than the first rollout's rewards, and update 1 waits
    for the second's alone."""
    judge = FakeScorer(alternate, at_once=False)
    batches = batches_of(tmp_path, config(rollout_lag=1), judge)
    generate = batches.sampler.generate

    def answering(prompts: list[str], **named: Any) -> list[Completion]:
        if batches.sampler.calls:  # the n-th while the next one is sampled
            judge.answer(batches.sampler.calls - 1)
        return generate(prompts, **named)

    batches.sampler.generate = answering
    batches.batch_at(0)
    assert [future.done() for future in judge.futures] == [True, False]
    update(batches)
    batches.batch_at(1)
    assert [future.done() for future in judge.futures] == [True, True, False]
    assert max(batches.judge_wait_seconds.values()) < 1


def test_a_curriculum_without_prompts_is_refused_before_a_judge_is_paid(tmp_path, monkeypatch):
    monkeypatch.setattr(batches_of_a_stage, "Scorer", lambda *_: pytest.fail("was prepared"))
    phases = [{"difficulties": [5]}]
    with pytest.raises(InputError, match="admits none of the 8 prompts"):
        batches_of(
            tmp_path, config(curriculum={"by": "phase", "phases": phases}), FakeScorer(alternate)
        )


def test_nothing_is_sampled_that_no_update_uses(tmp_path: Path):
    table = config(steps=3, num_iterations=2, rollout_lag=4)
    batches = batches_of(tmp_path, table, FakeScorer(alternate))
    for step in range(3):
        batches.batch_at(step)
    assert batches.sampler.calls == 2
    assert batches.scorer.updates == [1, 3]


def test_groups_that_teach_fill_the_batch_and_others_weigh_nothing(tmp_path: Path):
    """Four candidates for two places. One of them teaches: it comes with the first of the others,
    which weighs nothing."""
    table = {"dynamic_sampling": True, "oversampling": 2, "aggregation": "token", "beta": 0.04}
    batches = batches_of(tmp_path, config(**table), FakeScorer(lambda place, *_: float(place == 9)))
    batch = batches.batch_at(0)
    assert batch.tokens.shape == (8, 16 + 8)
    np.testing.assert_allclose(batch.weights[batch.predicts], [1 / 12] * 12)
    assert not batch.weights[~batch.predicts].any()
    assert batch.token_weights.tolist() == batch.weights.tolist()
    assert (batches.metrics[1]["effective_groups"], batches.metrics[1]["trained_groups"]) == (1, 1)
    batches.write_ledger(tmp_path / "ledger", updates=1)
    trained = [row.trained for row in ledger(tmp_path / "ledger")]
    assert trained == [False] * 8 + [True] * 4 + [False] * 4


def test_a_rollout_that_teaches_nothing_at_all_moves_nothing(tmp_path: Path):
    batches = batches_of(tmp_path, config(dynamic_sampling=True), FakeScorer(lambda *_: 1.0))
    batch = batches.batch_at(0)
    assert not batch.weights.any()
    assert not batch.tokens.any()
    assert batches.metrics[1]["trained_groups"] == 0
    # of nothing, which is not little
    assert (
        sign_of(batches, batches.metrics[1] | {"step": 1, "entropy": 0.0, "kl": 0.0}).entropy
        is None
    )


def test_without_dynamic_sampling_all_rewarded_responses_count(tmp_path: Path):
    scorer = FakeScorer(lambda place, *_: None if place == 7 else 1.0)
    assert (batches_of(tmp_path, config(), scorer).batch_at(0).weights > 0).sum() == 7 * 3


def test_a_successor_samples_nothing_and_asks_no_judge_again(tmp_path: Path):
    """Not even about responses on which it abstained."""
    table = {"rollout_lag": 1, "num_iterations": 2}
    scorer = FakeScorer(lambda place, *_: None if place == 1 else float(place % 3))
    first = batches_of(tmp_path, config(**table), scorer)
    before = first.batch_at(0)

    def never(*_: Any) -> float:
        pytest.fail("was asked again")

    second = batches_of(tmp_path, config(**table), FakeScorer(never, at_once=False))
    after = second.batch_at(0)
    assert second.sampler.calls == 0
    assert len(second.scorer.futures) == 1  # the second rollout, whose rewards had not been there
    for name, value in before._asdict().items():
        np.testing.assert_array_equal(value, getattr(after, name), err_msg=name)
    assert second.metrics[1] == first.metrics[1]
    assert second.metrics[1]["abstained/format"] == 1 / 8


def test_a_successor_counts_on_from_what_its_judge_had_cost(tmp_path: Path):
    """Of rollouts before the checkpoint, and of those after it that the journal has."""
    first = batches_of(tmp_path, config(), FakeScorer(alternate))
    for step in range(4):
        first.batch_at(step)
        if step == 1:
            state = first.state(2)
    second = batches_of(tmp_path, config(), FakeScorer(alternate))
    second.restore(2, *state)
    assert second.scorer.usd == 2
    for step, usd in ((2, 3), (3, 4), (4, 5)):
        second.batch_at(step)
        assert second.scorer.usd == usd
    assert len(second.scorer.futures) == 1


def test_hosts_agree_as_often_as_host_0_does_and_verify_nothing(tmp_path, monkeypatch):
    """Where a stage goes on: after another number of times, the next one is about something
    else."""
    first, counts, verified = batches_of(tmp_path, config(), FakeScorer(alternate)), [], []
    first.batch_at(0)
    state = first.state(1)
    first.batch_at(1)
    for host, scorer in enumerate((FakeScorer(alternate), None)):
        calls: list[Any] = []
        noted = lambda value, calls=calls: calls.append(value) or value  # noqa: E731
        told = lambda value: verified.append(value) or [None] * 8  # noqa: E731
        monkeypatch.setenv("LYCEUM_HOST", str(host))
        monkeypatch.setattr("tasks.contract.journal.agree", noted)
        monkeypatch.setattr("tasks.reinforcement.rollout.agree", told)
        successor = batches_of(tmp_path, config(), scorer)
        successor.restore(1, *state)
        successor.batch_at(1)
        counts.append(len(calls))
    assert counts[0] == counts[1] > 0
    assert verified == [[None] * 8, None]


def test_the_ledger_has_every_response_of_the_rollouts_that_were_trained_on(tmp_path: Path):
    scorer = FakeScorer(lambda place, *_: None if place == 1 else place / 8)
    batches = batches_of(tmp_path, config(rollout_lag=1, num_iterations=2), scorer)
    for step in range(4):
        batches.batch_at(step)
    for name in ("one", "two"):
        batches.write_ledger(tmp_path / name, updates=3)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    rows = ledger(tmp_path / "one")
    assert [(row.rollout, row.step, row.group) for row in rows] == [
        (n, 2 * n + 1, place // 4) for n in range(2) for place in range(8)
    ]
    abstained, given = rows[1], rows[2]
    assert (abstained.reward, abstained.rewards) == (None, {"format": None})
    assert abstained.details == {"format": {"place": 1}}
    assert (given.reward, given.completion, given.tokens, given.details) == (0.25, "20 22", 3, {})


def test_a_rollout_that_was_lost_is_an_error_and_the_next_attempt_starts_over(tmp_path: Path):
    batches = batches_of(tmp_path, config(rollout_lag=1), FakeScorer(alternate))
    batches.batch_at(0)
    _, state = batches.state(1)
    batches.job.work.write("checkpoints/00000001-1/x", b"")
    batches.job.work.remove("journal/rollouts/000001.sampled")
    successor = batches_of(tmp_path, config(rollout_lag=1), FakeScorer(alternate))
    lost = r"rollout 000001.sampled is missing from the stage's workspace, .* starts over"
    with pytest.raises(StageFailed, match=lost):
        successor.restore(1, {}, json.loads(json.dumps(state)))
    assert batches.job.work.children("checkpoints") == []


def test_passing_code_is_audited_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A policy that answers every prompt by walking frames; a successor that goes on in the middle
    of the rollout counts nothing twice."""
    trick = "import sys\ndef f(x):\n    return sys._getframe().f_back.f_locals[x]"
    text = f"<reasoning>r</reasoning><answer>{trick}</answer>"
    said = Completion([9, 1], text, True, np.zeros(2, np.float32))
    coding = [one.model_copy(update={"check": "tests", "tests": "assert f(1)"}) for one in PROMPTS]
    monkeypatch.setattr(FakeSampler, "completion_of", lambda self, tokens, logps: said)
    monkeypatch.setattr(
        "tasks.reinforcement.rollout.are_correct", lambda prompts, texts: [True] * len(texts)
    )
    table = config(num_iterations=2)
    batches = batches_of(tmp_path, table, FakeScorer(alternate), coding)
    batches.batch_at(0)
    counted = {"audit_passes": 8, "audit_short": 0, "audit_suspicious": 8}
    assert counted.items() <= batches.metrics[1].items()
    state = batches.state(1)[1]
    names = "samples audit chooser next held put_back_before"
    assert {*state} == {*names.split()}  # another name would end runs that resume: raise VERSION
    successor = batches_of(tmp_path, table, FakeScorer(alternate), coding)
    successor.restore(1, {}, json.loads(json.dumps(state)))
    successor.batch_at(1)
    assert successor.passing_code.metrics() == batches.passing_code.metrics() == counted
    assert [row["step"] for row in successor.passing_code.examples] == [1] * 5


DOUBLED = {"start": 1.0, "end": 2.0, "from_step": 3, "to_step": 3}
ANNEALED = {"rewards": [{"name": "format", "weight": DOUBLED}]}


def test_weights_are_held_and_what_the_dead_policy_sampled_is_dropped(tmp_path: Path):
    """Rolled back after 4 of 6 updates, to the weights after 2: rollout 4, which was there, is
    sampled again, from those."""
    batches = batches_of(tmp_path, config(**ANNEALED, rollout_lag=1), FakeScorer(alternate))
    for step in range(4):
        batches.batch_at(step)
        update(batches)
    asked = [(1, 4), (2, 4), (3, 4), (1, 2)]
    assert [batches.last_unchanged(*one) for one in asked] == [2, 2, None, None]
    batches.loaded.model.updates.set_value(jnp.float32(2))
    batches.freeze(2)
    batch = batches.batch_at(4)
    assert sampled_at(batch) == 2
    assert batches.scorer.updates == [1, 2, 3, 4, 5, 2, 2]
    entries = set(batches.job.work.children("journal/rollouts"))
    assert {"000004.sampled", "000004+1.sampled"} <= entries
    _, state = batches.state(5)
    successor = batches_of(tmp_path, config(**ANNEALED, rollout_lag=1), FakeScorer(alternate))
    successor.restore(5, {}, json.loads(json.dumps(state)))
    assert sampled_at(successor.batch_at(5)) == 2
    assert successor.sampler.calls == 0
    successor.write_ledger(tmp_path / "ledger", updates=6)
    rows = ledger(tmp_path / "ledger")[::8]
    assert [row.completion.split()[0] for row in rows] == ["20", "20", "21", "22", "22", "22"]
    assert [row.frozen for row in rows] == [None] * 4 + [2, 2]


def test_whatever_of_a_reward_is_annealed_is_a_change_to_go_back_before(tmp_path: Path):
    """Doubled penalties collapsed the policy of the DIPG Safety Gym's author; the weight stays."""
    rewards = [{"name": "dipg", "penalties": DOUBLED}]
    batches = batches_of(tmp_path, config(rewards=rewards), FakeScorer(alternate))
    assert [batches.last_unchanged(*one) for one in [(1, 4), (2, 4), (3, 4)]] == [2, 2, None]
