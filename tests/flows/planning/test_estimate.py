"""Time and cost of a stage, from what the compiler says of its programs and what was measured."""

import pytest

from flows.planning.compile_cache import Compiled
from flows.planning.estimate import cost, estimate
from infra.settings import TpuSettings

PARTS = ("argument", "temporary", "output", "alias", "code", "accessed", "link")
REPORT = {f"{part}_bytes": 0 for part in PARTS} | {"bytes_accessed": 0.0, "hbm_bytes": 1}
REPORT |= {"refusal": None, "flops": 197e12, "uncounted": [], "compile_seconds": 1}
"""One second of a v5e chip."""


def test_times_are_the_median_of_what_was_measured_of_runs_that_were_long_enough() -> None:
    """By two steps that took two minutes to compile a run of 200 was planned to take three
    hours."""

    def estimated(*took: tuple[float, float]) -> tuple[float, str]:
        programs = [Compiled("train_step", "", 200, 0, REPORT)]
        found = estimate(programs, took, "v5e-8", TpuSettings())
        return found["seconds"], found["basis"].partition(",")[0]

    short, guessed = (2.0, 120.0), (pytest.approx(360 + 200 / 0.4), "40% of the roofline")
    measured = (100.0, 300.0), (300.0, 1200.0), (200.0, 8000.0)
    assert estimated() == estimated(short) == guessed
    known = (pytest.approx(360 + 200 * 4.0), "median of 3 measured runs")
    assert estimated(*measured) == estimated(short, *measured) == known
    assert cost(3600, "v5e-8", TpuSettings(usd_per_chip_hour=2.0)) == 16.0


def test_programs_on_devices_of_their_own_take_no_time_while_the_others_compute() -> None:
    """A judge beside the policy: the stage takes as long as the longer of both; one that is waited
    for adds its time."""

    def seconds(beside: bool, calls: int) -> float:
        judge = Compiled("judge", "", calls, 0, REPORT, beside)
        calls_of = {"generate": 60, "train_step": 40}
        policy = [Compiled(name, "", calls, 0, REPORT) for name, calls in calls_of.items()]
        return estimate([*policy, judge], [(200.0, 200.0)], "v5e-8", TpuSettings())["seconds"] - 360

    cases = {(False, 80): 180, (True, 80): 100, (True, 130): 130}
    assert {case: round(seconds(*case)) for case in cases} == cases
