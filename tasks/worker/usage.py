"""Measures a job's time, the memory of its process and devices, and the pace of its steps.
Recorded, never part of an identity.

A device's peak comes from its allocator (`jax.Device.memory_stats`). A CPU's devices have no count
of their own, since their arrays lie in main memory.
"""

import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from schemas.job import Progress, Usage


class Meter:
    """Measures from its creation on.

    Args:
        clock: seconds, monotonic.

    Attributes:
        on_devices: whether the job computes with JAX. If not, JAX is not asked for its devices,
            which would occupy them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self.on_devices = False
        self._reports: list[tuple[int, float]] = []
        self._unit = ""

    def note(self, progress: Progress) -> None:
        """Record progress. A change of unit, or less done than before, means that another part of
        the work has begun."""
        if not progress.done:
            return
        if progress.unit != self._unit or (self._reports and progress.done < self._reports[-1][0]):
            self._reports, self._unit = [], progress.unit
        # the first, the second and the newest say all
        self._reports = [
            *self._reports[:2],
            (progress.done, self._clock()),
        ]

    def usage(self) -> Usage:
        """The usage so far."""
        unit_seconds = self._unit_seconds()
        return Usage(
            seconds=self._clock() - self._began,
            peak_rss_bytes=peak_rss_bytes(),
            peak_device_bytes=peak_device_bytes() if self.on_devices else None,
            unit=None if unit_seconds is None else self._unit,
            unit_seconds=unit_seconds,
        )

    def _unit_seconds(self) -> float | None:
        if len(self._reports) < 3 or self._reports[2][0] == self._reports[1][0]:
            return None
        _, (first, began), (last, ended) = self._reports
        return (ended - began) / (last - first)


def peak_rss_bytes() -> int:
    """The peak resident memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def peak_device_bytes() -> int | None:
    """The peak memory in use on one of this host's devices; None if they do not count it, or there
    are none."""
    import jax

    with suppress(RuntimeError):  # without devices the job has failed, and its error says so
        told = [
            stats["peak_bytes_in_use"]
            for device in jax.local_devices()
            if (stats := device.memory_stats())
        ]
        return max(told, default=None)
    return None
