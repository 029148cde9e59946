"""Endless answers of 50 kB, against every check and every reader of answers."""

import pytest

from tests.tasks.checks.test_attacks import READERS, takes_time_in_proportion


@pytest.mark.parametrize("name", READERS)
def test_endless_answers_take_seconds_at_most(name: str) -> None:
    takes_time_in_proportion(name, 50_000)
