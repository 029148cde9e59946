"""Curricula: which prompts are asked is a function of the seed, the update, and what earlier
rollouts found."""

import json

import numpy as np
import pytest

from schemas.base import InputError
from schemas.examples import Domain, Prompt
from tasks.reinforcement.curriculum import Chooser, Curriculum
from tasks.stages.grpo import Config
from tasks.training.loop import rows_of_step

TABLE = {
    "steps": 100, "batch_size": 8, "group_size": 4, "rewards": [{"name": "format"}],
    "prompt_length": 8, "response_length": 8, "optimizer": {"learning_rate": 1e-3},
}  # fmt: skip


def prompt(number: int, **changes) -> Prompt:
    fields = {"id": f"{number:04d}", "prompt": f"{number}?", "domain": Domain.MATH}
    return Prompt(**{**fields, "difficulty": 1 + number % 5, **changes})


def curriculum(**table) -> Curriculum:
    found = Config.parse({**TABLE, "curriculum": table}).curriculum
    assert found is not None
    return found


def chooser(prompts: list[Prompt], seed: int = 0, **table) -> Chooser:
    return Chooser(curriculum(**table) if table else None, prompts, seed, TABLE["steps"])


def test_without_a_curriculum_epochs_are_permutations():
    plain = chooser([prompt(number) for number in range(7)])
    chosen = [plain.choose(4, update) for update in range(1, 6)]
    assert chosen == [rows_of_step(0, step, 4, 7).tolist() for step in range(5)]
    assert sorted([*chosen[0], *chosen[1]][:7]) == list(range(7))


def test_the_easiest_prompts_come_first_and_then_all():
    """Of 100 prompts the first update may ask 25, after half of the 100 updates all; at update 26
    sqrt(.25^2 + .5 (1 - .25^2)) = 72.9%."""
    prompts = [prompt(number, pass_rate=number / 100) for number in range(100)]
    by = chooser(prompts, by="difficulty")
    assert {prompts[index].difficulty for index in by.choose(40, 1)} == {1, 2}
    asked = np.flatnonzero(by.weights(1))
    assert len(asked) == 25
    # of the second kind the easiest
    assert min(prompts[index].pass_rate for index in asked if prompts[index].difficulty == 2) > 0.7
    assert [int(by.weights(update).sum()) for update in (26, 51, 100)] == [73, 100, 100]


def test_phases_say_what_is_asked_and_how_often():
    prompts = [
        prompt(number, domain=Domain.CODING if number % 2 else Domain.MATH)
        for number in range(1000)
    ]
    phases = [
        {"difficulties": [1, 2], "domains": {"math": 1.0}},
        {"from_step": 51, "domains": {"math": 1.0, "coding": 3.0}},
    ]
    by = chooser(prompts, by="phase", phases=phases)
    first = [prompts[index] for index in by.choose(100, 50)]
    assert {(one.domain, one.difficulty) for one in first} == {(Domain.MATH, 1), (Domain.MATH, 2)}
    second = [prompts[index] for index in by.choose(400, 51)]
    assert {one.difficulty for one in second} == {1, 2, 3, 4, 5}
    coding = np.mean([one.domain is Domain.CODING for one in second])
    assert abs(coding - 0.75) < 4 * np.sqrt(0.75 * 0.25 / 400)


def test_bad_curricula_are_refused():
    late = [{}, {"from_step": 9}, {"from_step": 9}]
    for table, message in (
        ({"by": "luck"}, "difficulty.*phase.*pass_rate"),
        ({"by": "phase", "phases": [{"from_step": 5}]}, r"at updates \[5\]; the first needs fr"),
        ({"by": "phase", "phases": late}, "and each other one a later update"),
        ({"by": "difficulty", "start": 0}, "greater than 0"),
        ({"by": "phase", "phases": [{"domains": {}}]}, "at least 1 item"),
    ):
        with pytest.raises(ValueError, match=message):
            curriculum(**table)
    none = r"from_step = 1 admits none of the 1 prompts; .*: \('math', 1\)"
    with pytest.raises(InputError, match=none):
        chooser([prompt(0)], by="phase", phases=[{"difficulties": [5]}])


def shares(by: Chooser, prompts: list[Prompt], rates: list[float], rollouts: int) -> np.ndarray:
    """How often each prompt is asked in rollouts of 4 groups of 8 responses, each right with its
    prompt's rate."""
    generator, counts = np.random.default_rng(0), np.zeros(len(prompts))
    for number in range(rollouts):
        chosen = by.choose(4, number + 1)
        for index in chosen:
            counts[index] += 1
            correct = (generator.random(8) < rates[index]).tolist()
            by.observe(index, correct, informative=0 < sum(correct) < 8)
    return counts / counts.sum()


def test_by_pass_rate_prompts_are_asked_in_proportion_to_p_times_1_minus_p():
    """Rates 0, .1, .5, .9, 1: weights 0 (.05 at least), .36, 1, .36, 0."""
    prompts = [prompt(number) for number in range(5)]
    found = shares(chooser(prompts, by="pass_rate"), prompts, [0.0, 0.1, 0.5, 0.9, 1.0], 500)
    wanted = np.array([0.05, 0.36, 1.0, 0.36, 0.05])
    np.testing.assert_allclose(found, wanted / wanted.sum(), atol=0.06)


def test_by_what_informs_dead_prompts_are_hardly_sampled_and_come_back():
    """Half of 16 prompts are hopeless: they get less than a tenth of the samples, and their share
    when they are not any more."""
    prompts = [prompt(number) for number in range(16)]
    by = chooser(prompts, by="informative")
    shares(by, prompts, [0.5, 0.0] * 8, 50)
    assert shares(by, prompts, [0.5, 0.0] * 8, 100)[1::2].sum() < 0.1
    shares(by, prompts, [0.5] * 16, 300)
    assert shares(by, prompts, [0.5] * 16, 100)[1::2].sum() > 0.4


def test_a_prompt_that_cannot_be_verified_has_no_pass_rate():
    by = chooser([prompt(number) for number in range(2)], by="pass_rate")
    by.observe(0, [None, None], informative=False)
    by.observe(1, [False, None], informative=True)
    assert by.weights(1).tolist() == [1.0, pytest.approx(4 * 0.25 * 0.75)]


def test_a_successor_goes_on_where_the_chooser_was():
    prompts = [prompt(number) for number in range(10)]
    first, second = (chooser(prompts, by="pass_rate", seed=3) for _ in range(2))
    shares(first, prompts, [number / 9 for number in range(10)], 20)
    second.restore(json.loads(json.dumps(first.state())))
    assert [first.choose(4, 21) for _ in range(5)] == [second.choose(4, 21) for _ in range(5)]
