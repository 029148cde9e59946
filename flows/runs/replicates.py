"""Runs of one recipe under several seeds: each stage's effect with an interval over seeds, and how
far a number moves when only the seed changes.

A run is one observation of a stage's effect (`flows.runs.effects`, paired over the prompts within
it). Over seeds these have a mean with Student's interval and a standard deviation, the noise floor
(`tasks.statistics.means`). A stage counts as a gain or a loss where the interval over seeds leaves
out zero and its p-value is at most ALPHA after Holm's correction, over the same two families as
within a run: all stages over all prompts, and all stages in all parts.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flows.runs.effects import (
    ALL,
    Direction,
    Effect,
    Metric,
    Part,
    direction_of,
    metrics_of,
    outcomes,
    part_effects,
    stage_effects,
)
from flows.runs.record import read_runs
from flows.runs.results import RunResults, left_out_of, read_results
from infra.store.store import Store
from schemas.reports import RunRecord
from tasks.statistics.intervals import Interval, Rate, holm
from tasks.statistics.means import Mean, Spread


@dataclass(frozen=True)
class Over:
    """An effect over seeds.

    Attributes:
        effects: seed -> the effect within its run.
        spread: of their differences.
        p: corrected.
    """

    stage: str
    since: str
    metric: Metric
    part: Part
    effects: dict[int, Effect]
    spread: Spread
    p: float

    @property
    def interval(self) -> Interval:
        """The mean's; differences of rates end at 1."""
        return self.spread.interval if self.metric.quantity else within(self.spread.interval, -1.0)

    @property
    def direction(self) -> Direction:
        return direction_of(self.spread.interval, self.p)


@dataclass(frozen=True)
class Level:
    """A model's rate, or mean, over seeds and all prompts. `rates`: seed -> that of its run."""

    model: str
    metric: Metric
    rates: dict[int, Rate | Mean]
    spread: Spread

    @property
    def interval(self) -> Interval:
        """The mean's; rates end at 0 and 1."""
        return self.spread.interval if self.metric.quantity else within(self.spread.interval, 0.0)


def within(interval: Interval, lowest: float) -> Interval:
    """The part of an interval that lies in lowest .. 1."""
    return Interval(max(lowest, interval.low), min(1.0, interval.high))


@dataclass(frozen=True, eq=False)
class Replicates:
    """Runs that share a group, by their seeds, in ascending order."""

    runs: dict[int, RunResults]

    @property
    def metrics(self) -> list[Metric]:
        return metrics_of(*self.runs.values())

    @property
    def left_out(self) -> dict[str, str]:
        """`<run>/<stage>` -> why its artifact, and so what it measured, is in none of the
        numbers."""
        return left_out_of(self.runs.values())

    def stages(self, metric: Metric) -> list[Over]:
        """Each trained stage's effect over all prompts, for stages that two runs or more know."""
        return self._over(metric, lambda run: {ALL: stage_effects(run, metric)})

    def parts(self, metric: Metric) -> list[Over]:
        """Each trained stage's effect in every suite and domain."""
        return self._over(metric, lambda run: part_effects(run, metric))

    def overall(self, metric: Metric) -> list[Over]:
        """The change from the first evaluated model to the last."""
        return self._over(metric, lambda run: {ALL: stage_effects(run, metric, "ends")})

    def levels(self, metric: Metric) -> list[Level]:
        """Each model's level over all prompts, base first."""
        return [
            Level(model, metric, rates, spread)
            for model, rates in self.rates(metric).items()
            if (spread := spread_of(rates.values(), [one.value for one in rates.values()]))
        ]

    def rates(self, metric: Metric) -> dict[str, dict[int, Rate | Mean]]:
        """Model -> seed -> its rate or mean over all prompts."""
        found: dict[str, dict[int, Rate | Mean]] = {}
        for seed, run in self.runs.items():
            for model in run.evaluated(metric.kind):
                values = list(outcomes(model.items(metric.kind), metric).values())
                rate = Mean.of(values) if metric.quantity else Rate.of(values)
                if rate is not None:
                    found.setdefault(model.name, {})[seed] = rate
        return found

    def _over(
        self, metric: Metric, of: Callable[[RunResults], Mapping[Part, Mapping[str, Effect]]]
    ) -> list[Over]:
        """The effects of one family, corrected over all of them."""
        found: dict[tuple[Part, str, str], dict[int, Effect]] = {}
        for seed, run in self.runs.items():
            for part, effects in of(run).items():
                for one in effects.values():
                    found.setdefault((part, one.stage, one.since), {})[seed] = one
        changes = {place: [one.change for one in its.values()] for place, its in found.items()}
        spreads = {
            place: spread
            for place, its in changes.items()
            if (spread := spread_of([one.after for one in its], [one.delta for one in its]))
        }
        p = holm({place: spread.p for place, spread in spreads.items()})
        return [
            Over(stage, since, metric, part, found[part, stage, since], spread, p[place])
            for place, spread in spreads.items()
            for part, stage, since in [place]
        ]


def spread_of(rates: Iterable[Rate | Mean], values: list[float]) -> Spread | None:
    """The spread of values computed from these rates; a rate over n prompts is known to 1 / n."""
    fewest = min((one.n for one in rates if isinstance(one, Rate)), default=0)
    return Spread.of(values, 1 / fewest if fewest else 0.0)


def read_replicates(store: Store, records: Iterable[RunRecord]) -> Replicates:
    """Read the results of runs that share a group."""
    by_seed = {record.recipe.seed: record for record in records}
    return Replicates({seed: read_results(store, by_seed[seed]) for seed in sorted(by_seed)})


def group_of(store: Store, record: RunRecord) -> Replicates | None:
    """The runs that share a run's group; None for a run that was started alone, or whose fellows
    are gone."""
    if record.group is None:
        return None
    fellows = [one for one in read_runs(store) if one.group == record.group]
    return read_replicates(store, fellows) if len(fellows) > 1 else None


def told(runs: Replicates) -> dict[str, Any]:
    """The numbers as `lyceum run --seeds --json` prints them, fractions of 1: `overall` from the
    first evaluated model to the last, `effects` of each stage in all and in parts, `levels` of each
    model."""
    metrics = runs.metrics
    return {
        "overall": [_effect_row(one) for metric in metrics for one in runs.overall(metric)],
        "effects": [
            _effect_row(one)
            for metric in metrics
            for one in (*runs.stages(metric), *runs.parts(metric))
        ],
        "levels": [_level_row(one) for metric in metrics for one in runs.levels(metric)],
    }


def _effect_row(one: Over) -> dict[str, Any]:
    changes = {seed: effect.change for seed, effect in one.effects.items()}
    seeds = {str(n): {"value": its.delta, **asdict(its.interval)} for n, its in changes.items()}
    return {
        **_row(one, one.part),
        "stage": one.stage,
        "since": one.since,
        "p": one.p,
        "direction": one.direction,
        "seeds": seeds,
    }


def _level_row(one: Level) -> dict[str, Any]:
    seeds = {str(seed): rate.value for seed, rate in one.rates.items()}
    return {**_row(one, ALL), "model": one.model, "bound": one.spread.bound, "seeds": seeds}


def _row(one: Over | Level, part: Part) -> dict[str, Any]:
    numbers = {"n": one.spread.n, "mean": one.spread.mean, "sd": one.spread.sd}
    return {**one.metric.row(part), **numbers, **asdict(one.interval)}
