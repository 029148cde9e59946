"""What is recorded of TRL is what TRL gives, where it is installed."""

import pytest

from tests.tasks.losses.test_trl_parity import THEIRS, assert_equal
from tests.tasks.losses.trl_losses import of_trl


def test_the_record_is_what_trl_gives(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    pytest.importorskip(
        "trl", minversion="1.16", reason="TRL is not installed; what it gave is compared"
    )
    live = of_trl()
    assert_equal(
        {name: live[name] for name in live if name != "trl"},
        {name: THEIRS[name] for name in live if name != "trl"},
    )
