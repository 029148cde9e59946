"""Engines that wait for no more than a few hundredths of a second."""

import pytest

from tasks.chat import attempts, breaker


@pytest.fixture
def no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(breaker, "LONGEST_PAUSE", 0.05)
