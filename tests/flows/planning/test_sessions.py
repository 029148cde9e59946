"""A run divided into sessions."""

from typing import Any

import pytest

from flows.cli.show import plan as shown
from flows.planning.sessions import MOST_LISTED, sessions
from flows.report.blocks import plain

HOUR = 3600.0


def stages(**hours: float | None) -> list[dict[str, Any]]:
    found = hours.items()
    return [{"name": name, "seconds": None if h is None else h * HOUR} for name, h in found]


def test_each_session_ends_where_its_time_is_up() -> None:
    """6 h and 12 h in sessions of 9 h, of which 8 h 55 min are worked in: the first ends after
    (8.9167 - 6) / 12 = 24.3 % of grpo, the second at 11.8333 h of it, 98.6 %, the third with it."""
    found = sessions(stages(distill=0.0, sft=6, grpo=12), 9)
    assert (found["hours"], found["count"]) == (9, 3)
    assert [one["stages"] for one in found["listed"]] == [["sft", "grpo"], ["grpo"], ["grpo"]]
    fractions = [one["ends"]["fraction"] for one in found["listed"]]
    assert fractions == pytest.approx([0.24306, 0.98611, 1.0], abs=1e-5)
    assert sum(one["seconds"] for one in found["listed"]) == pytest.approx(18 * HOUR)


def test_what_fits_into_one_session_takes_one_and_nothing_takes_none() -> None:
    assert sessions(stages(sft=1, grpo=2), 9)["count"] == 1
    assert sessions(stages(sft=0, grpo=None), 9) == {"hours": 9, "count": 0, "listed": []}
    booted = [{**one, "at_least": {"seconds": 3600.0}} for one in stages(grpo=None)]
    assert sessions([*stages(sft=8.5), *booted], 9)["count"] == 2


def test_a_session_too_short_for_anything_is_counted_and_not_listed() -> None:
    found = sessions(stages(sft=9), 1e-9)
    assert found["count"] > 9e9
    assert len(found["listed"]) == MOST_LISTED


def test_of_stages_side_by_side_the_one_that_goes_on_ends_a_session() -> None:
    over = {"sft": 12 * HOUR, "base_eval": 3 * HOUR}
    found = sessions(stages(sft=12, base_eval=3), 9, over)
    assert [one["stages"] for one in found["listed"]] == [["base_eval", "sft"], ["sft"]]
    assert found["listed"][0]["ends"] == {
        "stage": "sft",
        "fraction": pytest.approx(0.74306, abs=1e-5),
    }


def test_people_are_told_where_each_session_ends() -> None:
    planned = [
        {"kind": "sft", "cached": False, "reason": "", "programs": [], "cost_usd": 0.0, **one}
        for one in stages(sft=6, grpo=4, grpo_eval=None)
    ]
    at_least = {"seconds": 10 * HOUR, "cost_usd": 0.0, "without": ["grpo_eval"]}
    value = {"target": "local", "recipe": "r", "fits": True, "stages": planned}
    lines = shown({**value, "at_least": at_least, "sessions": sessions(planned, 9)})
    assert [plain(line) for line in lines if isinstance(line, str)][1:] == [
        "In sessions of 9 h (`lyceum run --hours`): at least 2",
        "1. sft, grpo (to 73 %); 8 h 55 min",
        "2. grpo; 1 h 5 min",
    ]
    value["sessions"] = sessions([], 9)
    assert "Sessions of 9 h: nobody knows how many" in shown(value | {"at_least": at_least})
