"""A megabyte of text that tries to cost time, against every reward that no model and no sandbox
judges."""

from collections.abc import Callable

import pytest

from tests.tasks.rewards.test_attacks import (
    READERS,
    inputs,  # noqa: F401
    takes_time_in_proportion,
    worth,  # noqa: F401
)


@pytest.mark.parametrize("name", READERS)
def test_a_megabyte_takes_no_time_to_speak_of(worth: Callable[[str, str], float | None], name: str):
    takes_time_in_proportion(worth, name, 1_000_000)
