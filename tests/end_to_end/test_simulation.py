"""Two minutes of simulated histories of new seeds, which the test prints, and those that broke a
law once (docs/simulation.md)."""

import os
import sys
from functools import partial

import pytest

from tests.fakes.process import ROOT, run_python
from tests.simulation.history import play
from tests.simulation.plan import Event, Plan
from tests.simulation.shrink import told

_simulate = partial(
    run_python, "-m", "tests.simulation", env={**os.environ, "PYTHONPATH": str(ROOT)}
)


def test_no_law_is_broken_by_new_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the clock, so that each run of CI plays others; what breaks a law is told, made small, and
    with the command that plays it again."""
    done = _simulate("--seconds", "120", "--histories", "1000000")
    with capsys.disabled():  # seeds are printed when all is well, too
        sys.stdout.write(f"\n{done.stdout}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ": 0 histories" not in done.stdout


def test_no_law_is_broken_by_seeds_that_are_known() -> None:
    done = _simulate("--seed", "600000", "--histories", "120")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_replayed_seed_is_the_same_history_byte_for_byte() -> None:
    """In two processes; of each place and target."""
    for target in ("local", "v5e-8"):
        first, second = (_simulate("--seed", "7", "--target", target, "--replay") for _ in range(2))
        assert first.stdout == second.stdout
        assert first.stdout.count("\n") > 20, first.stderr


def test_garbage_collection_beside_runs() -> None:
    """Two histories that were broken once, from many seeds. The store is away for longer than a
    lease lives while the operator watches whether a machine's run is alive: the machine was deleted
    (3 % of seeds). Or runs are dropped while others begin: two held the same lease (7 %)."""
    for seed in range(60):
        storm = Event("storm", 19.8, seconds=15.0)
        play_well(Plan(seed, "bucket", "v5e-8", 1, (0.0,), events=(Event("gc", 18.1), storm)))
        late = tuple(Event("force", 40.6 + 0.02 * (seed % 20) + more) for more in (0.0, 0.25, 0.5))
        dropped = (Event("gc", 40.0, amount=1.0), *late)
        play_well(Plan(seed, "bucket", "local", 1, (0.0,), events=dropped))


def play_well(plan: Plan) -> None:
    result = play(plan)
    assert not result.law, told(result)
