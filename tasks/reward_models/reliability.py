"""Measures a reward model on held-out pairs: how often, and how surely, the better trace has the
higher score, and why.

Accuracy   fraction of pairs whose chosen trace scores higher, with Wilson's interval (ties are
           wrong); by domain, by origin, and of pairs whose two traces give the same answer, which
           only the reasoning tells apart.
Surety     sigma(margin / temperature) is the probability that the chosen trace is better. One
           temperature is fitted on the validation pairs (Guo et al., 1706.04599) by the log loss of
           Platt's targets (n + 1)/(n + 2), so that n separable pairs give a finite one. On held-out
           pairs: log loss, Brier score, and expected calibration error over ten bins of equal
           width, with and without it.
Length     `longer_wins` is what preferring the longer reasoning would get, and `format_wins` what
           preferring well-formed traces would have got on the data's pairs before malformed ones
           were left out (ties count half in both). A model that only learned length is right on all
           pairs of `chosen_longer` and on none of `chosen_shorter`, or the other way round.
Steps      of damaged traces of several steps: how often the wrong step has the lowest score of all,
           and how often chance would say so.
Attacks    `ATTACKS` on the rejected trace: how often the untouched chosen trace still scores
           higher, and what its reward has gained.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from schemas.base import StrictModel
from tasks.reward_models.pairs import TracePair
from tasks.reward_models.steps import split_steps
from tasks.statistics.intervals import rate_record

BINS = 10
FILE = "calibration.json"


class Calibration(StrictModel):
    """Turns a trace's score into a reward.

    Attributes:
        centre: the mean score of the validation pairs' traces. temperature: see this file's head.
        prompt_length, response_length: the fixed lengths of training, in tokens.
    """

    centre: float
    temperature: float
    prompt_length: int
    response_length: int

    def reward(self, score: float) -> float:
        """The probability, 0 to 1, that a trace of this score is better than one of the mean
        score."""
        return float(_sigmoid(np.float64((score - self.centre) / self.temperature)))


def read_calibration(directory: Path) -> Calibration:
    """The calibration of a reward model's artifact."""
    return Calibration.parse(
        json.loads((directory / FILE).read_text(encoding="utf-8"))["calibration"]
    )


@dataclass(frozen=True)
class ScoredPair:
    """A pair with the scores of its traces, and of the rejected trace's steps."""

    pair: TracePair
    chosen: float
    rejected: float
    rejected_steps: list[float]

    @property
    def margin(self) -> float:
        return self.chosen - self.rejected


def write_calibration(
    directory: Path, calibration: Calibration, heldout: Sequence[ScoredPair]
) -> None:
    """Write `calibration.json`: the calibration, and the bins of held-out reliability diagrams with
    and without its temperature."""
    margins = np.array([one.margin for one in heldout])
    bins = {
        "bins": reliability(_sigmoid(margins / calibration.temperature)),
        "uncalibrated_bins": reliability(_sigmoid(margins)),
    }
    text = json.dumps({"calibration": calibration.model_dump(), **bins}, indent=1)
    (directory / FILE).write_text(text + "\n", encoding="utf-8")


def fit_temperature(margins: Sequence[float]) -> float:
    """The temperature that makes sigma(margin / temperature) most probable of n margins; see the
    head of this file.

    The loss is convex in 1/temperature; bisection searches from 0.001 to 1,000.
    """
    values, target = np.asarray(margins, np.float64), (len(margins) + 1) / (len(margins) + 2)

    def slope(inverse: float) -> float:
        return float(np.mean(values * (_sigmoid(inverse * values) - target)))

    low, high = 1e-3, 1e3
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return 1 / math.sqrt(low * high)


def reliability(probabilities: np.ndarray) -> list[dict[str, Any]]:
    """Bins, by confidence from 0.5 to 1, of (N,) probabilities that the chosen trace is better.

    Returns:
        for each bin that is not empty: low, high (ends), n, confidence (mean), accuracy with its
            Wilson interval.
    """
    sure, right = np.maximum(probabilities, 1 - probabilities), probabilities > 0.5
    which = np.minimum(((sure - 0.5) * 2 * BINS).astype(int), BINS - 1)
    return [
        {
            "low": 0.5 + number / (2 * BINS),
            "high": 0.5 + (number + 1) / (2 * BINS),
            "confidence": float(sure[which == number].mean()),
            **rate("accuracy", right[which == number]),
        }
        for number in range(BINS)
        if (which == number).any()
    ]


def surety(margins: np.ndarray, temperature: float) -> dict[str, float]:
    """Log loss (nats), Brier score and expected calibration error of sigma(margins /
    temperature)."""
    probabilities = _sigmoid(margins / temperature)
    bins = reliability(probabilities)
    error = sum(one["n"] * abs(one["accuracy"] - one["confidence"]) for one in bins) / len(margins)
    log_loss = float(np.mean(np.logaddexp(0, -margins / temperature)))
    return {"log_loss": log_loss, "brier": float(np.mean((1 - probabilities) ** 2)), "ece": error}


def pair_metrics(scored: Sequence[ScoredPair], temperature: float) -> dict[str, Any]:
    """The metrics of this module's docstring, except `format_wins` and `attacks`, over at least one
    pair."""
    margins = np.array([one.margin for one in scored])
    traces = [one.pair.traces() for one in scored]
    longer = np.array([len(one.reasoning) - len(other.reasoning) for one, other in traces])
    right = margins > 0
    same_answer = np.array([one.answer == other.answer for one, other in traces])
    groups: dict[str, list[str]] = {
        "domains": [one.pair.domain.value for one in scored],
        "origins": [one.pair.origin for one in scored],
    }
    return {
        **rate("accuracy", right),
        **surety(margins, temperature),
        "uncalibrated": surety(margins, 1.0),
        "same_answer": rate("accuracy", right[same_answer]),
        "chosen_longer": rate("accuracy", right[longer > 0]),
        "chosen_shorter": rate("accuracy", right[longer < 0]),
        "longer_wins": float(np.mean(np.where(longer == 0, 0.5, longer > 0))),
        **{
            group: {
                name: rate("accuracy", right[np.array(names) == name])
                for name in sorted(set(names))
            }
            for group, names in groups.items()
        },
        "steps": step_metrics(scored),
    }


def step_metrics(scored: Sequence[ScoredPair]) -> dict[str, Any]:
    """`found` (the wrong step of a damaged trace has the lowest score of its steps) of `n` traces
    of several steps, and `chance`."""
    damaged = [
        one for one in scored if one.pair.damaged_step is not None and len(one.rejected_steps) > 1
    ]
    found = rate(
        "found",
        np.array(
            [int(np.argmin(one.rejected_steps)) == one.pair.damaged_step for one in damaged], bool
        ),
    )
    return found | {
        "chance": (
            float(np.mean([1 / len(one.rejected_steps) for one in damaged])) if damaged else None
        )
    }


def rate(name: str, counted: np.ndarray) -> dict[str, Any]:
    """`{name, name_low, name_high, n}` of (N,) bool: the fraction with its Wilson interval, None
    over nothing."""
    return {**rate_record(name, counted.tolist()), "n": len(counted)}


# Attacks


def _padded(reasoning: str) -> str:
    return "\n".join([split_steps(reasoning)[0].strip()] * 3 + [reasoning])


ATTACKS: Mapping[str, Callable[[str], str]] = {
    "keywords": lambda text: f"{text}\nSo every step is correct, and the answer is right.",
    "repeated": lambda text: f"{text}\n{text}",
    "padded": _padded,
}
"""Changes to a wrong reasoning that do not improve it: praise, all of it twice, its first step
three times more."""


def attacked(pair: TracePair, attack: Callable[[str], str]) -> TracePair:
    """The pair with its rejected reasoning attacked."""
    wrong = pair.traces()[1]
    trace = wrong.model_copy(update={"reasoning": attack(wrong.reasoning)})
    return pair.model_copy(update={"rejected": trace.render(), "damaged_step": None})


def attack_metrics(
    before: Sequence[ScoredPair], after: Sequence[ScoredPair], calibration: Calibration
) -> dict[str, Any]:
    """Accuracies of pairs before and after an attack on the rejected trace, and the mean gain of
    its reward. Pairs that became too long for the fixed lengths are left out of both."""
    gains = [
        calibration.reward(new.rejected) - calibration.reward(old.rejected)
        for old, new in zip(before, after, strict=True)
    ]
    return {
        **rate("accuracy", np.array([one.margin > 0 for one in after], bool)),
        "accuracy_before": float(np.mean([one.margin > 0 for one in before])) if before else None,
        "gain": float(np.mean(gains)) if gains else None,
    }


def _sigmoid(x: Any) -> Any:
    return np.exp(-np.logaddexp(0, -x))
