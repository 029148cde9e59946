"""Texts that try to be paid for nothing, against every reward that no model and no sandbox judges; and texts that try to cost time.

What each reward is for is tested in its own file.
"""

from collections.abc import Callable

import pytest

from tests.tasks.rewards.test_attacks import READERS, inputs, takes_time_in_proportion, worth  # noqa: F401


@pytest.mark.parametrize("name", READERS)
def test_a_megabyte_takes_no_time_to_speak_of(worth: Callable[[str, str], float | None], name: str):
    takes_time_in_proportion(worth, name, 1_000_000)
