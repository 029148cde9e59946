"""The simulation itself: the same seed is the same history, laws hold in a handful of histories,
and a broken history becomes a small one."""

import pytest

from tests.simulation.history import play
from tests.simulation.plan import Plan, drawn
from tests.simulation.plants import PLANTS
from tests.simulation.shrink import shrunk, told

LOCAL = ("local",)


def directory(seed: int) -> Plan:
    """A plan whose store is a directory."""
    while (plan := drawn(seed, LOCAL)).place != "directory":
        seed += 1000
    return plan


@pytest.mark.parametrize("seed", range(1, 9))
def test_laws_hold(seed: int) -> None:
    result = play(directory(seed))
    assert not result.law, told(result)
    assert result.commits


def test_the_same_seed_is_the_same_history() -> None:
    assert play(directory(3)).lines == play(directory(3)).lines
    assert play(directory(3)).lines != play(directory(4)).lines


def test_a_missing_guard_is_found_and_told_in_few_words() -> None:
    """Leases without heartbeats: a live holder loses its lease, with nothing else going wrong."""
    plant = next(one for one in PLANTS if one.name == "a holder's heartbeat")
    with plant.without():
        found = next(r for seed in range(100, 200) if (r := play(directory(seed))).law)
        small = shrunk(found)
    assert small.law == found.law == "one holder"
    assert small.plan.parts <= found.plan.parts
    assert small.plan.parts <= 2
    assert "took" in told(small)
