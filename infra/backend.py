"""JobBackend: how a stage gets a machine. One contract for a subprocess on this computer and for a
TPU in the cloud.

A job is `python -m tasks.worker .../work/<key>/<attempt>/job.json` somewhere. What it has to say
lies below `work/<key>/<attempt>/` in the store (`status.json`, `log.txt`), and its one result is a
committed artifact. States of `JobStatus`:

    queued      submitted; no worker has started yet; `phase` tells people what it waits for
    running     a worker is alive: `heartbeat` moves, `progress` tells how far it is
    succeeded   `artifact` is committed
    failed      `error` is one message for people, `exit_code` is 2 for bad input and 1 for
                everything else
    cancelled   stopped on request, or because whoever submitted it is gone
    paused      stopped on request, after it saved what another attempt goes on from

The last four are final. A backend is a view: the truth about a result is the manifest in the
store.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from infra.store.store import Store, attempt_file
from schemas.base import InputError
from schemas.job import JobSpec, JobStatus

FINAL = ("succeeded", "failed", "cancelled", "paused")


def pause_file(key: str, attempt: str) -> str:
    """The name of the object that asks a job to pause; it is empty."""
    return attempt_file(key, attempt, "pause")


@dataclass(frozen=True)
class JobHandle:
    """Names a submitted job: its store, stage key and attempt. All that is needed to find it again
    from another process."""

    store: str
    key: str
    attempt: str


@dataclass(frozen=True)
class Leftover:
    """A machine of ours that no run needs any more, or may not need.

    Attributes:
        name: what the cloud calls it, complete.
        key, attempt: the job it was made for.
        state: what the cloud says of it.
        why: why it is not needed, or why nobody can tell from here, for people.
        removable: `reap` removes it.
        removed: it has been removed.
    """

    name: str
    key: str
    attempt: str
    state: str
    why: str
    removable: bool
    removed: bool = False


class JobBackend(Protocol):
    """Runs jobs on one target. Threads may share one."""

    def submit(self, spec: JobSpec) -> JobHandle:
        """Start the job, or attach to it: a key and attempt that were submitted before are never
        started twice.

        Raises:
            InputError: the store, the settings or the account do not allow it; nothing was started.
            StageFailed: the run has spent what it may (`LYCEUM_MAX_USD`).
        """

    def attach(self, store: Store, key: str, run: str, attempts: Sequence[str]) -> JobHandle | None:
        """The job of this key that runs on although whoever submitted it is gone, for a new holder
        of the key's lease. What it costs from now on, `run` pays.

        None where there is none; then nothing of the jobs that others submitted for this key is
        left running either.

        Args:
            attempts: of the key, the newest first; not all of them need to be there.
        """

    def poll(self, handle: JobHandle) -> JobStatus:
        """The job's state. A worker that died without a final status is reported as failed, with
        what is known of its death."""

    def cancel(self, handle: JobHandle) -> None:
        """See to it that nothing of the job runs or is paid for, whether it has ended or not.
        Returns when that is under way for certain: a subprocess is gone; of a machine in the cloud
        the deletion is accepted, and `close` waits for its end. May be called again."""

    def leave(self, handle: JobHandle) -> None:
        """Follow the job no more: another run has taken it over. One that no other process can
        follow is cancelled."""

    def pause(self, handle: JobHandle) -> None:
        """Ask a running job to save a checkpoint at the next place where it can, and to end there
        as `paused`. Returns at once; a job that has no such place goes on."""

    def log(self, handle: JobHandle, offset: int) -> tuple[str, int]:
        """The complete log lines from byte `offset` on, and the offset to continue from."""

    def close(self) -> list[str]:
        """Wait until nothing of the jobs that were cancelled or have ended is left. Returns a
        message per thing that is still there."""

    def release(self, store: Store, key: str, say: Callable[[str], None]) -> None:
        """See to the end of machines that jobs of this key had and that nobody needs any more: its
        artifact is there, or no run on record asks for it.

        Returns at once and never fails; `close` waits for it, for less than a minute. What a live
        run follows is left alone.

        Args:
            say: receives one message when a machine was there, or may be there.
        """

    def reap(self, store: Store, delete: bool) -> list[Leftover]:
        """Machines of ours whose run is over or not known here; with `delete`, remove those that
        are removable."""


def check_reach(target: str, store: str) -> None:
    """Raises InputError for the location of a store that the machines of a target cannot reach."""
    if target != "local" and not store.startswith("gs://"):
        raise InputError(
            f"store {store}: a machine in the cloud cannot reach it. For target {target} give"
            " --store gs://BUCKET/PREFIX."
        )
