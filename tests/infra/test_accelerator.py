"""Which accelerator local jobs use: asked of JAX in a process, and only where there may be one. No
GPU is here: the processes that answer are a line of Python."""

import json
import sys
from pathlib import Path

import pytest

from infra import accelerator
from infra.accelerator import Accelerator, Found, find

A100 = {
    "platform": "cuda",
    "kind": "NVIDIA A100-SXM4-40GB",
    "devices": 2,
    "memory_bytes": 36 * 2**30,
    "driver": "PJRT C API cuda 12090",
}
TPU = {**A100, "platform": "tpu", "kind": "TPU v5 lite", "devices": 8}


def answering(value: object, said: str = "", code: int = 0) -> list[str]:
    """A probe that prints a JSON value, and `said` on standard error."""
    says = f"print({json.dumps(value)!r}); sys.stderr.write({said!r}); sys.exit({code})"
    return [sys.executable, "-c", f"import sys; {says}"]


NEVER = answering({}, "must not be asked", code=1)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose drivers' files are those that a test makes: `nvidia0` shows a GPU, `accel0`
    a TPU."""
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(accelerator, "_FOUND", {})
    monkeypatch.setattr(accelerator, "_NVIDIA", (str(tmp_path / "nvidia0"),))
    monkeypatch.setattr(accelerator, "_TPU", (str(tmp_path / "accel[0-9]*"),))
    return tmp_path


def test_a_machine_that_shows_no_hardware_is_not_asked_nor_one_told_to_use_the_cpu(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find(NEVER) == Found(None, "none: jobs run on the CPU")
    (machine / "nvidia0").touch()
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert find(NEVER) == Found(None, "JAX_PLATFORMS=cpu: jobs run on the CPU")


@pytest.mark.parametrize(("file", "answer"), [("nvidia0", A100), ("accel0", TPU)])
def test_what_jax_finds_is_used_and_asked_for_once(machine, file, answer):
    (machine / file).touch()
    log = machine / "asked"
    lines = f"open({str(log)!r}, 'a').write('1'); print({json.dumps(answer)!r})"
    probe = [sys.executable, "-c", lines]
    assert find(probe) == find(probe) == Found(Accelerator.parse(answer))
    assert log.read_text() == "1"


MISSING = (
    "An NVIDIA GPU may be present on this machine, but a CUDA-enabled jaxlib is not installed."
    " Falling back to cpu."
)
CPU = {**A100, "platform": "cpu", "kind": "cpu", "devices": 1, "memory_bytes": None}


@pytest.mark.parametrize(
    ("file", "probe", "words"),
    [
        ("nvidia0", answering(CPU, f"WARNING {MISSING}\n"), [MISSING, "uv sync --extra cuda"]),
        ("accel0", answering(CPU), ["has a TPU", "nothing but the CPU", "uv sync --extra tpu"]),
        ("nvidia0", answering({"error": "CUDA driver is too old"}), ["driver is too old"]),
        ("nvidia0", answering({}, "Traceback\nImportError: no jax", 1), ["code 1: ImportError"]),
    ],
)
def test_hardware_that_jax_cannot_use_is_told_with_the_fix(machine, file, probe, words):
    (machine / file).touch()
    found = find(probe)
    assert (found.accelerator, found.wrong) == (None, True)
    assert [part for part in words if part not in found.why] == []
    assert "\n" not in found.why


def test_a_platform_that_somebody_names_is_asked_for_whatever_the_drivers_show(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    assert find(answering(A100)).accelerator == Accelerator.parse(A100)
    found = find(answering({"error": "no such platform comes up"}))
    assert found.why == "JAX_PLATFORMS=cuda, and JAX cannot use it: no such platform comes up"


def test_what_a_job_on_an_accelerator_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """`given` is what a job on the CPU would get; what a person has set stays."""
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    given = {"XLA_FLAGS": "--xla_dump_to=/x", "JAX_PLATFORMS": "cpu", "HOME": "/root"}
    locks = {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}  # one of a job that was killed stops nobody
    assert Accelerator.parse(TPU).environment({}) == {"JAX_PLATFORMS": "tpu,cpu", **locks}
    found = Accelerator.parse(A100)
    assert found.environment({"HOME": "/root"}) == {
        "HOME": "/root",
        "JAX_PLATFORMS": "cuda,cpu",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9",
        "XLA_FLAGS": "--xla_gpu_exclude_nondeterministic_ops=true",
    }
    more = found.environment({**given, "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5"})
    flags = "--xla_dump_to=/x --xla_gpu_exclude_nondeterministic_ops=true"
    assert (more["XLA_FLAGS"], more["XLA_PYTHON_CLIENT_MEM_FRACTION"]) == (flags, "0.5")
    assert more["JAX_PLATFORMS"] == "cuda,cpu"
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    assert found.environment(given)["JAX_PLATFORMS"] == "cuda"
