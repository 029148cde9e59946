"""A recipe under several seeds: what the runs share, by their keys, and what is refused."""

import pytest

from flows.recipe.resolve import resolve
from flows.recipe.seeds import check_seeds, overrides_by_seed, shared_stages
from schemas.base import InputError


def test_data_is_shared_and_whatever_trains_or_asks_a_model_is_not() -> None:
    resolved = resolve("quickstart")
    shared = ["distill", "rebalance", "problems", "practice"]
    assert shared_stages(resolved) == shared
    given = overrides_by_seed(resolved, 3)
    found = {seed: resolve("quickstart", overrides) for seed, overrides in given.items()}
    assert list(found) == [7, 8, 9]
    for stage in resolved.stages:
        keys = {seed: one.stage(stage.name).key({}) for seed, one in found.items()}
        assert keys[7] == stage.key({}), "the first run is the recipe itself"
        differing = 1 if stage.name in shared else 3
        assert len({*keys.values()}) == differing, stage.name


def test_overrides_of_all_runs_come_first() -> None:
    """A seed that is set is where the count begins; data keep the one that they were given."""
    given = ("seed=20", "stages.rebalance.config.seed=5")
    own = overrides_by_seed(resolve("quickstart", given), 2)
    assert list(own) == [20, 21]
    second = resolve("quickstart", (*given, *own[21]))
    seeds = {stage.name: stage.config_json["seed"] for stage in second.stages}
    assert (seeds["distill"], seeds["rebalance"], seeds["sft"]) == (20, 5, 21)


@pytest.mark.parametrize("count", [-3, 0, 1, 101, 10**9])
def test_a_number_that_makes_no_interval_is_refused(count: int) -> None:
    with pytest.raises(InputError, match=f"--seeds {count}: give 2 to 100"):
        check_seeds(count)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("stages.sft.config.seed=3",), "stages.sft.config.seed = 3 is the stage's own"),
        (("defaults.simpo.seed=3",), "stages.simpo.config.seed = 3 is the stage's own"),
        (("seed=2147483646",), "the last seed would be 2147483648"),
    ],
)
def test_seeds_that_could_not_differ_are_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        overrides_by_seed(resolve("quickstart", overrides), 3)
