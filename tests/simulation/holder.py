"""Holders of leases."""

from dataclasses import dataclass

from tests.simulation.world import Process


@dataclass
class Holder:
    """Who was granted a generation of a lease, and when its last heartbeat arrived; `passed`: a
    later one was granted since, so that nobody has to ask this holder."""

    process: Process
    since: float
    beat: float
    released: bool = False
    passed: bool = False
