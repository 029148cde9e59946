"""The evaluations of a run in other tools' terms: a model, tasks, answered prompts, and rates with
standard errors.

Rates come from the items, by the outcomes of the evaluation's kind, and not from metrics.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from statistics import stdev
from typing import Any, NamedTuple

from flows.recipe.explain import flat
from flows.runs.effects import METRICS
from flows.runs.results import BASE, RunResults, StageOutput
from schemas.artifact import Manifest
from schemas.evaluation import EvalItem, EvalPrompt
from schemas.reports import RunRecord
from tasks.contract.kind import Outcome, Product
from tasks.evaluation.eval_config import EvalConfig
from tasks.evaluation.metric_functions import Measured, measured_in, outcomes_of

PROMPT_FIELDS = tuple(EvalPrompt.model_fields)


@dataclass(frozen=True)
class Mean:
    """The mean of a rate, or of a metric function, over prompts and its standard error, as both
    harnesses compute it: sd / sqrt(n), sd with n - 1, None where n = 1.

    A prompt with several samples counts once, with its own mean. `n` prompts count, `left_out`
    others are outside the rate's denominator.
    """

    value: float
    stderr: float | None
    n: int
    left_out: int


@dataclass(frozen=True)
class Evaluation:
    """One evaluation stage of a run that left items."""

    run: RunRecord
    stage: StageOutput
    manifest: Manifest

    @property
    def model(self) -> str:
        """The evaluated model's name in other tools: the run's id and the stage that trained it."""
        return f"{self.run.run_id}/{self.stage.spec.inputs.get('policy', BASE)}"

    @property
    def started(self) -> float:
        return float(self.manifest.execution.get("started", self.run.started))

    @property
    def kind(self) -> str:
        return self.stage.spec.kind

    @cached_property
    def outcomes(self) -> Mapping[str, Outcome | Measured]:
        """Rate, or metric function -> its value for an item."""
        return outcomes_of(self.kind, self.stage.items)

    @cached_property
    def functions(self) -> dict[str, Measured]:
        """The metric functions that its answers were measured by."""
        return measured_in(self.stage.items)

    @property
    def better_if_higher(self) -> list[str]:
        """The rates, and metric functions, that are known to be better if higher."""
        return [*(metric.name for metric in METRICS if metric.kind == self.kind), *self.functions]

    @cached_property
    def suites(self) -> dict[str, list[EvalItem]]:
        """Suite -> its greedy answers, in order."""
        found: dict[str, list[EvalItem]] = {}
        for item in self.stage.items:
            found.setdefault(item.suite, []).append(item)
        return found

    @property
    def seconds(self) -> float:
        return float(self.manifest.execution.get("seconds", 0.0))

    def config(self, name: str, default: Any = None) -> Any:
        return self.manifest.config.get(name, default)

    def asked(self, item: EvalItem) -> str:
        """The model's last prompt, without the chat template and worked examples."""
        instructions = self.config("instructions", "")
        return EvalConfig.model_construct(**{"instructions": instructions}).asked(item.prompt)

    def means(self, items: Sequence[EvalItem]) -> dict[str, Mean]:
        """Every rate that counts at least one of the items."""
        found = {
            name: mean_of((item.id, outcome(item)) for item in items)
            for name, outcome in self.outcomes.items()
        }
        return {name: mean for name, mean in found.items() if mean is not None}


def evaluations(run: RunResults) -> list[Evaluation]:
    return [
        Evaluation(run.record, stage, stage.manifest)
        for stage in run.producing(Product.ANSWERS)
        if stage.manifest is not None and stage.items
    ]


def mean_of(outcomes: Iterable[tuple[str, float | None]]) -> Mean | None:
    """The mean over prompts of `(prompt, outcome)`; None where none counts."""
    by_prompt: dict[str, list[float]] = {}
    for prompt, outcome in outcomes:
        found = by_prompt.setdefault(prompt, [])
        if outcome is not None:
            found.append(outcome)
    values = [sum(found) / len(found) for found in by_prompt.values() if found]
    if not values:
        return None
    n = len(values)
    stderr = stdev(values) / math.sqrt(n) if n > 1 else None
    return Mean(sum(values) / n, stderr, n, len(by_prompt) - n)


def flat_fields(item: EvalItem, names: Iterable[str]) -> dict[str, Any]:
    """Some fields of an item, each a plain value: what is a list or a table is JSON text, so that
    every row has the same columns."""
    values = item.model_dump(mode="json", include=set(names))
    return {
        name: json.dumps(values[name]) if isinstance(values[name], list | dict) else values[name]
        for name in names
    }


class Point(NamedTuple):
    """Numbers of a stage at a step."""

    stage: str
    step: int
    values: dict[str, float]


def curve(stage: StageOutput) -> list[Point]:
    """A trained stage's curves; values that are not finite are left out."""
    points = []
    for row in stage.rows("curves.jsonl"):
        numbers = {
            name: float(value)
            for name, value in row.items()
            if isinstance(value, int | float) and math.isfinite(value)
        }
        points.append(Point(stage.name, int(numbers.pop("step")), numbers))
    return points


def metric_points(run: RunResults) -> Iterator[Point]:
    """All numbers in each stage's metrics, `{"metrics/domains.math.exact_answer": 0.5}`, at the
    stage's place in the recipe."""
    for place, stage in enumerate(run.stages.values()):
        numbers = {
            f"metrics/{name}": float(value)
            for name, value in flat("", stage.metrics).items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        yield Point(stage.name, place, numbers)


def moment(seconds: float) -> datetime:
    """Seconds since the epoch as a time of the day in UTC."""
    return datetime.fromtimestamp(seconds, UTC)


def token(*parts: str) -> str:
    """An id that is made of what it names: 22 letters and digits."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:22]
