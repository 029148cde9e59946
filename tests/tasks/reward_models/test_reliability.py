"""What a reward model's scores are worth: metrics by hand, a temperature that is found again, a
model that only learned length."""

from collections import Counter
from typing import get_args

import numpy as np
import pytest

from schemas.examples import Domain, Format, Trace
from tasks.reward_models.pairs import TracePair, damaged_pairs
from tasks.reward_models.reliability import (
    ATTACKS,
    ScoredPair,
    attacked,
    fit_temperature,
    pair_metrics,
    reliability,
)
from tests.tasks.reward_models.step_traces import EXAMPLES


def scored(
    margin, chosen="a is a", rejected="a is b", step=None, steps=(), channels="trace"
) -> ScoredPair:
    parts = {"answer": "1", "channels": channels}
    texts = (Trace(reasoning=text, **parts).render() for text in (chosen, rejected))
    origin = "data" if step is None else "damaged"
    pair = TracePair(
        id="0" * 16,
        prompt="p",
        domain=Domain.MATH,
        origin=origin,
        damaged_step=step,
        channels=channels,
        **dict(zip(("chosen", "rejected"), texts, strict=True)),
    )
    return ScoredPair(pair, margin, 0.0, list(steps))


def test_the_temperature_makes_the_probabilities_fit():
    """Outcomes drawn with margins of temperature 3 give that back, and separable ones a finite one
    (Platt's targets)."""
    generator = np.random.Generator(np.random.Philox(0))
    margins = generator.normal(size=20_000) * 6
    wins = generator.random(20_000) < 1 / (1 + np.exp(-margins / 3))
    assert fit_temperature(np.where(wins, margins, -margins)) == pytest.approx(3, rel=0.05)
    easy = fit_temperature([2.0] * 8)  # sigma(2 / T) = 9 / 10
    assert 1 / (1 + np.exp(-2 / easy)) == pytest.approx(0.9, abs=1e-6)


def test_reliability_bins_hold_what_was_said_and_what_was_so():
    bins = reliability(np.array([0.92, 0.08, 0.93, 0.52, 1.0]))
    found = [(round(one["low"], 2), one["n"], one["accuracy"]) for one in bins]
    assert found == [(0.5, 1, 1.0), (0.9, 3, 2 / 3), (0.95, 1, 1.0)]
    assert bins[1]["confidence"] == pytest.approx((0.92 + 0.92 + 0.93) / 3)
    assert bins[1]["accuracy_low"] < 2 / 3 < bins[1]["accuracy_high"]


@pytest.mark.parametrize("channels", get_args(Format))
def test_a_model_that_only_learned_length_is_seen(channels):
    long, short = "a is a and b is b", "a is a"
    pairs = [*[(1, long, short)] * 30, *[(-1, short, long)] * 10]
    found = pair_metrics([scored(*pair, channels=channels) for pair in pairs], 1.0)
    assert found["accuracy"] == 0.75
    assert found["longer_wins"] == 0.75
    assert (found["chosen_longer"]["accuracy"], found["chosen_shorter"]["accuracy"]) == (1.0, 0.0)
    assert (found["same_answer"]["n"], found["steps"]["n"]) == (40, 0)


def test_pair_metrics_by_hand():
    rows = [
        scored(2.0, step=0, steps=(-1, 0)),
        scored(-1.0, step=1, steps=(-1, 0)),
        scored(0.0),
        scored(1.0, step=0, steps=(0.5,)),
    ]
    found = pair_metrics(rows, 2.0)
    sigma = 1 / (1 + np.exp(-np.array([1.0, -0.5, 0.0, 0.5])))
    assert found["accuracy"] == 0.5
    assert found["log_loss"] == pytest.approx(-np.log(sigma).mean())
    assert found["brier"] == pytest.approx(((1 - sigma) ** 2).mean())
    sure = [sigma[0], 1 - sigma[1], 0.5, sigma[3]]
    right = [1, 0, 0, 1]  # bins: 0.73 alone; 0.62 twice; 0.5 alone
    ece = (abs(1 - sure[0]) + 2 * abs(0.5 - sure[1]) + abs(0 - 0.5)) / 4
    assert found["ece"] == pytest.approx(ece)
    assert sum(right) / 4 == found["accuracy"]
    counts = {name: one["n"] for name, one in found["origins"].items()}
    assert counts == {"damaged": 3, "data": 1}
    assert {"found": 0.5, "n": 2, "chance": 0.5}.items() <= found["steps"].items()


def test_attacks_leave_a_trace_as_wrong_as_it_was():
    pair = damaged_pairs(EXAMPLES[:1], 1, 0, lambda pair: True, Counter())[0]
    wrong = pair.traces()[1]
    for attack in ATTACKS.values():
        trace = attacked(pair, attack).traces()[1]
        assert wrong.reasoning in trace.reasoning
        assert len(trace.reasoning) > len(wrong.reasoning)
        assert trace.answer == wrong.answer
