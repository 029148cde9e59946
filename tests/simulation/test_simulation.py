"""The simulation itself: the same seed is the same history, laws hold in a handful of histories,
and a broken history becomes a small one."""

from contextlib import suppress

import pytest

from tests.fakes.process import printed
from tests.simulation.__main__ import main
from tests.simulation.history import _late, play
from tests.simulation.plan import Plan, drawn
from tests.simulation.plants import PLANTS
from tests.simulation.shrink import told
from tests.simulation.world import Late

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


def test_the_same_seed_is_the_same_history_first_in_its_process_or_later() -> None:
    program = (
        "from tests.simulation.test_simulation import directory, play;"
        "print(*play(directory(3)).lines, sep=chr(10))"
    )
    first = printed(program)
    later = [play(directory(seed)).lines for seed in (4, 3)]
    assert first == "\n".join(later[1]) + "\n"
    assert later[0] != later[1]


def test_the_alarm_of_a_history_is_no_error_that_lyceum_takes_for_the_store_s() -> None:
    """Two writes of a flow failed unheard, in a history whose process had been stopped."""
    with pytest.raises(Late), suppress(OSError):
        _late()


def test_a_seed_that_breaks_a_law_is_told_small_and_with_how_to_play_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases without heartbeats: a live holder loses its lease, with nothing else going wrong."""
    monkeypatch.setattr("gc.freeze", lambda: None)
    monkeypatch.setattr("gc.set_threshold", lambda most: None)
    plant = next(one for one in PLANTS if one.name == "a holder's heartbeat")
    with plant.without():
        seed = next(seed for seed in range(100, 200) if play(drawn(seed, LOCAL)).law)
        asked = ["--seed", str(seed), "--target", "local"]
        assert main(asked) == 1
        found = capsys.readouterr().out
        assert main([*asked, "--replay"]) == 1
        small = capsys.readouterr().out
    again = f"again: uv run python -m tests.simulation --seed {seed} --target local --replay"
    assert found.splitlines()[0].startswith(f"seed {seed}: one holder")
    assert again in found
    assert small.strip() in found
    assert "took" in small
    plan = [line for line in small.splitlines() if line.startswith("  - ")]
    assert len(plan) <= 1 + 2, "what runs where, and two things that go wrong"
