"""Forecasts how long a run takes, from its plan: the times that earlier runs measured of stages
like these, or those of `lyceum plan` for a TPU. Without one of the times there is no estimate."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flows.recipe.explain import total
from flows.runs.wording import amount, duration, listed
from schemas.recipe import Recipe
from schemas.reports import RunRecord


@dataclass
class Forecast:
    """The forecast of a run that begins.

    Attributes:
        stages: as `lyceum plan --json` prints them, in file order; of a stage with `at_least` that.
        planned: whether their times are a TPU's plan; if not, those of earlier runs.
        slots: how many stages run side by side at most.
        clock: seconds, to tell how long a stage has been running.
        late: whether a stage that runs takes longer than its like, as `remaining` found last.
    """

    recipe: Recipe
    stages: Sequence[Mapping[str, Any]]
    planned: bool
    slots: int
    clock: Callable[[], float] = time.monotonic
    late: bool = False
    _began: dict[str, float] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Say what will happen, and how long it will take."""
        cached = [one["name"] for one in self.stages if one["cached"]]
        runs = [one["name"] for one in self.stages if not one["cached"]]
        known = f", {len(cached)} cached: {listed(cached)}" if cached else ""
        said = [f"{amount(len(self.stages), 'stage')}{known}. To run: {listed(runs) or 'nothing'}."]
        return [*said, self._expected(runs)] if runs else said

    def _expected(self, runs: Sequence[str]) -> str:
        by = "by the plan" if self.planned else "as in earlier runs"
        unknown = [one["name"] for one in self.stages if one["seconds"] is None]
        if unknown:
            which = "them" if unknown == runs and len(runs) > 1 else listed(unknown)
            return f"No estimate yet: no earlier run has timed {which}."
        seconds = self.left({}, {one["name"]: one["seconds"] for one in self.stages})
        usd = total([one["cost_usd"] for one in self.stages])
        price = f" and {usd:.2f} USD by list price" if usd else ""
        bounded = listed([one["name"] for one in self.stages if "at_least" in one])
        least, more = ("At least", f", and what {bounded} will take") if bounded else ("About", "")
        return f"{least} {duration(seconds)}{price}, {by}{more}."

    def remaining(self, record: RunRecord) -> float | None:
        """Seconds until the run ends; None where a time is missing. A stage that takes longer than
        its like counts as nearly done."""
        now, status = self.clock(), {one.name: one.status for one in record.stages}
        left, running, self.late = dict[str, float](), set[str](), False
        for one in self.stages:
            name = one["name"]
            if status.get(name) == "running":
                began = self._began.setdefault(name, now)
                running.add(name)
            elif name in status:
                continue
            if one["seconds"] is None:
                return None
            spent = now - began if name in running else 0.0
            self.late |= spent > one["seconds"]
            left[name] = max(0.0, one["seconds"] - spent)
        return self.left(running, left)

    def left(self, running: Collection[str], left: Mapping[str, float]) -> float:
        """Seconds until all of these stages have ended (`ends`)."""
        return max(self.ends(running, left).values(), default=0.0)

    def ends(self, running: Collection[str], left: Mapping[str, float]) -> dict[str, float]:
        """Stage -> seconds until it has ended. Each begins in file order as soon as its inputs are
        there and a slot is free."""
        needs = {stage.name: {*stage.inputs.values()} & left.keys() for stage in self.recipe.stages}
        ends = {name: left[name] for name in running}
        waiting = [name for name in left if name not in ends]
        now, done = 0.0, dict[str, float]()
        while ends or waiting:
            for name in list(waiting):
                if needs[name] <= done.keys() and len(ends) < max(self.slots, 1):
                    waiting.remove(name)
                    ends[name] = now + left[name]
            first = min(ends, key=lambda name: ends[name])
            now = ends.pop(first)
            done[first] = now
        return done
