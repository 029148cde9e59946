"""The contract of a reward: one `REWARD = Reward(...)` in a file of `tasks/rewards/`, its arguments
and results."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, Self, TypeVar

from pydantic import (
    Field,
    TypeAdapter,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from infra.store.answers import Answers
from schemas.base import StrictModel
from schemas.examples import Domain, Prompt
from tasks.contract.plugins import Configured, Family

if TYPE_CHECKING:
    from tasks.models.loading import LoadedModel
    from tasks.planning.programs import Program

    Programs = Callable[["RewardConfigT", LoadedModel, float, Mapping[str, Any]], list[Program]]


class Response(NamedTuple):
    """A response to score: its text without the terminator, its length in tokens with it, and
    whether it was truncated."""

    text: str
    tokens: int = 0
    truncated: bool = False


class Judged(NamedTuple):
    """A value (None: abstained) with details for the ledger, as JSON: criteria, ratings, the
    judge's words."""

    value: float | None
    detail: dict[str, Any]


class Anneal(StrictModel):
    """A number that changes with the update (from 1): `start` until `from_step`, `end` from
    `to_step`, linear between.

    With `from_step` equal to `to_step` it jumps there: `start` before that update, `end` from it
    on.
    """

    start: float = Field(ge=0)
    end: float = Field(ge=0)
    from_step: int = Field(default=1, ge=1)
    to_step: int = Field(ge=1)

    @model_validator(mode="after")
    def _changes(self) -> Self:
        if self.to_step < self.from_step:
            raise ValueError(
                f"to_step {self.to_step} lies before from_step {self.from_step}; swap them"
            )
        if self.start == self.end:
            raise ValueError(
                f"start and end are both {self.start}; write that number in place of the table"
            )
        return self

    def at(self, update: int) -> float:
        """The number at an update."""
        if update >= self.to_step:
            return self.end
        share = max(0, update - self.from_step) / max(1, self.to_step - self.from_step)
        return self.start + share * (self.end - self.start)


def _by_form(number: Any) -> WrapValidator:
    """Validate a number or an `Anneal` by the form in which it is written, so that a message is
    about that form only."""
    alone = TypeAdapter(Annotated[number, Field(strict=True, allow_inf_nan=False)])

    def validate(value: Any, both: ValidatorFunctionWrapHandler) -> Any:
        if isinstance(value, Anneal):
            return both(value)
        return (
            Anneal.model_validate(value)
            if isinstance(value, dict)
            else alone.validate_python(value)
        )

    return WrapValidator(validate)


_Positive = Annotated[float, Field(gt=0)]
_NotNegative = Annotated[float, Field(ge=0)]
Weight = Annotated[_Positive | Anneal, _by_form(_Positive)]
"""A weight above 0, or an annealed one; while it is 0 the reward is not asked."""
Factor = Annotated[_NotNegative | Anneal, _by_form(_NotNegative)]
"""A factor of 0 or more, or an annealed one."""


class RewardConfig(StrictModel):
    """The fields of every reward's Config.

    Attributes:
        name: the reward's file.
        weight: relative to the stage's other rewards; a number, or annealed.
        domains: factors of the weight by the prompt's domain; 0 for a domain that is not named.
            None: 1 for all.
    """

    name: str
    weight: Weight = 1.0
    domains: dict[Domain, _NotNegative] | None = None

    @field_validator("domains")
    @classmethod
    def _some_domain(cls, value: dict[Domain, float] | None) -> dict[Domain, float] | None:
        if value is not None and not any(factor > 0 for factor in value.values()):
            raise ValueError(
                "no domain has a factor above 0, so this reward would never be asked; name one or"
                " remove the reward"
            )
        return value

    def weight_of(self, prompt: Prompt, update: int) -> float:
        """The weight on a response to `prompt` at an update (from 1)."""
        weight = self.weight.at(update) if isinstance(self.weight, Anneal) else self.weight
        return weight if self.domains is None else weight * self.domains.get(prompt.domain, 0.0)


@dataclass(frozen=True)
class Resources:
    """The resources that a reward may need beside prompts and responses.

    Attributes:
        inputs: input name -> directory of its artifact; `prompts` has train.jsonl and
            prompts.jsonl.
        answers: paid answers of judges, in the store.
        seed: the stage's.
        response_length: the fixed length of responses in tokens.
        devices: those that the policy does not use (`tasks.devices.hosts.halves`), for a judge in
            this process; None: none.
    """

    inputs: Mapping[str, Path]
    answers: Answers
    seed: int = 0
    response_length: int = 0
    devices: Sequence[Any] | None = None
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("lyceum"))


RewardConfigT = TypeVar("RewardConfigT", bound=RewardConfig)
PreparedT = TypeVar("PreparedT")


def _as_it_is(config: Any, _: Any) -> Any:
    return config


def _never(config: Any) -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class Reward(Configured[RewardConfigT], Generic[RewardConfigT, PreparedT]):
    """A reward. It is scored in threads, for two rollouts at once.

    Attributes:
        score: one value per response, in order: a finite number, or None to abstain; or `Judged`,
            with details for the ledger. Response i answers prompt i. A response that cannot be
            judged (no reference answer, a judge that does not answer) is an abstention, never a
            zero.
        prepare: called once per job: fits, loads, connects. Its result is the first argument of
            `score`.
        at: the prepared object for an update (from 1).
        values: its counts so far, such as a judge's questions and their cost.
        count_on: take over the `values` of the attempt that this one continues, so that a budget is
            one over all attempts.
        close: closes the prepared object.
        dependencies: what else decides its values, given the config and `--data`: versions of
            packages, of checks, of models.
        foresee: raises InputError if a stage with this reward is bound to fail, given the configs
            of the stages that feed its inputs, and the length of its responses in tokens.
        models: base models that it loads (`tasks.models.model_source`): they are sent to a TPU.
        computes: whether it computes on devices: then it has one half of them, and the policy the
            other.
        programs: what it compiles to score so many responses, given the config, a model on the
            second half of the devices (`tasks.devices.hosts.halves`), the number of responses, and
            the configs of the stage's inputs. None: nothing.
    """

    score: Callable[
        [PreparedT, Sequence[Prompt], Sequence[Response]], Sequence[float | Judged | None]
    ]
    prepare: Callable[[RewardConfigT, Resources], PreparedT] = _as_it_is
    at: Callable[[PreparedT, int], PreparedT] = _as_it_is
    values: Callable[[PreparedT], dict[str, float]] = field(default=lambda prepared: {})
    count_on: Callable[[PreparedT, Mapping[str, float]], None] = field(
        default=lambda prepared, values: None
    )
    close: Callable[[PreparedT], None] = field(default=lambda prepared: None)
    dependencies: Callable[[RewardConfigT, Path | None], dict[str, str | int]] = field(
        default=lambda config, data: {}
    )
    foresee: Callable[[RewardConfigT, Mapping[str, Any], int], None] = field(
        default=lambda config, inputs, response_length: None
    )
    models: Callable[[RewardConfigT], tuple[str, ...]] = field(default=lambda config: ())
    computes: Callable[[RewardConfigT], bool] = _never
    programs: "Programs[RewardConfigT] | None" = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not issubclass(self.config, RewardConfig):
            raise TypeError(
                f"the config of a reward is a class of RewardConfig, not {self.config.__name__}"
            )
        if (self.programs is None) != (self.computes is _never):
            raise TypeError("a reward has programs if, and only if, it says when it computes")


def each(
    value: Callable[[PreparedT, Prompt, Response], float | Judged | None],
) -> Callable[[PreparedT, Sequence[Prompt], Sequence[Response]], list[float | Judged | None]]:
    """The `score` of a reward that values every response by itself."""
    return lambda prepared, prompts, responses: [
        value(prepared, *pair) for pair in zip(prompts, responses, strict=True)
    ]


REWARDS: Family[Reward[Any, Any]] = Family("tasks.rewards", Reward)
