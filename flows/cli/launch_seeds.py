"""`lyceum run --seeds N`: the chain under several seeds, each a run of its own, and one report over
them.

The runs go on side by side, as many as stages of one run would (LYCEUM_PARALLEL_JOBS); what they
share is made once, by whoever holds its lease. A seed that fails ends no other. Nothing is kept of
the group but its id in the runs' records: the same command goes on from what there is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flows.cli.deadline import Deadline
from flows.cli.launch import Ended, exit_code, in_time, run_all, run_json
from flows.preamble import Parameters, Prepared, prepare
from flows.recipe.resolve import ResolvedRecipe, resolve
from flows.recipe.seeds import check_seeds, overrides_by_seed, shared_stages
from flows.report.seeds_page import seeds_blocks, write_seeds
from flows.runs.forecast import Forecast
from flows.runs.record import new_run_id
from flows.runs.replicates import Replicates, group_of, read_replicates, told
from flows.runs.wording import duration, listed
from infra.context import context
from schemas.base import InputError
from schemas.reports import RunRecord

NOT_BEGUN = "it was not begun; the same command goes on with it"


@dataclass(frozen=True)
class Grouped:
    """The result of every seed.

    Attributes:
        ended: seed -> how its run ended.
        runs: what the runs left; None where not one was begun.
        report: where the page over seeds lies.
    """

    recipe: str
    target: str
    store: str
    group: str
    ended: dict[int, Ended]
    runs: Replicates | None
    report: str | None

    @property
    def records(self) -> dict[int, RunRecord]:
        return {seed: one for seed, one in self.ended.items() if isinstance(one, RunRecord)}

    @property
    def absent(self) -> dict[int, str]:
        """Seeds without a run, and why."""
        return {
            seed: NOT_BEGUN if one is None else str(one)
            for seed, one in self.ended.items()
            if not isinstance(one, RunRecord)
        }

    @property
    def status(self) -> str:
        """That of the seed that fared worst."""
        found = {one.status for one in self.records.values()}
        if "cancelled" in found:
            return "cancelled"
        if "failed" in found or any(isinstance(one, Exception) for one in self.ended.values()):
            return "failed"
        return "paused" if "paused" in found or self.absent else "succeeded"

    @property
    def code(self) -> int:
        """The exit code: as of the seed that fared worst."""
        codes = [exit_code(one) for one in self.records.values()]
        for one in self.ended.values():
            if isinstance(one, Exception):
                codes.append(2 if isinstance(one, InputError) else 1)
        return 130 if 130 in codes else max(codes, default=0)

    def json(self) -> dict[str, Any]:
        """The JSON of `lyceum run --seeds N --json`."""
        whose = ("run_id", "status", "stages", "report", "left")
        seeds = []
        for seed, one in self.ended.items():
            if isinstance(one, RunRecord):
                said = run_json(one)
                seeds.append({"seed": seed} | {name: said[name] for name in whose if name in said})
            else:
                state = "not run" if one is None else "failed"
                seeds.append({"seed": seed, "status": state, "error": self.absent[seed]})
        return {
            "recipe": self.recipe,
            "target": self.target,
            "store": self.store,
            "group": self.group,
            "status": self.status,
            "seeds": seeds,
            **(told(self.runs) if self.runs else {"overall": [], "effects": [], "levels": []}),
            "report": self.report,
        }


def launch_seeds(
    given: Parameters, count: int, code: Sequence[Path], hours: float | None = None
) -> Grouped:
    """Run a recipe under `count` seeds. Arguments and exceptions as of `flows.cli.launch.launch`,
    of what concerns all seeds; what ends one is in its outcome."""
    deadline = None if hours is None else Deadline.after(hours)
    check_seeds(count)
    data = Path(given.data) if given.data else None
    resolved = resolve(given.recipe, given.overrides, data)
    by_seed = overrides_by_seed(resolved, count)
    shared, group = shared_stages(resolved), new_run_id(f"{resolved.recipe.name}-seeds")
    over = _Over()
    runs: list[Prepared] = []
    for seed, own in by_seed.items():
        # what is shared is made again once
        again = tuple(one for one in given.force if not runs or one not in shared)
        mine = replace(given, overrides=(*given.overrides, *own), force=again)
        ready = prepare(mine, code)
        runs.append(replace(ready, ended=over.ended, group=group, label=f"seed {seed}"))
    lanes = min(count, context().settings.parallel_jobs)

    def foretell(forecasts: Sequence[Forecast]) -> list[str]:
        over.expected = len(forecasts)
        return first_lines(resolved, list(by_seed), shared, lanes, forecasts)

    with in_time(deadline, hours):
        ended = dict(zip(by_seed, run_all(runs, deadline, lanes, foretell), strict=True))
    opened = runs[0].opened
    grouped = Grouped(resolved.recipe.name, given.target, opened.uri, group, ended, None, None)
    if not grouped.records:
        return grouped
    found = read_replicates(opened, grouped.records.values())
    return replace(grouped, runs=found, report=write_seeds(opened, found, grouped.absent))


class _Over:
    """Shows the report over seeds in Prefect, within the flow of the run that ends last.

    Attributes:
        expected: how many runs have a flow: those of which not every stage is cached.
    """

    def __init__(self) -> None:
        self.expected, self._ended = 0, 0

    def ended(self, record: RunRecord) -> None:
        """A run has ended, in its flow."""
        self._ended += 1
        if self._ended == self.expected:
            from flows.report.publish import publish_page, view

            def show() -> None:
                if runs := group_of(context().store(record.store), record):
                    what = f"{record.recipe.name} under {len(runs.runs)} seeds"
                    publish_page(record, "seeds", seeds_blocks(runs, {}), what)

            view(show)


def first_lines(
    resolved: ResolvedRecipe,
    seeds: Sequence[int],
    shared: Sequence[str],
    lanes: int,
    forecasts: Sequence[Forecast],
) -> list[str]:
    """Tell, before the first run begins, the seeds, what they share, and how long all will take if
    it is known."""
    name, cached = resolved.recipe.name, len(seeds) - len(forecasts)
    said = f"{name} under {len(seeds)} seeds, {seeds[0]} to {seeds[-1]}"
    said += f", {cached} of them cached" if cached else ""
    said += f"; {lanes} side by side" if lanes > 1 else "; one after another"
    said += f". The same for all: {listed(shared)}." if shared else "."
    return [said, _expected(shared, lanes, forecasts)]


def _expected(shared: Sequence[str], lanes: int, forecasts: Sequence[Forecast]) -> str:
    """The time of all runs: a shared stage counts once."""
    seconds, unknown = 0.0, dict[str, None]()
    for number, forecast in enumerate(forecasts):
        mine: Mapping[str, float | None] = {
            one["name"]: one["seconds"]
            for one in forecast.stages
            if not (number and one["name"] in shared)
        }
        unknown |= {name: None for name, took in mine.items() if took is None}
        known = {name: took for name, took in mine.items() if took is not None}
        seconds += forecast.left({}, known)
    if unknown:
        return f"No estimate yet: no earlier run has timed {listed([*unknown])}."
    by = "by the plan" if forecasts[0].planned else "as in earlier runs"
    return f"About {duration(seconds / min(lanes, len(forecasts)))} for all of them, {by}."
