"""Holders of leases."""

from collections.abc import Mapping
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


def others(
    holders: Mapping[tuple[str, int], Holder], key: str, process: Process, least: int = 0
) -> list[Holder]:
    """Those flows except a process that live and hold a generation of the lease of a key, at
    least this one: nobody follows the job of a later one than its own."""
    return [
        one
        for (of, generation), one in holders.items()
        if of.startswith(key)
        and generation >= least
        and one.process is not process
        and one.process.alive
        and one.process.role == "flow"
        and not (one.released or (one.passed and process.role == "flow"))
    ]
