"""Combining a stage's rewards: a weighted mean in which an abstention gives up its weight, response by response.

    total_i = sum_j w_ij r_ij / sum_j w_ij      over the rewards j that did not abstain on response i

(the explicit aggregation of Rubrics as Rewards, 2507.17746). w_ij is reward j's weight at this update times that of the domain of prompt i;
where it is 0 the reward is not asked. A response on which every reward abstained has no total; it takes no part in its group. NaN marks an
abstention in the arrays here; a reward that returns NaN itself is refused.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self, cast

import numpy as np
from pydantic import Field, TypeAdapter, ValidatorFunctionWrapHandler, WrapValidator, field_validator, model_validator

from infra.store.answers import Answers
from schemas.base import InputError, StrictModel
from schemas.examples import Domain, Prompt
from tasks.contract.plugins import parse_plugin, plugin_module


class Response(NamedTuple):
    """A response to be scored: its text without the terminator, its length in tokens with it, and whether it was cut off before one."""

    text: str
    tokens: int = 0
    truncated: bool = False


class Judged(NamedTuple):
    """A value (None: abstained) with what the ledger keeps of it, as JSON: criteria, ratings, the judge's words."""

    value: float | None
    detail: dict[str, Any]


class Anneal(StrictModel):
    """A number that changes: `start` until update `from_step`, `end` from update `to_step` on, linear between. Updates count from 1.

    With `from_step` equal to `to_step` it is a step: `start` before that update, `end` from it on.
    """

    start: float = Field(ge=0)
    end: float = Field(ge=0)
    from_step: int = Field(default=1, ge=1)
    to_step: int = Field(ge=1)

    @model_validator(mode="after")
    def _changes(self) -> Self:
        if self.to_step < self.from_step:
            raise ValueError(f"to_step {self.to_step} lies before from_step {self.from_step}; swap them")
        if self.start == self.end:
            raise ValueError(f"start and end are both {self.start}; write that number in place of the table")
        return self

    def at(self, update: int) -> float:
        """The number at an update."""
        if update >= self.to_step:
            return self.end
        share = max(0, update - self.from_step) / max(1, self.to_step - self.from_step)
        return self.start + share * (self.end - self.start)


def _by_form(number: Any) -> WrapValidator:
    """Judge a number or an `Anneal` by what it looks like, so that a message is about what was written and not about the other form too."""
    alone = TypeAdapter(Annotated[number, Field(strict=True, allow_inf_nan=False)])

    def validate(value: Any, both: ValidatorFunctionWrapHandler) -> Any:
        if isinstance(value, Anneal):
            return both(value)
        return Anneal.model_validate(value) if isinstance(value, dict) else alone.validate_python(value)

    return WrapValidator(validate)


_Positive = Annotated[float, Field(gt=0)]
_NotNegative = Annotated[float, Field(ge=0)]
Weight = Annotated[_Positive | Anneal, _by_form(_Positive)]
"""A weight above 0, or one that is annealed; where it is 0 the reward is not asked."""
Factor = Annotated[_NotNegative | Anneal, _by_form(_NotNegative)]
"""A factor from 0, or one that is annealed."""


class RewardConfig(StrictModel):
    """What the Config of every reward has.

    Attributes:
        name: the reward's file.
        weight: among the other rewards of the stage; a number, or one that is annealed.
        domains: factors of the weight by the prompt's domain; a domain that is not named has none. Without it all have 1.
    """

    name: str
    weight: Weight = 1.0
    domains: dict[Domain, _NotNegative] | None = None

    @field_validator("domains")
    @classmethod
    def _some_domain(cls, value: dict[Domain, float] | None) -> dict[Domain, float] | None:
        if value is not None and not any(factor > 0 for factor in value.values()):
            raise ValueError("no domain has a factor above 0, so this reward would never be asked; name one or remove the reward")
        return value

    def weight_of(self, prompt: Prompt, update: int) -> float:
        """The weight on a response to `prompt` at an update (from 1)."""
        weight = self.weight.at(update) if isinstance(self.weight, Anneal) else self.weight
        return weight if self.domains is None else weight * self.domains.get(prompt.domain, 0.0)


@dataclass(frozen=True)
class Resources:
    """What a reward may need beside prompts and responses.

    Attributes:
        inputs: input name -> directory of its artifact; `prompts` has train.jsonl and prompts.jsonl.
        answers: paid answers of judges, in the store.
        seed: the stage's.
        response_length: the fixed length of responses in tokens.
        devices: those that the policy does not use (`tasks.devices.hosts.halves`), for a judge in this process; None: this stage has none.
    """

    inputs: Mapping[str, Path]
    answers: Answers
    seed: int = 0
    response_length: int = 0
    devices: Sequence[Any] | None = None
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("lyceum"))


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


class Scorer:
    """The rewards of a stage, ready to score. Scores are made in a thread, so that whoever asks can go on meanwhile."""

    def __init__(self, configs: Sequence[RewardConfig], resources: Resources) -> None:
        """Prepare all rewards. Raises what a reward's `prepare` raises (InputError); then those prepared before it are closed."""
        self.configs = list(configs)
        self._prepared: dict[str, Any] = {}
        # Two requests at the same time, of which the slow rewards do not keep the quick ones waiting.
        self._threads = ThreadPoolExecutor(2 * max(1, len(self.configs)), thread_name_prefix="reward")
        self._waiting = ThreadPoolExecutor(thread_name_prefix="rewards")
        try:
            for config in configs:
                module = plugin_module("rewards", config.name)
                self._prepared[config.name] = module.prepare(config, resources) if hasattr(module, "prepare") else config
        except BaseException:
            self.close()
            raise

    def submit(self, prompts: Sequence[Prompt], responses: Sequence[Response], update: int) -> "Future[Rewards]":
        """Begin to score N responses, response i to prompt i, with the weights of `update`; all rewards at the same time.

        The future raises ValueError when a reward breaks its contract: not one value per response, or one that is no finite number.
        """
        if len(prompts) != len(responses):
            raise ValueError(f"{len(prompts)} prompts and {len(responses)} responses; every response needs its own prompt")
        asked = {config.name: self._threads.submit(self._component, config, prompts, responses, update) for config in self.configs}
        return self._waiting.submit(lambda: self._combined({name: one.result() for name, one in asked.items()}, prompts, update))

    def score(self, prompts: Sequence[Prompt], responses: Sequence[Response], update: int = 1) -> Rewards:
        """`submit`, and wait."""
        return self.submit(prompts, responses, update).result()

    def values(self) -> dict[str, dict[str, float]]:
        """What rewards have counted so far, e.g. a judge its questions and its cost: name -> `values()` of what was prepared."""
        return {name: prepared.values() for name, prepared in self._prepared.items() if hasattr(prepared, "values")}

    def close(self) -> None:
        """End what the rewards hold; first, so that scores which wait for an endpoint end, too, when a stage is stopped."""
        for threads in (self._waiting, self._threads):
            threads.shutdown(wait=False, cancel_futures=True)
        for prepared in self._prepared.values():
            if hasattr(prepared, "close"):
                prepared.close()
        for threads in (self._waiting, self._threads):
            threads.shutdown()

    def _component(
        self, config: RewardConfig, prompts: Sequence[Prompt], responses: Sequence[Response], update: int
    ) -> tuple[np.ndarray, list[dict[str, Any]]]:
        """(N,) values, NaN where it abstains or is not asked, and N details."""
        asked = [index for index, prompt in enumerate(prompts) if config.weight_of(prompt, update) > 0]
        values, details = np.full(len(prompts), np.nan), [dict[str, Any]() for _ in prompts]
        if asked:
            score, prepared = plugin_module("rewards", config.name).score, self._prepared[config.name]
            if hasattr(prepared, "at"):
                prepared = prepared.at(update)
            given = score(prepared, [prompts[index] for index in asked], [responses[index] for index in asked])
            values[asked] = _checked(config.name, given, len(asked))
            for index, value in zip(asked, given, strict=True):
                if isinstance(value, Judged):
                    details[index] = value.detail
        return values, details

    def _combined(self, found: Mapping[str, tuple[np.ndarray, list[dict[str, Any]]]], prompts: Sequence[Prompt], update: int) -> Rewards:
        components = {name: values for name, (values, _) in found.items()}
        details = {name: of_each for name, (_, of_each) in found.items() if any(of_each)}
        return Rewards(components, combine(self.configs, components, prompts, update), details)


def combine(configs: Sequence[RewardConfig], components: Mapping[str, np.ndarray], prompts: Sequence[Prompt], update: int) -> np.ndarray:
    """(N,) totals of (N,) components by name, with the weights of `update`."""
    weights = np.asarray([[config.weight_of(prompt, update) for prompt in prompts] for config in configs])
    return weighted_mean(np.stack([components[config.name] for config in configs]), weights)


def weighted_mean(components: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(J, N) components, NaN for abstentions, and (J, N) weights -> (N,) means over what did not abstain, NaN where everything did."""
    if components.ndim != 2 or weights.shape != components.shape:
        raise ValueError(f"components {components.shape} need one weight each; got weights {weights.shape}")
    given = ~np.isnan(components)
    total_weight = np.sum(weights * given, axis=0)
    weighted = np.sum(weights * np.where(given, components, 0.0), axis=0)
    return np.where(total_weight > 0, weighted / np.where(total_weight > 0, total_weight, 1.0), np.nan)


def _checked(name: str, values: Any, count: int) -> np.ndarray:
    """(count,) float64 of what a reward returned. A list of another length, one element included, is an error: nothing is broadcast."""
    if not isinstance(values, list) or len(values) != count:
        got = f"{len(values)} values" if isinstance(values, list) else f"a {type(values).__name__}"
        raise ValueError(f"reward {name!r} returned {got} for {count} responses; it must return a list with one value for each")
    numbers = [value.value if isinstance(value, Judged) else value for value in values]
    for index, value in enumerate(numbers):
        if value is not None and (not isinstance(value, int | float) or not math.isfinite(value)):
            raise ValueError(f"reward {name!r} returned {value!r} for response {index}; a reward is a finite number, or None to abstain")
    return np.asarray([np.nan if value is None else value for value in numbers], np.float64)
