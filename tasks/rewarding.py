"""Combining a stage's rewards: a weighted mean in which an abstention gives up its weight, completion by completion.

    total_i = sum_j w_j r_ij / sum_j w_j      over the rewards j that did not abstain on completion i

(the explicit aggregation of Rubrics as Rewards, 2507.17746). A completion on which every reward abstained has no total; it takes no part
in its group. NaN marks an abstention in the arrays here; a reward that returns NaN itself is refused.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np

from schemas.base import InputError
from schemas.examples import Prompt
from tasks.plugins import parse_plugin, plugin_module


class RewardConfig(Protocol):
    """What every reward's Config has."""

    @property
    def name(self) -> str: ...

    @property
    def weight(self) -> float: ...

    def model_dump(self, *, mode: str) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Rewards:
    """Scores of N completions.

    Attributes:
        components: reward name -> (N,) float64, NaN where that reward abstained.
        total: (N,) float64 weighted means, NaN where every reward abstained.
    """

    components: dict[str, np.ndarray]
    total: np.ndarray


def parse_rewards(tables: Sequence[dict[str, Any]], where: str) -> list[RewardConfig]:
    """Validate a stage's reward tables, e.g. `{name = "format", weight = 0.2}`.

    Raises:
        InputError: an unknown reward, a reward named twice, or a table that its Config refuses.
    """
    configs = [cast(RewardConfig, parse_plugin("rewards", table, f"{where}.{index}")) for index, table in enumerate(tables)]
    names = [config.name for config in configs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"{where}: reward {twice[0]!r} is listed {names.count(twice[0])} times; list it once and set its weight.")
    return configs


def score_completions(configs: Sequence[RewardConfig], prompts: list[Prompt], completions: list[str]) -> Rewards:
    """Score every completion with every reward and combine them.

    Args:
        configs: from `parse_rewards`.
        prompts: N prompts; prompt i is what completion i answers.
        completions: N decoded responses without the terminator.

    Raises:
        ValueError: the lengths differ, or a reward broke its contract: not one value per completion, or a value that is no finite number.
    """
    if len(prompts) != len(completions):
        raise ValueError(f"{len(prompts)} prompts and {len(completions)} completions; every completion needs its own prompt")
    components = {}
    for config in configs:
        values = plugin_module("rewards", config.name).score(config, prompts, completions)
        components[config.name] = _checked(config.name, values, len(completions))
    weights = np.asarray([config.weight for config in configs])
    return Rewards(components, weighted_mean(np.stack(list(components.values())), weights))


def weighted_mean(components: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(J, N) components, NaN for abstentions, and (J,) weights -> (N,) means over what did not abstain, NaN where everything did."""
    if components.ndim != 2 or weights.shape != components.shape[:1]:
        raise ValueError(f"components {components.shape} need one weight for each of their rows; got weights {weights.shape}")
    given = ~np.isnan(components)
    total_weight = weights @ given
    weighted = weights @ np.where(given, components, 0.0)
    return np.where(total_weight > 0, weighted / np.where(total_weight > 0, total_weight, 1.0), np.nan)


def _checked(name: str, values: Any, count: int) -> np.ndarray:
    """(count,) float64 of what a reward returned. A list of another length, one element included, is an error: nothing is broadcast."""
    if not isinstance(values, list) or len(values) != count:
        got = f"{len(values)} values" if isinstance(values, list) else f"a {type(values).__name__}"
        raise ValueError(f"reward {name!r} returned {got} for {count} completions; it must return a list with one value for each")
    for index, value in enumerate(values):
        if value is not None and (not isinstance(value, int | float) or not math.isfinite(value)):
            raise ValueError(f"reward {name!r} returned {value!r} for completion {index}; a reward is a finite number, or None to abstain")
    return np.asarray([np.nan if value is None else value for value in values], np.float64)
