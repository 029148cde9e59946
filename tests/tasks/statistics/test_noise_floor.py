"""The noise floor of one model under several seeds."""

import math
from itertools import combinations

import numpy as np
import pytest

from tasks.statistics.noise_floor import noise_floor
from tests.tasks.statistics.simulation import noise_cell


def test_flip_rate_is_the_share_of_prompts_that_differ_between_two_runs() -> None:
    runs = np.random.Generator(np.random.Philox(1)).random((5, 40)) < 0.3
    floor = noise_floor(runs.tolist())
    pairs = list(combinations(runs, 2))
    assert floor.flip_rate == pytest.approx(
        sum(float(np.mean(one != other)) for one, other in pairs) / len(pairs)
    )
    assert (floor.seeds, floor.n, floor.mean) == (5, 40, pytest.approx(runs.mean()))
    assert floor.sd == pytest.approx(math.sqrt(floor.flip_rate / 80))


def test_two_runs_are_enough() -> None:
    """3 of 8 prompts flip: f = 0.375, and the bound is 1.96 sqrt(3 + 2) / (8 + 2) = 0.438."""
    floor = noise_floor([[True] * 4 + [False] * 4, [True] * 3 + [False] * 3 + [True] * 2])
    assert floor.flip_rate == 0.375
    assert floor.bound == pytest.approx(0.4383, abs=1e-4)


def test_runs_without_a_flip_have_a_bound() -> None:
    floor = noise_floor([[True, False] * 50] * 3)
    assert (floor.flip_rate, floor.sd) == (0, 0)
    assert floor.bound == pytest.approx(1.96 * math.sqrt(2) / 102, rel=1e-4)


@pytest.mark.parametrize("seeds", [2, 5])
def test_flip_rate_is_unbiased_and_the_bound_holds_95_times_in_100(seeds: int) -> None:
    true, estimated, held = noise_cell(200, seeds, trials=1500)
    assert estimated == pytest.approx(true, rel=0.01)
    assert 0.93 <= held <= 0.97


@pytest.mark.parametrize("runs", [[], [[True]], [[], []], [[True, False], [True]]])
def test_what_is_no_two_runs_of_the_same_prompts_is_refused(runs: list[list[bool]]) -> None:
    with pytest.raises(ValueError, match="noise shows between two or more runs"):
        noise_floor(runs)
