"""The budget of a teacher or a judge behind an API, and its spending.

A request is sent only if the money spent, the most that requests in flight can cost, and the most
that this one can cost fit into the budget together. So the budget is never exceeded, whatever the
answers. Spent are:

- the usage that the server reports;
- where it reports none: a byte of text as a token, for the prompt (and what a chat template adds)
  and for the response;
- a request whose answer never arrived whole (time-out, connection lost, a body that is no JSON):
  the most it can cost, because the provider may bill it. Errors that a provider answers (429, 5xx,
  4xx) cost nothing.

Stored answers have their cost and the account that paid. When the same account finds one again,
after a kill, it counts as spent, so that a killed stage has one budget instead of one per start;
for every other account it is free.
"""

from dataclasses import dataclass
from operator import add, sub
from typing import NamedTuple, Self

from pydantic import Field, model_validator

from schemas.base import InputError, StrictModel
from tasks.chat.request import LIMITS, ChatRequest

_ROUNDING = 1e-9
"""Dollars by which sums of floating-point numbers in another order may differ."""


@dataclass(frozen=True)
class Prices:
    """US dollars per million tokens."""

    input: float = 0.0
    output: float = 0.0

    def usd(self, input_tokens: int, output_tokens: int) -> float:
        return (input_tokens * self.input + output_tokens * self.output) / 1e6


class PricedInput(StrictModel):
    """The fields of a config that asks an API and pays for what that reads.

    Attributes:
        input_usd_per_million: the provider's price per million tokens.
        max_usd: the budget. None: no limit.
    """

    input_usd_per_million: float = Field(default=0.0, ge=0)
    max_usd: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _a_budget_has_prices(self) -> Self:
        if self.max_usd is not None and not self.prices.usd(1, 1):
            needed = [one for one in type(self).model_fields if one.endswith("_usd_per_million")]
            raise ValueError(
                f"max_usd needs {' and '.join(needed)}; without prices nothing costs anything"
            )
        return self

    @property
    def prices(self) -> Prices:
        return Prices(self.input_usd_per_million)


class Priced(PricedInput):
    """The same of an API that writes, too, at a price of its own."""

    output_usd_per_million: float = Field(default=0.0, ge=0)

    @property
    def prices(self) -> Prices:
        return Prices(self.input_usd_per_million, self.output_usd_per_million)


class Cost(NamedTuple):
    """Tokens and dollars."""

    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":  # type: ignore[override]
        return Cost(*map(add, self, other))

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(*map(sub, self, other))

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class Budget:
    """The most that may be spent, in dollars and in tokens; None: no limit.

    Args:
        before_usd, before_tokens: the part that earlier requests have spent.
        account: who pays: the same for a stage and for its continuation after a kill.

    Attributes:
        spent: what this account has spent.
        in_flight: the most that requests under way can cost.
        closed: whether a request did not fit, so that none is sent any more.
    """

    def __init__(
        self,
        max_usd: float | None = None,
        max_tokens: int | None = None,
        *,
        before_usd: float = 0.0,
        before_tokens: int = 0,
        account: str = "",
    ) -> None:
        self.account = account
        self.spent = self.in_flight = Cost()
        self.closed = False
        self._limited = max_usd is not None or max_tokens is not None
        self._usd = float("inf") if max_usd is None else max_usd - before_usd
        self._tokens = float("inf") if max_tokens is None else max_tokens - before_tokens

    def worst(self, request: ChatRequest, prices: Prices, max_tokens: int | None = None) -> Cost:
        """The most that one attempt can cost. Raises InputError: there is a limit, and the request
        does not bound its response."""
        most = max_tokens or request.max_tokens
        if most is None:
            if self._limited:
                raise InputError(
                    "a budget needs requests with a bound: set one of the parameters"
                    f" {', '.join(LIMITS)}."
                )
            most = 0
        return Cost(request.most_input_tokens, most, prices.usd(request.most_input_tokens, most))

    def reserve(self, most: Cost) -> bool:
        """Reserve the most that a request may cost; returns False, and reserves nothing, if that
        does not fit."""
        total = self.spent + self.in_flight + most
        if total.usd > self._usd + _ROUNDING or total.tokens > self._tokens:
            return False
        self.in_flight += most
        return True

    def count_on(self, usd: float) -> None:
        """Count at least what an earlier attempt had spent. What it paid for and this one does not
        ask again is found in no store."""
        self.spent = self.spent._replace(usd=max(self.spent.usd, usd))

    def settle(self, reserved: Cost, actual: Cost) -> None:
        """Replace a request's reservation by its cost."""
        self.in_flight -= reserved
        self.spent += actual
