"""The accelerator of this machine: the GPU or TPU that JAX finds, which local jobs use.

Another process asks JAX (`tasks.devices.probe`), since JAX occupies the devices where it is loaded:
most of a GPU's memory, and all of a TPU. It runs only if files of drivers promise a device, because
loading JAX takes seconds. `JAX_PLATFORMS` has the last word, as everywhere with JAX; `cpu` switches
the search off.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.process import ROOT
from schemas.base import StrictModel

PROBE = (sys.executable, "-m", "tasks.devices.probe")
PROBE_SECONDS = 300.0
"""Seconds that JAX may take to come up."""

_NVIDIA = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")
_TPU = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")
"""Files of the drivers: of GPUs as JAX itself looks for them (the last one is Windows'), of TPUs
before and since v5."""

MEMORY_FRACTION = "0.9"
"""The share of a GPU's memory that a job may use, which has the GPU for itself. JAX's own default
is 0.75."""


class Accelerator(StrictModel):
    """The devices that JAX found.

    Attributes:
        platform: JAX's name for it, `cuda` or `tpu`.
        kind: the device, e.g. `NVIDIA A100-SXM4-40GB` or `TPU v5 lite`.
        devices: how many there are.
        memory_bytes: the memory of one device that a job may use; None: unknown.
        driver: the platform's own description.
    """

    platform: str
    kind: str
    devices: int
    memory_bytes: int | None
    driver: str

    def environment(self, given: dict[str, str]) -> dict[str, str]:
        """The variables of a worker with the devices, made from those of a worker without.

        If a platform that was found is not available later, the worker fails instead of using the
        CPU. On a GPU sums have one order, so that the same program on the same machine gives the
        same bytes.
        """
        platforms = {"JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS") or f"{self.platform},cpu"}
        if self.platform == "tpu":
            # the file by which libtpu knows that it is in use outlives a worker that was killed
            return {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1", **given, **platforms}
        flags = (given.get("XLA_FLAGS"), "--xla_gpu_exclude_nondeterministic_ops=true")
        ours = {**platforms, "XLA_FLAGS": " ".join(filter(None, flags))}
        return {"XLA_PYTHON_CLIENT_MEM_FRACTION": MEMORY_FRACTION, **given, **ours}


@dataclass(frozen=True)
class Found:
    """The result of the search. `why`: without an accelerator, why jobs run on the CPU and how to
    change that, for people. `wrong`: whether there is hardware that jobs cannot use."""

    accelerator: Accelerator | None
    why: str = ""
    wrong: bool = False


def find(command: Sequence[str] = PROBE) -> Found:
    """The accelerator of this machine; each process searches once."""
    asked = os.environ.get("JAX_PLATFORMS", "")
    with _LOCK:
        key = (asked, *command)
        if key not in _FOUND:
            _FOUND[key] = _find(asked, command)
        return _FOUND[key]


_FOUND: dict[tuple[str, ...], Found] = {}
_LOCK = threading.Lock()


def _find(asked: str, command: Sequence[str]) -> Found:
    if asked.partition(",")[0] == "cpu":
        return Found(None, "JAX_PLATFORMS=cpu: jobs run on the CPU")
    hardware = visible()
    if not asked and not hardware:
        return Found(None, "none: jobs run on the CPU")
    said = _ask(command)
    if isinstance(said, Accelerator):
        return Found(said)
    extra = "tpu" if "TPU" in hardware else "cuda"
    fix = f"; `uv sync --extra {extra}` installs what JAX needs for it" if hardware else ""
    have = f"this machine has {hardware}" if hardware else f"JAX_PLATFORMS={asked}"
    return Found(None, f"{have}, and JAX cannot use it: {said}{fix}", wrong=True)


def visible() -> str:
    """The hardware that drivers show: `an NVIDIA GPU`, `a TPU`, or nothing."""
    if any(Path(file).exists() for file in _NVIDIA):
        return "an NVIDIA GPU"
    root = Path("/")
    return "a TPU" if any(any(root.glob(pattern[1:])) for pattern in _TPU) else ""


def _ask(command: Sequence[str]) -> Accelerator | str:
    """The probe's result, or why it found none."""
    environment = {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": MEMORY_FRACTION,
        **os.environ,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not come up within {PROBE_SECONDS:.0f} s"
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        end = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        return f"its process ended with exit code {done.returncode}: {end[0]}"
    answer = json.loads(lines[-1])
    if "error" in answer:
        return str(answer["error"])
    found = Accelerator.parse(answer)
    if found.platform == "cpu":
        warned = [line for line in done.stderr.splitlines() if "Falling back to cpu" in line]
        return warned[-1] if warned else "it finds nothing but the CPU"
    return found
