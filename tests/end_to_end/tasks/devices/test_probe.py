"""The probe in a process of its own, as the flow starts it, on a machine without an accelerator."""

import pytest

from infra import accelerator
from infra.accelerator import PROBE, find


def test_what_jax_finds_on_the_cpu_is_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver's file makes it look. libtpu, where it is installed, is left alone."""
    monkeypatch.setattr(accelerator, "_FOUND", {})
    monkeypatch.setattr(accelerator, "_NVIDIA", ("/dev/null",))
    monkeypatch.delenv("JAX_PLATFORMS")
    found = find(("env", "JAX_PLATFORMS=cpu", *PROBE))
    assert (found.accelerator, found.wrong) == (None, True)
    assert "an NVIDIA GPU, and JAX cannot use it: it finds nothing but the CPU" in found.why
    assert found.why.endswith("`uv sync --extra cuda` installs what JAX needs for it")


def test_a_platform_that_is_not_here_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "_FOUND", {})
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    found = find()
    assert (found.accelerator, found.wrong) == (None, True)
    assert found.why.startswith("JAX_PLATFORMS=cuda, and JAX cannot use it: ")
    assert "Traceback" not in found.why
