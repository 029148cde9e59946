"""A deadline sets its two events, the pause first, and leaves no timer behind."""

import threading
import time
from unittest.mock import Mock

import pytest

from flows.cli.deadline import Deadline, observed
from schemas.base import Stopped


@pytest.mark.parametrize(
    ("hours", "pause", "stop"), [(9, 8 * 3600 + 3300, 8 * 3600 + 3540), (0.1, 324, 352.8)]
)
def test_nine_hours_pause_five_minutes_before_and_six_minutes_a_tenth_of_them(hours, pause, stop):
    now = time.monotonic()
    deadline = Deadline.after(hours)
    later = time.monotonic()
    assert now + pause <= deadline.pause <= later + pause
    assert now + stop <= deadline.stop <= later + stop


def test_the_events_come_in_order_and_are_told() -> None:
    pause, stop, said = threading.Event(), threading.Event(), []
    now = time.monotonic()
    with observed(Deadline(now, now + 0.2), pause, stop, said.append):
        assert pause.wait(10)
        assert stop.wait(10)
    heads = [line.partition(":")[0] for line in said]
    assert heads == ["The deadline is near", "The deadline has come"]


def test_a_run_that_ends_in_time_is_not_disturbed_afterwards() -> None:
    pause, stop, before = threading.Event(), threading.Event(), threading.active_count()
    for deadline in (None, Deadline(time.monotonic() + 3600, time.monotonic() + 3600)):
        with observed(deadline, pause, stop, print):
            pass
    assert not pause.is_set()
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join(10)
    assert threading.active_count() <= before


def test_a_deadline_that_comes_before_the_run_can_begin_is_refused(tmp_path, monkeypatch, lyceum):
    """As it is when Prefect's server takes longer to start than there is time."""
    monkeypatch.setattr("flows.cli.launch.run_alone", Mock(side_effect=Stopped))
    command = ["run", "quickstart", "--store", tmp_path / "store", "--hours"]
    said = "--hours 1e-09: the deadline came before the run could begin; give it more time."
    assert said in lyceum(*command, "1e-9", code=2).err
    lyceum(*command, "1", code=130)
