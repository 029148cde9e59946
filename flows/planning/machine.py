"""The machine for which programs are planned, a TPU of the cloud or the accelerator of this
machine; and the memory of this one."""

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from infra.accelerator import find
from infra.tpu.chips import CHIPS, DEVICE_KINDS, Chip, chip_of
from infra.tpu.types import TPU_TYPES

BOOT_SECONDS = 360.0
"""Seconds from submitting a job to its first program, as of November 2026, from memory: a TPU in
stock is provisioned in two to three minutes, its VM boots, installs packages and starts JAX in two
to three more. Waiting for capacity is not in it."""


LIMITS = [Path("/sys/fs/cgroup", one) for one in ("memory.max", "memory/memory.limit_in_bytes")]
"""Files with the memory of a control group, such as a container: those of version 2 and 1."""


@dataclass(frozen=True)
class Machine:
    """Attributes:
    name: for people, `v5e-8` or `this machine's Tesla T4`.
    devices: over which a batch can be spread.
    hbm_bytes: of a device, that programs can use.
    chip: how fast a device is; None where we have no figures, as of GPUs.
    boot_seconds: until a job's first program.
    """

    name: str
    devices: int
    hbm_bytes: int
    chip: Chip | None
    boot_seconds: float


def machine_of(target: str) -> Machine | None:
    """The machine behind a target; None for this one if it has no accelerator, or one of unknown
    memory, so that there is nothing to plan."""
    if target != "local":
        kind = TPU_TYPES[target]
        chip = chip_of(kind)
        return Machine(target, kind.devices, chip.hbm_bytes, chip, BOOT_SECONDS)
    found = find().accelerator
    if found is None or found.memory_bytes is None:
        return None
    name, known = f"this machine's {found.kind}", DEVICE_KINDS.get(found.kind)
    chip_here = replace(CHIPS[known], hbm_bytes=found.memory_bytes) if known else None
    return Machine(name, found.devices, found.memory_bytes, chip_here, 0.0)


def planned(target: str) -> Machine:
    """The machine behind a target for which programs are compiled."""
    machine = machine_of(target)
    assert machine is not None, target
    return machine


def memory_bytes() -> int:
    """The memory of this machine, or of the container that this is, if that has less."""
    known = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for limit in LIMITS:
        with suppress(OSError, ValueError):  # `max`: there is none
            known.append(int(limit.read_text(encoding="ascii")))
    return min(known)


def free_bytes() -> int:
    """Memory that processes can still have; where the system does not say, that of the machine."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return min(int(line.split()[1]) * 1024, memory_bytes())
    return memory_bytes()
