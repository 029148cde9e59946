"""Combining a stage's rewards: a weighted mean in which an abstention moves nothing.

    total_i = sum_j w_ij r_ij / sum_j w_ij      over the rewards j that did not abstain on all
                                                responses to i's prompt

(the explicit aggregation of Rubrics as Rewards, 2507.17746). w_ij is reward j's weight at this
update times that of prompt i's domain; a reward with weight 0 is not asked. Where a reward
abstained on response i but not on others to its prompt, r_ij is the mean of theirs: if it dropped
out, a response that makes a judge fail would be paid what its other rewards pay. A response on
which every reward abstained has no total and takes no part in its group. NaN marks an abstention in
the arrays here, as NumPy makes of None; a reward that returns NaN itself is refused.
"""

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Self

import numpy as np

from schemas.base import InputError
from schemas.examples import Prompt
from tasks.contract.plugins import naming
from tasks.contract.reward import REWARDS, Judged, Resources, Response, RewardConfig
from tasks.devices.hosts import agree


@dataclass(frozen=True)
class Rewards:
    """Scores of N responses.

    Attributes:
        components: reward name -> (N,) float64, NaN where that reward abstained.
        total: (N,) float64 weighted means, NaN where every reward abstained.
        details: reward name -> N details; only of rewards that gave any.
    """

    components: dict[str, np.ndarray]
    total: np.ndarray
    details: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @classmethod
    def of_ledger(cls, rows: Sequence[Mapping[str, Any]]) -> Self:
        """Read them from a rollout's rows of the ledger."""
        names = list(rows[0]["rewards"])
        components = {
            name: np.array([row["rewards"][name] for row in rows], np.float64) for name in names
        }
        details = {name: [row["details"].get(name, {}) for row in rows] for name in names}
        given = {name: of_each for name, of_each in details.items() if any(of_each)}
        return cls(components, np.array([row["reward"] for row in rows], np.float64), given)


def parse_rewards(tables: Sequence[dict[str, Any]], where: str) -> list[RewardConfig]:
    """Validate a stage's reward tables, e.g. `{name = "format", weight = 0.2}`.

    Raises:
        InputError: an unknown reward, a reward named twice, or a table that its Config refuses.
    """
    configs = [REWARDS.parse(table, f"{where}.{index}") for index, table in enumerate(tables)]
    names = [config.name for config in configs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        fix = "list it once and set its weight"
        if twice[0] == "function":
            fix = "write one function that calls the others"
        raise InputError(
            f"{where}: reward {twice[0]!r} is listed {names.count(twice[0])} times; {fix}."
        )
    return configs


class Scorer:
    """The prepared rewards of a stage. Scoring runs in threads, beside the caller."""

    def __init__(self, configs: Sequence[RewardConfig], resources: Resources) -> None:
        """Prepare all rewards. Raises what a reward's `prepare` raises (InputError), after closing
        those that were prepared before it."""
        self.configs = list(configs)
        self._prepared: dict[str, Any] = {}
        # two requests at a time, so that slow rewards do not hold up quick ones
        self._threads = ThreadPoolExecutor(2 * max(1, len(configs)), thread_name_prefix="reward")
        self._waiting = ThreadPoolExecutor(thread_name_prefix="rewards")
        try:
            for config in configs:
                with naming(f"reward {config.name!r}"):
                    self._prepared[config.name] = REWARDS[config.name].prepare(config, resources)
        except BaseException:
            self.close()
            raise

    def submit(
        self, prompts: Sequence[Prompt], responses: Sequence[Response], update: int
    ) -> "Future[Rewards]":
        """Start to score N responses, response i to prompt i, with the weights of `update`; all
        rewards run at the same time.

        The future raises ValueError when a reward breaks its contract: it must return one finite
        number, or None, per response.
        """
        if len(prompts) != len(responses):
            raise ValueError(
                f"{len(prompts)} prompts and {len(responses)} responses; every response needs its"
                " own prompt"
            )
        asked = {
            config.name: self._threads.submit(self._component, config, prompts, responses, update)
            for config in self.configs
        }

        def combined() -> Rewards:
            found = {name: one.result() for name, one in asked.items()}
            components = {name: values for name, (values, _) in found.items()}
            details = {name: of_each for name, (_, of_each) in found.items() if any(of_each)}
            total = combine(self.configs, components, prompts, update)
            return Rewards(components, total, details)

        return self._waiting.submit(combined)

    def score(
        self, prompts: Sequence[Prompt], responses: Sequence[Response], update: int = 1
    ) -> Rewards:
        """`submit`, and wait for the result."""
        return self.submit(prompts, responses, update).result()

    def components(
        self,
        configs: Sequence[RewardConfig],
        prompts: Sequence[Prompt],
        responses: Sequence[Response],
        update: int,
    ) -> dict[str, list[float]]:
        """The N values of some of the rewards at an update, NaN where one abstains or is not
        asked."""
        return {
            config.name: self._component(config, prompts, responses, update)[0].tolist()
            for config in configs
        }

    def values(self) -> dict[str, dict[str, float]]:
        """The counts of rewards so far, e.g. a judge's questions and their cost: name ->
        `Reward.values`, where there are any."""
        counted = {name: REWARDS[name].values(one) for name, one in self._prepared.items()}
        return {name: values for name, values in counted.items() if values}

    def count_on(self, values: Mapping[str, Mapping[str, float]]) -> None:
        """Take over the `values` of the attempt that this one continues."""
        for name, counted in values.items():
            REWARDS[name].count_on(self._prepared[name], counted)

    def close(self) -> None:
        """Close the rewards, before their threads end, so that scores that wait for an endpoint
        end, too, when a stage is stopped."""
        for threads in (self._waiting, self._threads):
            threads.shutdown(wait=False, cancel_futures=True)
        for name, prepared in self._prepared.items():
            REWARDS[name].close(prepared)
        for threads in (self._waiting, self._threads):
            threads.shutdown()

    def _component(
        self,
        config: RewardConfig,
        prompts: Sequence[Prompt],
        responses: Sequence[Response],
        update: int,
    ) -> tuple[np.ndarray, list[dict[str, Any]]]:
        """(N,) values, NaN where the reward abstains or is not asked, and N details."""
        asked = [place for place, one in enumerate(prompts) if config.weight_of(one, update) > 0]
        values, details = np.full(len(prompts), np.nan), [dict[str, Any]() for _ in prompts]
        if asked:
            reward = REWARDS[config.name]
            with naming(f"reward {config.name!r}"):
                given = reward.score(
                    reward.at(self._prepared[config.name], update),
                    [prompts[place] for place in asked],
                    [responses[place] for place in asked],
                )
            values[asked] = _checked(config.name, given, len(asked))
            for place, value in zip(asked, given, strict=True):
                details[place] = value.detail if isinstance(value, Judged) else {}
        return values, details


def combine(
    configs: Sequence[RewardConfig],
    components: Mapping[str, np.ndarray],
    prompts: Sequence[Prompt],
    update: int,
) -> np.ndarray:
    """(N,) totals of (N,) components by name, with the weights of `update`; NaN where every reward
    abstained."""
    weights = [[config.weight_of(prompt, update) for prompt in prompts] for config in configs]
    given = np.ma.masked_invalid([components[config.name] for config in configs])
    silent, ids = np.ma.getmaskarray(given).all(axis=0), np.array([one.id for one in prompts])
    for group in (ids == one for one in np.unique(ids)):
        ruled = given[:, group]
        means = ruled.mean(axis=1, keepdims=True)
        given[:, group] = np.ma.where(np.ma.getmaskarray(ruled), means, ruled)
    totals = np.ma.average(given, axis=0, weights=np.asarray(weights))
    return np.where(silent, np.nan, np.ma.filled(totals, np.nan))


def agreed(rewards: Rewards | None) -> Rewards:
    """Give host 0's rewards to every host; their details stay on host 0."""
    told = None
    if rewards is not None:
        components = {name: values.tolist() for name, values in rewards.components.items()}
        told = (components, rewards.total.tolist())
    found = agree(told)
    assert found is not None
    arrays = {name: np.array(values, np.float64) for name, values in found[0].items()}
    return rewards or Rewards(arrays, np.array(found[1], np.float64))


def _checked(name: str, values: Any, count: int) -> np.ndarray:
    """Convert what a reward returned to (count,) float64. A list of another length, even of one
    element, is an error: nothing is broadcast."""
    if not isinstance(values, list) or len(values) != count:
        got = f"{len(values)} values" if isinstance(values, list) else f"a {type(values).__name__}"
        raise ValueError(
            f"reward {name!r} returned {got} for {count} responses; it must return a list with one"
            " value for each"
        )
    numbers = [value.value if isinstance(value, Judged) else value for value in values]
    for index, value in enumerate(numbers):
        if value is not None and (not isinstance(value, Real) or not math.isfinite(value)):
            raise ValueError(
                f"reward {name!r} returned {value!r} for response {index}; a reward is a finite"
                " number, or None to abstain"
            )
    return np.array(numbers, np.float64)


def responses_of(completions: Sequence[Any]) -> list[Response]:
    """Sampled completions (`tasks.sampling.sampler.Completion`), as rewards see them."""
    return [Response(one.text, len(one.tokens), not one.terminated) for one in completions]
