"""Plan versus actual: the planned and the real time, memory and cost of a run, and in words where
the plan was far off.

It compares stages that ran in this run. Time is the flow's: from the request to the end of the
machine, as in the plan, and the wait for a machine, which no plan knows. Memory is that of the
fullest device against the largest of the stage's programs. Money is by list price on both sides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from flows.report import blocks as ui
from flows.report.section import Section
from flows.runs.record import read_plan
from flows.runs.results import RunResults, StageOutput
from flows.runs.wording import Tone, duration, size

_NEAR = (
    "Nothing was far off its plan, where both figures are known: time and cost within a factor of"
    " two, memory within a quarter."
)
_UNKNOWN = "Of no figure both the plan and what came of it are known."
_TIME = (
    "Time is from submitting a stage to its end; the wait for a machine is in it, and in no plan."
    " All: the stages of which both figures are known."
)


@dataclass(frozen=True)
class Figure:
    """A planned figure and the real one; None: unknown, or there is none.

    Attributes:
        far_off: a figure that is off by this factor, either way, counts as wrongly planned.
        write: writes a figure.
        verb: of a sentence about a stage.
    """

    far_off: float
    write: Callable[[Any], str]
    verb: str
    planned: float | None
    actual: float | None

    @property
    def sides(self) -> list[str]:
        """Planned and real."""
        both = (self.planned, self.actual)
        return ["–" if value is None else self.write(value) for value in both]

    @property
    def text(self) -> ui.Text:
        """Planned, real and ratio."""
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}×"
        return " → ".join(self.sides), ui.small(ratio)

    @property
    def ratio(self) -> float | None:
        """Real over planned; None where there is nothing to compare."""
        return self.actual / self.planned if self.planned and self.actual else None

    def finding(self, stage: str) -> str:
        """A sentence, if the figure was far off."""
        ratio, (planned, actual) = self.ratio, self.sides
        if ratio is None or 1 / self.far_off <= ratio <= self.far_off:
            return ""
        times = f"{ratio:.2g}" if ratio < 10 else f"{ratio:,.0f}"
        said = f"{stage} {self.verb} {actual} where {planned} was planned"
        return f"{said}, {times} times as much."


TIME = partial(Figure, 2.0, duration, "took")
MEMORY = partial(Figure, 1.25, size, "held, on its fullest device,")
COST = partial(Figure, 2.0, lambda usd: f"{usd:.2f} USD", "cost")
"""Planned memory is the compiler's own figure and nearly exact; times, and so costs, come from a
roofline."""


def blocks(run: RunResults) -> list[ui.Block]:
    """Planned beside real figures, and in words what was far off; or the statement that the run was
    not planned, or that nothing planned ran.

    Raises:
        InputError: the stored plan is damaged.
    """
    store = next(iter(run.stages.values())).store
    plan = read_plan(store, run.record.run_id) or {"stages": []}
    planned = {stage["name"]: stage for stage in plan["stages"] if not stage["cached"]}
    ran = [one for one in run.stages.values() if one.status == "ran" and one.name in planned]
    if not ran:
        target = run.record.target
        why = f": only a run on a TPU is, and this one ran on {target}"
        why = why if target == "local" else ", or nothing ran that was"
        return [f"Nothing was planned{why}; so there is nothing to compare with."]
    figures = {stage.name: _figures(stage, planned[stage.name]) for stage in ran}
    found = [one.finding(stage) for stage, every in figures.items() for one in every]
    known = any(one.ratio is not None for every in figures.values() for one in every)
    far: list[tuple[Tone, ui.Text]] = [("flat", sentence) for sentence in found if sentence]
    head = ("time", "memory of one device", "list price")
    columns: list[ui.Column | ui.Text] = ["", *((one, ui.small("planned → real")) for one in head)]
    rows: list[tuple[ui.Text, ...]] = [
        (stage.name, *(one.text for one in figures[stage.name]), _worked(stage)) for stage in ran
    ]
    times, _, costs = zip(*figures.values(), strict=True)
    rows.append((ui.strong("all"), _together(times).text, "", _together(costs).text, ""))
    return [
        ui.Sentences(far or [("good", _NEAR) if known else ("plain", _UNKNOWN)]),
        ui.card(ui.Table((*columns, ui.Column("its worker", "wrap")), rows)),
        ui.Paragraph(_TIME, "note"),
    ]


def _figures(stage: StageOutput, planned: dict[str, Any]) -> tuple[Figure, Figure, Figure]:
    """Time, memory and cost."""
    record = stage.record
    assert record is not None, "a stage that ran has a record"
    largest = max((program["hbm_bytes"] for program in planned["programs"]), default=None)
    return (
        TIME(planned["seconds"], record.seconds),
        MEMORY(largest, record.usage.peak_device_bytes if record.usage else None),
        COST(planned["cost_usd"], record.cost_usd),
    )


def _worked(stage: StageOutput) -> str:
    """The working time of its own worker, and its pace."""
    usage = stage.record.usage if stage.record else None
    if usage is None:
        return ""
    worked = duration(usage.seconds)
    if usage.unit_seconds is None:
        return worked
    return f"{worked}, {usage.unit_seconds:.3g} s for each of its {usage.unit}"


def _together(figures: Sequence[Figure]) -> Figure:
    """The sums over the stages with both figures."""
    known = [one for one in figures if None not in (one.planned, one.actual)]
    sides = ("planned", "actual")
    sums: Any = {s: sum(getattr(one, s) for one in known) if known else None for s in sides}
    return replace(figures[0], **sums)


SECTION = Section(title="Plan", heading="Plan and reality", order=80, blocks=blocks)
