"""Which devices of a host are used: as many as divide all batches, and one half each for a policy
and its judge."""

import logging
from typing import Any

import jax
import pytest

from schemas.base import StageFailed
from tasks.devices.hosts import halves, make_mesh


def test_as_many_devices_are_used_as_divide_all_batches(monkeypatch, caplog):
    device = jax.devices()[0]
    monkeypatch.setattr(jax, "devices", lambda: [device] * 8)
    with caplog.at_level(logging.INFO, logger="lyceum"):
        assert make_mesh({"batch_size": 32}).shape == {"fsdp": 8, "tp": 1}
        assert make_mesh().size == 1
        assert caplog.text == ""
        assert make_mesh({"sampling_batch_size": 24, "micro_batch_size": 20}).size == 4
    assert (
        "4 of 8 devices are used: sampling_batch_size = 24, micro_batch_size = 20; a multiple of 8"
        " (8, 16, 24, ...) uses all" in caplog.text
    )
    monkeypatch.setenv("LYCEUM_HOSTS", "2")
    with pytest.raises(StageFailed, match="its Kind must set `devices`"):
        make_mesh({"batch_size": 32})


def test_devices_are_halved_and_one_device_is_both() -> None:
    devices: Any = [type("Device", (), {"process_index": 0, "id": i})() for i in range(8)]
    ids = [[device.id for device in half] for half in halves(devices)]
    assert ids == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert halves(jax.devices()[:1]) == (jax.devices()[:1], jax.devices()[:1])
