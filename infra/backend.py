"""JobBackend: how a stage gets a machine. One contract for a subprocess on this computer and for a TPU in the cloud.

A job is `python -m tasks.worker work/<key>/<attempt>/job.json` somewhere. What it has to say it writes below `work/<key>/<attempt>/` in the
store (`status.json`, `log.txt`), and its one result is a committed artifact. States of `JobStatus`:

    queued      submitted; no worker has started yet
    running     a worker is alive: `heartbeat` moves, `progress` tells how far it is
    succeeded   `artifact` is committed
    failed      `error` is one message for people, `exit_code` is 2 for bad input and 1 for everything else
    cancelled   stopped on request, or because whoever submitted it is gone

The last three are final. A backend is a view: the truth about a result is the manifest in the store.
"""

from dataclasses import dataclass
from typing import Protocol

from schemas.job import JobSpec, JobStatus

FINAL = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True)
class JobHandle:
    """Names a submitted job: its store, stage key and attempt. All that is needed to find it again from another process."""

    store: str
    key: str
    attempt: str


class JobBackend(Protocol):
    """Runs jobs on one target."""

    def submit(self, spec: JobSpec) -> JobHandle:
        """Start the job, or attach to it: a key and attempt that were submitted before are never started twice."""

    def poll(self, handle: JobHandle) -> JobStatus:
        """The job's state. A worker that died without a final status is reported as failed, with what is known of its death."""

    def cancel(self, handle: JobHandle) -> None:
        """Stop the job and wait until nothing of it is left running. Does nothing when it has ended."""

    def log(self, handle: JobHandle, offset: int) -> tuple[str, int]:
        """The complete log lines from byte `offset` on, and the offset to continue from."""
