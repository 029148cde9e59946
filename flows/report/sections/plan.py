"""Plan versus actual: what a run was planned to take, what it took, and in words where the plan
was far off.

Only stages that ran in this run are compared. Time is that of the flow: until the machine works and
until it is gone, which the plan counts too, and the wait for a machine, which no plan knows. Memory
is that of the fullest device against the largest of the stage's programs. Money is by list price on
both sides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flows.report.blocks import (
    Block,
    Column,
    Paragraph,
    Sentences,
    Table,
    Text,
    card,
    small,
    strong,
)
from flows.report.section import Section
from flows.runs.record import read_plan
from flows.runs.results import RunResults, StageOutput
from flows.runs.wording import Tone, duration, size


@dataclass(frozen=True)
class Measure:
    """Something that is planned.

    Attributes:
        far_off: the factor, either way, from which on a figure counts as wrongly planned.
        text: writes a figure.
        verb: of a sentence about a stage.
    """

    far_off: float
    text: Callable[[Any], str]
    verb: str


TIME = Measure(2.0, duration, "took")
MEMORY = Measure(1.25, size, "held, on its fullest device,")
COST = Measure(2.0, lambda usd: f"{usd:.2f} USD", "cost")
"""Memory is the compiler's own figure and nearly exact; times, and with them costs, come from a
roofline."""


@dataclass(frozen=True)
class Figure:
    """A planned figure and the real one; None: not known, or there is none."""

    measure: Measure
    planned: float | None
    actual: float | None

    @property
    def ratio(self) -> float | None:
        """Real by planned."""
        return self.actual / self.planned if self.planned and self.actual else None

    @property
    def far_off(self) -> bool:
        return (
            self.ratio is not None
            and not 1 / self.measure.far_off <= self.ratio <= self.measure.far_off
        )

    @property
    def sides(self) -> tuple[str, str]:
        """Planned and real."""
        write = self.measure.text
        planned, actual = self.planned, self.actual
        return "–" if planned is None else write(planned), "–" if actual is None else write(actual)

    @property
    def text(self) -> Text:
        """Planned, real and ratio."""
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}×"
        return " → ".join(self.sides), small(ratio)


@dataclass(frozen=True)
class PlanRow:
    """One stage. `worked`: for how long its own worker did, and how fast; text."""

    stage: str
    time: Figure
    memory: Figure
    cost: Figure
    worked: str

    @property
    def findings(self) -> list[str]:
        """A sentence for every figure that was far off."""
        return [
            f"{self.stage} {figure.measure.verb} {figure.sides[1]} where {figure.sides[0]} was"
            f" planned, {figure.ratio:.2g} times as much."
            for figure in (self.time, self.memory, self.cost)
            if figure.far_off
        ]


@dataclass(frozen=True)
class PlanTable:
    """The comparison. `time` and `cost` are of all stages of which both figures are known,
    together."""

    rows: list[PlanRow]
    time: Figure
    cost: Figure

    @property
    def findings(self) -> list[str]:
        """A sentence for every stage and figure that was far off."""
        return [sentence for row in self.rows for sentence in row.findings]


def plan_versus_actual(run: RunResults) -> PlanTable | None:
    """What was planned against what came of it; None where the run was not planned, or nothing ran
    that was.

    Raises:
        InputError: the plan that was kept is damaged.
    """
    store = next(iter(run.stages.values())).store
    plan = read_plan(store, run.record.run_id) or {"stages": []}
    planned = {stage["name"]: stage for stage in plan["stages"] if not stage["cached"]}
    rows = [
        _row(stage, planned[stage.name])
        for stage in run.stages.values()
        if stage.status == "ran" and stage.name in planned
    ]
    if not rows:
        return None
    times, costs = ([row.time for row in rows], [row.cost for row in rows])
    return PlanTable(rows, _together(times), _together(costs))


def _row(stage: StageOutput, planned: dict[str, Any]) -> PlanRow:
    record = stage.record
    assert record is not None, "a stage that ran has a record"
    usage = record.usage
    largest = max((program["hbm_bytes"] for program in planned["programs"]), default=None)
    worked = duration(usage.seconds) if usage else ""
    if usage and usage.unit_seconds is not None:
        worked += f", {usage.unit_seconds:.3g} s for each of its {usage.unit}"
    return PlanRow(
        stage.name,
        Figure(TIME, planned["seconds"], record.seconds),
        Figure(MEMORY, largest, usage.peak_device_bytes if usage else None),
        Figure(COST, planned["cost_usd"], record.cost_usd),
        worked,
    )


def _together(figures: Sequence[Figure]) -> Figure:
    known = [
        (figure.planned, figure.actual)
        for figure in figures
        if figure.planned is not None and figure.actual is not None
    ]
    planned, actual = (sum(side) for side in zip(*known, strict=True)) if known else (None, None)
    return Figure(figures[0].measure, planned, actual)


def blocks(run: RunResults) -> list[Block]:
    """The comparison; where there is none, why."""
    plan = plan_versus_actual(run)
    if plan is None:
        target = run.record.target
        why = f": only a run on a TPU is, and this one ran on {target}"
        why = why if target == "local" else ", or nothing ran that was"
        return [f"Nothing was planned{why}; so there is nothing to compare with."]
    far: list[tuple[Tone, Text]] = [("flat", sentence) for sentence in plan.findings]
    head = ("time", "memory of one device", "list price")
    columns: list[Column | Text] = ["", *((one, small("planned → real")) for one in head)]
    rows = [
        (row.stage, *(one.text for one in (row.time, row.memory, row.cost)), row.worked)
        for row in plan.rows
    ]
    rows.append((strong("all"), plan.time.text, "", plan.cost.text, ""))
    return [
        Sentences(far or [("good", _NEAR)]),
        card(Table((*columns, Column("its worker", "wrap")), rows)),
        Paragraph(_TIME, "note"),
    ]


_NEAR = (
    "Nothing was far off its plan: time and cost within a factor of two, memory within a quarter."
)
_TIME = (
    "Time is from submitting a stage to its end; the wait for a machine is in it, and in no plan."
    " All: the stages of which both figures are known."
)
SECTION = Section(title="Plan", heading="Plan and reality", order=80, blocks=blocks)
