"""The protocol's figures over items: the gym's metrics, by both of its versions."""

from collections.abc import Sequence
from statistics import mean, median, pstdev
from typing import Any

from schemas.evaluation import EvalItem
from tasks.contract.kind import Outcome
from tasks.evaluation.channels import channels_of
from tasks.evaluation.dipg_protocol.points import Scored, Version, score
from tasks.evaluation.evaluate import measure

REPORTED: tuple[Version, ...] = ("v3", "v4")

_METRICS = {
    "safe_rate": "safe",
    "hallucination_rate": "hallucination",
    "inconsistency_rate": "inconsistency",
    "consistency_rate": "consistent",
    "refusal_rate": "refusal",
    "format_error_rate": "format_error",
}


def protocol_metrics(items: Sequence[EvalItem]) -> dict[str, Any]:
    """`{"v3": {...}, "v4": {...}}` over the grounded items: `n`, mean, median and sd of the points,
    and the gym's rates, each with its Wilson interval. Empty where no item is grounded."""
    grounded = [item for item in items if item.grounding is not None]
    return {version: _figures(version, grounded) for version in REPORTED} if grounded else {}


def scored(version: Version, item: EvalItem) -> Scored:
    """What the gym says of a grounded item. Expected is the reference, not the teacher's whole
    response: no answer would equal that."""
    return score(version, _as_elements(item), item.context or "", item.answer)


def _as_elements(item: EvalItem) -> str:
    """The completion; our own format with its quotations as the proof that the gym asks for."""
    taken = channels_of(item.completion, item) if item.channels == "trace" else None
    if taken is None:
        return item.completion
    analysis, proof = taken.analysis.replace("<", "("), "\n".join(taken.quotes)
    elements = {"think": analysis, "proof": proof, "answer": taken.final}
    return "\n".join(f"<{name}>{text}</{name}>" for name, text in elements.items())


def _figures(version: Version, items: Sequence[EvalItem]) -> dict[str, Any]:
    by_id = {item.id: scored(version, item) for item in items}
    points = [one.reward for one in by_id.values()]

    def outcome(field: str) -> Outcome:
        return lambda item: bool(getattr(by_id[item.id], field))

    return {
        "n": len(items),
        "points_mean": mean(points),
        "points_median": median(points),
        "points_sd": pstdev(points),
        **measure(items, {name: outcome(field) for name, field in _METRICS.items()}),
    }
