"""Metric functions of your own, in the signature of reward functions (`tasks.contract.function`),
each called once with all greedy answers of an evaluation.

    metrics = [{ name = "function", path = "mine.py:brevity" }]

A metric is named after its function, and higher is better. Each answer's values are stored with it
(`EvalItem.measured`). The metrics have, overall, by domain and by suite, `functions`: name ->
`{mean, mean_low, mean_high, n}` of the `n` answers on which it did not abstain, with a 95 %
interval (`tasks.statistics.means`); and, where a baseline has the same metric, `{delta, delta_low,
delta_high, delta_p}` over the prompts that have a value in both; `seed` draws the p-value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from schemas.base import InputError
from schemas.evaluation import EvalItem, EvalPrompt
from tasks.contract.function import Function, FunctionConfig
from tasks.contract.kind import Outcome, Product
from tasks.contract.kinds import evaluation_of, kinds_producing
from tasks.statistics.means import mean_record, sign_flips


@dataclass(frozen=True)
class Measured:
    """A metric function's value of an item; None: it abstained, or was not asked."""

    name: str

    def __call__(self, item: EvalItem) -> float | None:
        return item.measured.get(self.name)


def measured_in(items: Sequence[EvalItem]) -> dict[str, Measured]:
    """The metric functions that items have values of, by name."""
    return {
        name: Measured(name) for name in sorted({one for item in items for one in item.measured})
    }


def outcomes_of(kind: str, items: Sequence[EvalItem]) -> dict[str, Outcome | Measured]:
    """An evaluation kind's rates, and the metric functions that items have values of, by name."""
    return {**evaluation_of(kind).outcomes, **measured_in(items)}


def check_names(configs: Sequence[FunctionConfig]) -> None:
    """Raise InputError if two metrics have one name, or one has the name of an evaluation's
    rate."""
    names = [config.function for config in configs]
    rates = {
        rate for kind in kinds_producing(Product.ANSWERS) for rate in evaluation_of(kind).outcomes
    }
    for index, name in enumerate(names):
        if name in rates or name in names[:index]:
            taken = "a rate of evaluations" if name in rates else "another metric"
            raise InputError(
                f"metrics.{index}.path: {name!r} names {taken}; a metric is named after its"
                " function: rename the function."
            )


def load_functions(configs: Sequence[FunctionConfig]) -> dict[str, Function]:
    """The metric functions by name. Raises what `Function` raises."""
    return {config.function: Function(config, "metric function") for config in configs}


def with_values(functions: dict[str, Function], items: Sequence[EvalItem]) -> list[EvalItem]:
    """The items with the functions' values. Raises StageFailed: a function fails."""
    prompts = [EvalPrompt.of(item) for item in items]
    said = [item.completion for item in items]
    found = {name: function.values(prompts, said) for name, function in functions.items()}
    return [
        item.model_copy(update={"measured": {name: of[place] for name, of in found.items()}})
        for place, item in enumerate(items)
    ]


def function_metrics(
    items: Sequence[EvalItem], baseline: Sequence[EvalItem] | None, *, seed: int
) -> dict[str, Any]:
    """`{"functions": {...}}` of the module docstring, from items alone; empty where they have no
    values."""
    found = {}
    for name, measured in measured_in(items).items():
        values = [value for item in items if (value := measured(item)) is not None]
        pairs = [
            new - old
            for item, before in zip(items, baseline or (), strict=bool(baseline))
            if (new := measured(item)) is not None and (old := measured(before)) is not None
        ]
        found[name] = {**mean_record("mean", values), "n": len(values)}
        if pairs:
            found[name] |= mean_record("delta", pairs)
            found[name]["delta_p"] = sign_flips(pairs, seed=seed)
    return {"functions": found} if found else {}
