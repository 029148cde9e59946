"""The agent on every host of a cloud machine: `python -m infra.tpu.host`, started by
`infra/tpu/bootstrap_tpu.sh`.

It runs the worker like the local backend, and reports to the store by the contract of
`infra.store.remote`. When the cloud takes the machine back, the operating system shuts down, or the
worker hangs, it stops the worker and writes the log and the status so far at once. At the end it
waits for the backend to delete the machine, and deletes it itself if nobody does because the flow
is gone.

The agent does not load JAX. Its environment contains all that it needs (see the script), and the
worker's settings.
"""

import http.client
import json
import logging
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from infra.backend import FINAL, JobHandle, pause_file
from infra.context import context
from infra.process import Worker, failed, read_lines, worker_environment
from infra.secrets import mask
from infra.settings import Settings
from infra.silence import Silence
from infra.store.remote import host_status, log_chunk
from infra.store.store import Store, attempt_file
from infra.tpu.api import ApiError, TpuApi
from infra.tpu.job_record import TpuRecord, record_name
from infra.tpu.state_machine import duration
from infra.tpu.types import TPU_TYPES
from schemas.base import InputError
from schemas.job import JobSpec, JobStatus

log = logging.getLogger("lyceum.host")

TICK_SECONDS = 0.2
"""Seconds between looks at the worker."""

WRITE_SECONDS = 10.0
"""Seconds to try to send a status or a piece of the log, until there are newer ones, or to look
whether the job is to pause."""

CHUNK_BYTES = 4 << 20
"""The most bytes of the log in one object."""

_METADATA = (
    "http://{}/computeMetadata/v1/instance/{}?wait_for_change=true&timeout_sec=60&last_etag={}"
)
_WATCHED = {
    "preempted": ("TRUE", "the machine is being preempted"),
    "maintenance-event": (
        "TERMINATE_ON_HOST_MAINTENANCE",
        "the machine is being taken away for maintenance",
    ),
}
"""Key of the metadata server -> the value that means an end, and the reason in words."""
_METADATA_SECONDS = 5.0
DELETE_SECONDS = 10.0
_BOOT_SECONDS = 3600.0

MUTE_SECONDS = 60.0
"""Nobody takes a worker's silence for a hang before this, however short `silence` is."""
HANG_SECONDS = 3600.0
"""The longest time in which work that goes on may show neither progress nor a line of the log,
beside the waits that the settings allow."""


@dataclass(frozen=True)
class Place:
    """The identity of a host: of which machine, for which job.

    Attributes:
        key, attempt: the job.
        host: this host's number, from 0.
        resource: complete name of the queued resource.
        silence: seconds after which a machine that nobody deletes deletes itself.
        boot_log: the startup script's log.
    """

    key: str
    attempt: str
    host: int
    resource: str
    silence: float
    boot_log: Path

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Place":
        """The place as the startup script found it."""
        _, key, attempt, _ = environment["LYCEUM_JOB"].split("/")
        return cls(
            key=key,
            attempt=attempt,
            host=int(environment["LYCEUM_HOST"]),
            resource=environment["LYCEUM_RESOURCE"],
            silence=float(environment["LYCEUM_SILENCE"]),
            boot_log=Path(environment["LYCEUM_BOOT_LOG"]),
        )

    @property
    def log(self) -> str:
        """The file that takes this host's log."""
        return f"hosts/{self.host}.log.txt" if self.host else "log.txt"

    def file(self, name: str) -> str:
        return attempt_file(self.key, self.attempt, name)


class Agent:
    """One host's part in one job."""

    def __init__(self, place: Place, store: Store, settings: Settings) -> None:
        self._place = place
        self._store = store
        self._settings = settings
        self._worker = Worker(store, place.key, place.attempt, log=place.log)
        self._log = Log(store, place, self._worker.log)
        self._status = JobStatus(state="running", heartbeat=time.time())
        self._target = ""
        self._taken, self._late = "", False
        # where the agent itself stood still it could hear nothing
        self._mute, self._idle = Silence(MUTE_SECONDS), Silence(MUTE_SECONDS)
        self._stop = threading.Event()
        self._ended = threading.Event()

    def stop(self, why: str) -> None:
        """End the job, because the machine ends or the worker hangs. It reports only the first
        reason."""
        if not self._stop.is_set():
            self._taken = why
            self._stop.set()

    def run(self) -> None:
        """Run the job to its end, then have the machine deleted."""
        self._log.begin()
        reporter = threading.Thread(target=self._report, daemon=True)
        reporter.start()
        try:
            final = self._work()
        except InputError as error:
            final = failed(self._status, str(error), exit_code=2)
        except OSError as error:  # of this machine, or the store has been away for long
            final = failed(self._status, f"the job cannot be begun here: {error}", lost=True)
        if final.state == "cancelled":
            # nobody asked for this signal: to end a job, its machine is deleted
            stopped = "the worker was stopped from outside; the machine seems to be shutting down"
            why = f"{self._taken or stopped}; the job goes on from its last checkpoint"
            final = failed(final, f"{why} on another one", lost=True)
        if final.error:
            log.error(final.error)
        self._ended.set()
        reporter.join()
        self._say_last(final)
        self._wait_for_deletion(final)

    def _work(self) -> JobStatus:
        """Run the worker to its final status; none where whoever saw to the job's end did not see
        this machine, because its request was still on its way. Raises InputError."""
        for what, (value, meaning) in _WATCHED.items():
            threading.Thread(target=self._watch, args=(what, value, meaning), daemon=True).start()
        name = self._place.file("job.json")
        spec = self._store.read_json(name, JobSpec)
        if spec is None:
            raise InputError(f"{self._store.location(name)} is missing: there is no job to run.")
        self._target = spec.target
        handle = JobHandle(spec.store, self._place.key, self._place.attempt)
        record = self._store.read_json(record_name(handle), TpuRecord)
        if record is not None and record.ended is not None:
            self._late = True
            why = "the job had ended before this machine came, which was asked for late"
            return failed(self._status, why, lost=True)
        self._store.write_here(name, spec)
        # written before a reboot
        self._store.path(self._place.file("status.json")).unlink(missing_ok=True)
        self._worker.start(worker_environment(self._settings.compile_cache))
        while not self._stop.wait(TICK_SECONDS):
            status = self._worker.poll(self._settings.stop_seconds)
            if status.state in FINAL:
                return status
            self._status = status
            if why := self._hang(status):
                self.stop(why)
        log.warning("%s; the worker is asked to stop", self._taken)
        self._worker.stop(self._settings.stop_seconds)
        return self._worker.poll(self._settings.stop_seconds)

    def _hang(self, status: JobStatus) -> str:
        """Why a running worker will not end by itself; empty if it may. A stage that is stuck
        leaves its heart beating, which is a thread of its own. Only the first host must show
        progress: the others work for it."""
        mute = self._mute.of(status.heartbeat)
        idle = self._idle.of((status.progress, self._worker.log.stat().st_size))
        if mute > max(self._place.silence, MUTE_SECONDS):
            return f"the worker on this machine gave no sign of life for {duration(mute)}"
        waits = self._settings.judge_patience_seconds + self._settings.store_seconds
        if self._place.host == 0 and idle > HANG_SECONDS + waits:
            stuck = "made no progress and logged nothing"
            return f"the worker on this machine {stuck} for {duration(idle)}"
        return ""

    def _report(self) -> None:
        """Report the worker's status to the store until it has ended. While the store is away, the
        log waits on the disk."""
        name, said = host_status(self._place.key, self._place.attempt, self._place.host), ""
        pause = pause_file(self._place.key, self._place.attempt)
        while True:
            try:
                self._store.write_json(
                    name, self._status.model_copy(update={"heartbeat": time.time()}), WRITE_SECONDS
                )
                self._log.ship()
                if (
                    self._worker.started
                    and self._store.read_bytes(pause, WRITE_SECONDS) is not None
                ):
                    self._worker.pause()
            except (OSError, InputError) as error:
                if str(error) != said:
                    log.warning(
                        "cannot write the job's status to the store; the work goes on: %s", error
                    )
                said = str(error)
            if self._ended.wait(self._settings.heartbeat_seconds):
                return

    def _say_last(self, final: JobStatus) -> None:
        """Write the whole log, then the final status. Raises OSError or InputError when the store
        refuses the status."""
        try:
            self._log.keep(final)
        except (OSError, InputError) as error:
            log.warning("the log cannot be kept: %s", error)
        name = host_status(self._place.key, self._place.attempt, self._place.host)
        self._store.write_json(name, final.model_copy(update={"heartbeat": time.time()}))

    def _wait_for_deletion(self, final: JobStatus) -> None:
        """Give the backend time to delete the machine, then delete it. Raises ApiError or
        InputError when that is refused.

        A host may be done while the first one still writes the artifact, and leaves the machine to
        it as long as it shows signs of life.
        """
        place = self._place
        if place.host and final.state == "succeeded":
            self._wait_for_silence(host_status(place.key, place.attempt, 0))
        elif not self._late:  # else nobody follows it
            # not at all after `stop`: where the machine is about to go its request would be left
            self._stop.wait(place.silence)
        if self._target not in TPU_TYPES:
            raise InputError(
                f"the job's target {self._target!r} is no TPU, so nobody knows how to delete"
                f" {place.resource}."
            )
        settings = context().tpu.model_copy(update={"project": place.resource.split("/")[1]})
        api = TpuApi(TPU_TYPES[self._target], settings)
        while not _removed(api, place.resource):
            time.sleep(DELETE_SECONDS)

    def _wait_for_silence(self, name: str) -> None:
        """Wait until an object has not changed for twice the time after which the first host
        deletes the machine, by this host's clock."""
        seen, silence = None, Silence()
        while not self._stop.wait(self._settings.heartbeat_seconds):
            with suppress(OSError, InputError):
                seen = self._store.read_bytes(name)
            if silence.of(seen) > (2 * self._place.silence if seen else _BOOT_SECONDS):
                return

    def _watch(self, what: str, value: str, meaning: str) -> None:
        """Ask the metadata server for `what` until it is `value`. The server answers when it
        changes, or after a minute."""
        host, etag = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal"), "0"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while not self._ended.is_set():
            request = urllib.request.Request(
                _METADATA.format(host, what, etag), headers={"Metadata-Flavor": "Google"}
            )
            try:
                with opener.open(request, timeout=70) as answer:
                    found, etag = answer.read().decode().strip(), answer.headers.get("ETag", "0")
            except (OSError, http.client.HTTPException):
                # it may be away for a while, and some machines have no such value
                self._ended.wait(_METADATA_SECONDS)
                continue
            if found == value:
                self.stop(meaning)
                return
            if found not in ("FALSE", "NONE"):
                log.warning("the metadata server says: %s is %s", what, found)
            self._ended.wait(TICK_SECONDS)


class Log:
    """Sends the worker's output to the store: whole lines, masked one by one, so that every way to
    cut them gives the same bytes.

    Hosts other than the first keep only the whole log, and only when they have failed.
    """

    def __init__(self, store: Store, place: Place, path: Path) -> None:
        self._store, self._place, self._path = store, place, path
        self._read = 0  # bytes of the file that have been masked
        self._sent = 0  # bytes, masked, that are in the store
        chunks = store.objects(place.file("log")) if place.host == 0 else []
        # sent before a reboot; the same lines come again from the file
        self._before = sum(chunk.size for chunk in chunks)

    def begin(self) -> None:
        """Begin with the startup script's log; this process' own messages follow."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(self._place.boot_log.read_bytes())
        logging.basicConfig(
            filename=self._path,
            level=logging.WARNING,
            format="%(asctime)s %(levelname)s %(message)s",
        )
        logging.getLogger("lyceum").setLevel(logging.INFO)

    def ship(self) -> None:
        """Send new lines. Raises OSError or InputError; unsent lines go with the next call."""
        while self._place.host == 0 and (lines := read_lines(self._path, self._read, CHUNK_BYTES)):
            masked = masked_lines(lines)
            new = masked[max(0, self._before - self._sent) :]
            if new:
                offset = self._sent + len(masked) - len(new)
                self._store.write_bytes(
                    log_chunk(self._place.key, self._place.attempt, offset), new, WRITE_SECONDS
                )
            self._read += len(lines)
            self._sent += len(masked)

    def keep(self, final: JobStatus) -> None:
        """The whole log in one object, in place of the pieces. Raises OSError or InputError."""
        if self._place.host == 0 or final.state != "succeeded":
            name = self._place.file(self._place.log)
            self._store.write_bytes(name, masked_lines(self._path.read_bytes()))
        if self._place.host == 0:
            self._store.remove(self._place.file("log"))


def masked_lines(data: bytes) -> bytes:
    """`data`, whole lines, masked. An ampersand between lines keeps one from being masked because
    of the line before it."""
    text = data.decode("utf-8", errors="replace").replace("\n", "\n&")
    return mask(text).replace("\n&", "\n").encode()


def _removed(api: TpuApi, resource: str) -> bool:
    """Ask for the deletion of a queued resource; returns whether nothing is left of it. Raises
    ApiError when that is refused."""
    try:
        return api.remove(resource)
    except ApiError as error:
        if error.problem.kind != "transient":
            raise
        return False


def main() -> None:
    """Run the agent. Its messages go to the job's log, an unexpected error to that of the startup
    script."""
    given = json.loads(os.environ["LYCEUM_ENVIRONMENT"])
    os.environ |= {name: value for name, value in given.items() if name not in os.environ}
    here = context()
    agent = Agent(Place.from_environment(os.environ), here.store(write=False), here.settings)

    def stop(number: int, frame: object) -> None:
        # by a thread: the main one may hold the lock of the event that it waits for
        threading.Thread(target=agent.stop, args=("the machine is shutting down",)).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    agent.run()


if __name__ == "__main__":
    main()
