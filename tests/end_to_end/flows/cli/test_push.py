"""`lyceum push` where torch is installed: the model on the hub is proven to be the one that was
trained."""

from typing import Any

import pytest

from tests.fakes.fake_hub import FakeHub
from tests.flows.cli import test_push

store, hub, push = test_push.store, test_push.hub, test_push.push


def test_what_is_pushed_was_proven(hub: FakeHub, push: Any) -> None:
    pytest.importorskip("torch")
    told = push("--dtype", "float32")
    card = (hub.repositories["us/demo"] / "README.md").read_text(encoding="utf-8")
    assert "was compared with the trained model in JAX" in card
    assert {"verification.json", test_push.WEIGHTS} <= set(told["files"])
    assert push()["changed"] is False
