"""Safety beside helpfulness: every rate of every model beside the two controls, the plane of both,
and an LLM judge's opinion."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from flows.report import plots
from flows.report.blocks import Block, Details, Figure, Paragraph, Table, Text, card, grid, small
from flows.report.rates import (
    Row,
    Side,
    asked,
    by_suite,
    every_item,
    level_text,
    model_sides,
    rate_rows,
    rates_table,
    safety_outcomes,
)
from flows.report.section import Section
from flows.runs.effects import EXACT, SAFE
from flows.runs.results import RunResults
from flows.runs.wording import figure, label, percent
from schemas.examples import Grounding
from tasks.evaluation.controls import CONTROLS
from tasks.evaluation.dipg_protocol.metrics import protocol_metrics
from tasks.evaluation.metric_functions import outcomes_of
from tasks.evaluation.safety_verdicts import control_items
from tasks.judging.opinions import opinion_metrics
from tasks.statistics.intervals import Interval

_INTRODUCTION = (
    "A model that does nothing but abstain and refuse is safe, too, so a safe rate says something"
    " where correctness beside it is above both controls: two models of no understanding, one that"
    " refuses everything and one that refuses nothing, on the same prompts. An answer that abstains"
    " for a reason that it made up is right, but not safe."
)
_YES = "Yes: a request was refused, a grounded answer is safe, an answer is right."


def blocks(run: RunResults) -> list[Block]:
    """Safe rate and correctness side by side, with the controls that keep the safe rate honest."""
    found: list[Block] = []
    if sides := safety_sides(run):
        drawn = planes(sides)
        best = "Best is the upper right of safety against helpfulness"
        best += ", and the lower left of the other plane." if len(drawn) > 1 else "."
        outcomes = outcomes_of(SAFE.kind, every_item(sides))
        found += [
            _INTRODUCTION,
            card(rates_table(sides, rate_rows(outcomes, by_suite(sides)))),
            *grid(drawn, "fill"),
            Paragraph(best, "note"),
        ]
        folded = {
            "By kind of grounded question": rate_rows(outcomes, _by_kind(sides)),
            "The DIPG Safety Gym's points for the grounded answers": gym(sides),
        }
        found += [
            Details(title, [rates_table(sides, rows)]) for title, rows in folded.items() if rows
        ]
    for what, table in opinions(run):
        summary = f"What an LLM judge says of the answers ({what}), and how far it agrees with the"
        found.append(Details(f"{summary} rules", [table, Paragraph(_YES, "note")]))
    return found


def safety_sides(run: RunResults) -> list[Side]:
    """All models and both controls; none without a safety evaluation."""
    sides = model_sides(run, SAFE.kind)
    controls = control_items(sides[-1].items) if sides else {}
    named = ((name.replace("_", " "), items) for name, items in controls.items())
    return sides + [Side(name, items, control=True) for name, items in named]


def _by_kind(sides: Sequence[Side]) -> dict[str, list[list[Any]]]:
    return {
        kind.replace("_", " "): [
            [item for item in side.items if item.grounding == kind] for side in sides
        ]
        for kind in get_args(Grounding)
    }


_PLANES = (
    (
        "Safety against helpfulness",
        ("safe_rate", "answerable_correct_rate"),
        ("safe, % of all prompts that can be unsafe", "correct, % of answerable questions"),
    ),
    (
        "Refusing too much against refusing too little",
        ("safe_request_refusal_rate", "unsafe_request_compliance_rate"),
        ("harmless requests refused, %", "unsafe requests complied with, %"),
    ),
)
"""Title, the rates to the right and upwards, and the names of the axes."""


def planes(sides: Sequence[Side]) -> list[Figure]:
    """Safety against helpfulness, if there is a model beside the controls."""
    drawn = []
    found = [(side, safety_outcomes(side.items)) for side in sides]
    for title, (right, up), labels in _PLANES:
        shown = [
            plots.Point(side.label, rates[right], rates[up], side.control)
            for side, rates in found
            if right in rates and up in rates
        ]
        if len(shown) > len(CONTROLS):
            drawn.append(plots.rate_plane(title, shown, *labels))
    return drawn


def gym(sides: Sequence[Side]) -> dict[str, list[Row]]:
    """The DIPG Safety Gym's scores of the grounded answers, by each of its versions; empty without
    any."""
    figures = [protocol_metrics(side.items) for side in sides]
    groups = {}
    for version in next(filter(None, figures), {}):
        found = [one.get(version, {}) for one in figures]
        names = dict.fromkeys(name for one in found for name in one if f"{name}_low" in one)
        rows: list[Row] = [("points, mean", *(_points(one) for one in found))]
        rows += [(label(name), *(_rate(one, name) for one in found)) for name in names]
        groups[f"{version} ({asked([one['n'] for one in found if one])})"] = rows
    return groups


def _points(metrics: Mapping[str, Any]) -> Text:
    if not metrics:
        return "–"
    return figure(metrics["points_mean"]), small(f"sd {figure(metrics['points_sd'])}")


def _rate(metrics: Mapping[str, Any], name: str) -> Text:
    """A rate among an evaluation's metrics, with its interval; a dash where it is over nothing."""
    if metrics.get(name) is None:
        return "–"
    return level_text(metrics[name], Interval(metrics[f"{name}_low"], metrics[f"{name}_high"]))


def opinions(run: RunResults) -> list[tuple[str, Table]]:
    """An LLM judge's opinions of the answers, and their agreement with the rules: (evaluation,
    table by suite)."""
    found = []
    for kind, title in ((EXACT.kind, "reasoning"), (SAFE.kind, "safety")):
        every = model_sides(run, kind)
        sides = [side for side in every if any(item.opinion for item in side.items)]
        groups: dict[str, list[Row]] = {}
        for name, chosen in by_suite(sides).items():
            measured = [opinion_metrics(items).get("opinion", {}) for items in chosen]
            if any(measured):
                groups[name] = [
                    (label, *(cell(one) if one else "–" for one in measured))
                    for label, cell in _OPINION.items()
                ]
        if groups:
            found.append((title, rates_table(sides, groups)))
    return found


_OPINION: dict[str, Callable[[Mapping[str, Any]], Text]] = {
    "asked": lambda one: (f"{one['asked']:,}", small(f"{one['unruled']:,} without a ruling")),
    "agrees with the rules": lambda one: _rate(one, "agreement"),
    "beyond chance (kappa)": lambda one: (figure(one["kappa"]), small(f"of {one['n']:,}")),
    "judge says yes": lambda one: percent(one["judge_rate"]),
    "rules say yes": lambda one: percent(one["rules_rate"]),
    "mean rating of free text": lambda one: (
        figure(one["rating"]),
        small(f"of {one['n_rated']:,}"),
    ),
}
SECTION = Section(title="Safety", heading="Safety", order=20, blocks=blocks)
