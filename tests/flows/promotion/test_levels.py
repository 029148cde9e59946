"""The levels of nights: what they add up to, whose number is whose, and how often nights err."""

import math
from pathlib import Path

import numpy as np
import pytest

from flows.promotion.levels import MISTAKES, Night, left, level, night_of, take
from infra.store.store import open_store
from tasks.statistics.noninferiority import evidence


def test_all_levels_together_are_the_mistakes_that_are_allowed() -> None:
    """2.5 % (1 - 1 / log2 3) in the first night, and so on; after two nights half of it is left,
    after six a third, after 1,022 a tenth."""
    assert MISTAKES == 0.025
    assert level(1) == pytest.approx(0.0092268, abs=1e-7)
    assert level(2) == pytest.approx(0.025 * (1 / math.log2(3) - 1 / 2))
    assert [left(nights) for nights in (0, 2, 6, 1022)] == pytest.approx([1, 1 / 2, 1 / 3, 0.1])
    levels = [level(night) for night in range(1, 5000)]
    assert levels == sorted(levels, reverse=True)
    assert sum(levels) + MISTAKES * left(4999) == pytest.approx(MISTAKES)
    assert level(10**6) > 1e-11, "after 2,700 years"


def test_a_night_takes_the_next_number_and_keeps_it_when_it_is_retried(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first = night_of(store, "demo", "a", "look")
    assert (first.number, first.level) == (1, level(1))
    assert night_of(store, "demo", "a", "look") == first, "nothing was taken yet"
    assert take(store, "demo", first)
    assert night_of(store, "demo", "a2", "look").number == 1
    assert take(store, "demo", first), "a night that was killed, again"
    assert night_of(store, "demo", "b", "other").number == 2
    assert night_of(store, "other", "a", "look").number == 1
    assert night_of(None, "demo", "a", "other").number == 1
    late = first.model_copy(update={"look": "other"})
    assert not take(store, "demo", late), "of two nights at a time one has to decide again"


def test_a_damaged_night_counts_as_one(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    take(store, "demo", Night(number=1, level=level(1), look="a", run_id="a"))
    store.write_bytes("nights/demo/000001.json", b"{")
    assert night_of(store, "demo", "a", "a").number == 2


def test_sixty_nights_of_equal_models_seldom_promote_one() -> None:
    """1,000 histories, the same 200 prompts every night, a tenth of which changes. 2.5 % of them
    are 25, and 45 is four standard deviations more; at 2.5 % a night most have a mistake."""
    rng = np.random.Generator(np.random.Philox(11))
    solved = rng.beta(0.15, 0.15, size=(1000, 200))
    champion = rng.random(solved.shape) < solved
    known: dict[tuple[int, int], float] = {}
    strict, nightly = np.zeros(1000, bool), np.zeros(1000, bool)
    for night in range(1, 61):
        candidate = rng.random(solved.shape, dtype=np.float32) < solved
        pairs = zip((candidate > champion).sum(1), (candidate < champion).sum(1), strict=True)
        p = [known.setdefault((w, lost), evidence(200, w, lost)) for w, lost in pairs]
        strict |= np.array(p) <= level(night)
        nightly |= np.array(p) <= MISTAKES
    assert strict.sum() < 45
    assert nightly.sum() > 200
