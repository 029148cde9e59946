"""The record that a flow writes about a TPU job before it asks for a machine."""

import hashlib

from infra.backend import JobHandle
from infra.store.store import Store, attempt_file
from infra.tpu.state_machine import State
from schemas.base import StrictModel


class TpuRecord(StrictModel):
    """`work/<key>/<attempt>/tpu.json`: a job's resources, written before they are requested, so
    that a killed flow leaves no unknown machine.

    Attributes:
        resources: complete names of all requested queued resources, one per zone, the newest last.
        target, tier, run: of the job.
        usd_per_hour: list price of all chips.
        requested, active, ended: seconds since the epoch; `active` when the VMs of the newest
            resource came up, `ended` when the job did, or later: when its deletion was accepted.
        spent_usd: the cost of the resources before the newest, US dollars.
        state: see `infra.tpu.state_machine`.
        reason: why it ended so, for people.
    """

    resources: tuple[str, ...]
    target: str
    tier: str
    run: str
    usd_per_hour: float
    requested: float
    active: float | None = None
    ended: float | None = None
    spent_usd: float = 0.0
    state: State = "requested"
    reason: str = ""

    def cost_usd(self, now: float) -> float:
        """US dollars spent until `now` (seconds since the epoch), by list price: VMs cost money as
        long as they exist."""
        if self.active is None:
            return self.spent_usd
        hours = max(0.0, (self.ended or now) - self.active) / 3600
        return self.spent_usd + hours * self.usd_per_hour


def record_name(handle: JobHandle) -> str:
    return attempt_file(handle.key, handle.attempt, "tpu.json")


def store_label(store: Store) -> str:
    return hashlib.sha256(store.uri.encode()).hexdigest()[:24]
