"""The cores of this machine that this process may use: of 64 a container may have two."""

import math
import os
from contextlib import suppress
from pathlib import Path

QUOTAS = [
    [Path("/sys/fs/cgroup/cpu.max")],
    [Path("/sys/fs/cgroup/cpu", f"cpu.cfs_{one}_us") for one in ("quota", "period")],
]
"""Files with a control group's share of the cores, as microseconds of work in a period: those of
version 2 and 1."""


def usable_cores() -> int:
    """Cores by this process' affinity, or as many as its control group's share is worth, if that is
    less."""
    # the affinity is not known on every system
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    known = [cores or 1]
    for files in QUOTAS:
        with suppress(OSError, ValueError):  # `max`: there is none
            quota, period = " ".join(file.read_text("ascii") for file in files).split()
            if int(quota) > 0:
                known.append(math.ceil(int(quota) / int(period)))
    return min(known)
