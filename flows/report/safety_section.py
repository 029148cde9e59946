"""The report's safety part: every rate of every model beside the two controls, safety against
helpfulness, and what an LLM judge thinks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from markupsafe import Markup

from flows.report import plots, rates
from flows.report.rates import Row, Side, Table
from flows.runs.effects import EXACT, SAFE
from flows.runs.results import RunResults
from flows.runs.wording import bounds, figure, label, percent
from schemas.evaluation import EvalItem, EvalPrompt
from schemas.examples import Grounding
from tasks.contract.plugins import evaluation_of
from tasks.evaluation.controls import CONTROLS
from tasks.evaluation.dipg_protocol.metrics import protocol_metrics
from tasks.evaluation.safety_verdicts import judge
from tasks.judging.opinions import opinion_metrics
from tasks.statistics.intervals import Interval, Rate


@dataclass(frozen=True)
class Safety:
    """The safety panel.

    Attributes:
        rates: all models and both controls, by suite.
        kinds: the same by kind of grounded question.
        gym: the DIPG Safety Gym's points and rates, by each of its versions.
        planes: safety against helpfulness.
    """

    rates: Table
    kinds: Table
    gym: Table
    planes: list[Markup]


def safety_outcomes(items: Sequence[EvalItem]) -> dict[str, Rate]:
    """Every safety rate that counts any of the items."""
    return rates.counts(items, evaluation_of("safety_eval").outcomes)


def control_items(items: Sequence[EvalItem]) -> dict[str, list[EvalItem]]:
    """What the two models of no understanding, which refuse everything and nothing, would have got
    on the same prompts."""
    prompts = [EvalPrompt.of(item) for item in items]
    return {
        name.replace("_", " "): [judge(prompt, control(prompt)) for prompt in prompts]
        for name, control in CONTROLS.items()
    }


def safety(run: RunResults) -> Safety | None:
    """Safe rate and correctness side by side, with the controls that keep the safe rate honest.
    None without a safety evaluation."""
    models = run.evaluated(SAFE.kind)
    if not models:
        return None
    sides = [Side(model.name, model.items(SAFE.kind)) for model in models]
    sides += [
        Side(name, items, control=True) for name, items in control_items(sides[-1].items).items()
    ]
    kinds = {
        kind.replace("_", " "): [
            [item for item in side.items if item.grounding == kind] for side in sides
        ]
        for kind in get_args(Grounding)
    }
    return Safety(
        rates.table(sides, evaluation_of("safety_eval").outcomes, rates.by_suite(sides)),
        rates.table(sides, evaluation_of("safety_eval").outcomes, kinds),
        _gym(sides),
        [plane for title, *axes in _PLANES if (plane := _plane(sides, title, *axes))],
    )


_PLANES = (
    (
        "Safety against helpfulness",
        "safe_rate",
        "answerable_correct_rate",
        "safe, % of all prompts that can be unsafe",
        "correct, % of answerable questions",
    ),
    (
        "Refusing too much against refusing too little",
        "safe_request_refusal_rate",
        "unsafe_request_compliance_rate",
        "harmless requests refused, %",
        "unsafe requests complied with, %",
    ),
)
"""Title, rate to the right, rate upwards, and how the axes are called."""


def _gym(sides: Sequence[Side]) -> Table:
    """What the DIPG Safety Gym says of the grounded answers; no group where there are none."""
    figures = [protocol_metrics(side.items) for side in sides]
    groups = []
    for version in figures[0]:
        found = [one[version] for one in figures]
        rows = [
            Row(
                "points, mean",
                [(figure(one["points_mean"]), f"sd {figure(one['points_sd'])}") for one in found],
            )
        ]
        for name in (name for name in found[0] if f"{name}_low" in found[0]):
            spans = [Interval(one[f"{name}_low"], one[f"{name}_high"]) for one in found]
            rows.append(
                Row(
                    label(name),
                    [
                        (percent(one[name]), bounds(span))
                        for one, span in zip(found, spans, strict=True)
                    ],
                )
            )
        groups.append((f"{version} ({found[0]['n']:,} prompts)", rows))
    return Table([(side.label, side.control) for side in sides], groups)


def _plane(
    sides: Sequence[Side], title: str, right: str, up: str, x_label: str, y_label: str
) -> Markup | None:
    shown = []
    for side in sides:
        found = safety_outcomes(side.items)
        if right in found and up in found:
            shown.append(_point(side, found[right], found[up]))
    return plots.rate_plane(title, shown, x_label, y_label) if len(shown) > len(CONTROLS) else None


def _point(side: Side, x: Rate, y: Rate) -> plots.Point:
    return plots.Point(side.label, x.value, y.value, x.interval, y.interval, side.control)


def opinions(run: RunResults) -> list[tuple[str, Table]]:
    """What an LLM judge says of the answers, and how far it agrees with the rules: (what was
    evaluated, table by suite)."""
    found = []
    for kind, title in ((EXACT.kind, "reasoning"), (SAFE.kind, "safety")):
        sides = [Side(model.name, model.items(kind)) for model in run.evaluated(kind)]
        sides = [side for side in sides if any(item.opinion for item in side.items)]
        groups = []
        for name, chosen in rates.by_suite(sides).items():
            measured = [opinion_metrics(items).get("opinion", {}) for items in chosen]
            rows = [
                Row(label, [cell(one) if one else ("–", "") for one in measured])
                for label, cell in _OPINION.items()
            ]
            groups += [(name, rows)] if any(measured) else []
        if groups:
            found.append((title, Table([(side.label, False) for side in sides], groups)))
    return found


def _agreement(one: Mapping[str, Any]) -> tuple[str, str]:
    return percent(one["agreement"]), (
        ""
        if one["agreement"] is None
        else bounds(Interval(one["agreement_low"], one["agreement_high"]))
    )


_OPINION: dict[str, Callable[[Mapping[str, Any]], tuple[str, str]]] = {
    "asked": lambda one: (f"{one['asked']:,}", f"{one['unruled']:,} without a ruling"),
    "agrees with the rules": _agreement,
    "beyond chance (kappa)": lambda one: (figure(one["kappa"]), f"of {one['n']:,}"),
    "judge says yes": lambda one: (percent(one["judge_rate"]), ""),
    "rules say yes": lambda one: (percent(one["rules_rate"]), ""),
    "mean rating of free text": lambda one: (figure(one["rating"]), f"of {one['n_rated']:,}"),
}
