"""Jobs on Cloud TPU, one queued resource per attempt: starts them, finds them again, and leaves
none behind.

    infra.tpu.types          TPU types, with zones and prices
    infra.tpu.api            Google's API; `infra.tpu.problems` explains its refusals
    infra.tpu.state_machine  the next step, given what was observed
    infra.tpu.job            one job: the threads that look and act
    infra.tpu.reaper         machines that nobody follows any more

A VM runs `infra/tpu/bootstrap_tpu.sh`, which fetches the code from the store and starts the agent
`infra.tpu.host`, which reports through the store (`infra.store.remote`). A job goes on when the
process that submitted it is killed: `attach` finds it again through its record in the store.
"""

import functools
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from infra.backend import FINAL, JobBackend, JobHandle, Leftover, check_reach, pause_file
from infra.context import context
from infra.settings import Settings, TpuSettings
from infra.source import ship_data, ship_source
from infra.store.remote import host_status
from infra.store.store import Store, attempt_file
from infra.tpu.api import ApiError, TpuApi
from infra.tpu.job import Order, TpuJob
from infra.tpu.job_record import TpuRecord, record_name, store_label
from infra.tpu.reaper import RELEASE_SECONDS, gc_command, reap, release, unfinished
from infra.tpu.state_machine import DEAD, TAKEN, failure
from infra.tpu.types import TpuType
from schemas.base import InputError, StageFailed
from schemas.job import JobSpec, JobStatus

log = logging.getLogger("lyceum.tpu")

STARTUP_SCRIPT = Path(__file__).with_name("bootstrap_tpu.sh")
COORDINATOR_PORT = 8476
PAUSE_SECONDS = 10.0
"""Seconds to try to send a request to pause."""

_SENT = {
    *("checkpoint_seconds", "checkpoint_steps", "heartbeat_seconds", "stop_seconds"),
    *("store_seconds", "billing_project", "tensor_parallel", "whole_weights_gib"),
    *("teacher_concurrency", "teacher_timeout_seconds", "teacher_attempts"),
    "judge_patience_seconds",
}
"""Settings that the VMs get too."""
_HOPELESS = {*TAKEN, *DEAD, "FAILED"}


class CloudTpuBackend(JobBackend):
    """Runs each job on a slice of its own. Threads may share one. `jobs`: those that this process
    follows."""

    def __init__(self, kind: TpuType, settings: Settings, tpu: TpuSettings) -> None:
        self._kind, self._settings, self._tpu = kind, settings, tpu
        self._api = TpuApi(kind, tpu)
        self._lock = threading.Lock()
        self.jobs: dict[JobHandle, TpuJob] = {}
        self._payers: dict[JobHandle, tuple[str, float]] = {}  # run, dollars that others have paid
        self._releases: dict[threading.Thread, str] = {}  # -> the store
        self._near: dict[str, tuple[str, ...]] = {}
        listed = kind.usd_per_chip_hour[tpu.tier]
        price = listed if tpu.usd_per_chip_hour is None else tpu.usd_per_chip_hour
        self._usd_per_hour = price * kind.chips
        threading.Thread(target=self._warm_up, name="tpu-client", daemon=True).start()

    def submit(self, spec: JobSpec) -> JobHandle:
        store = self._store(spec.store)
        handle = JobHandle(store.uri, spec.key, spec.attempt)
        if handle in self.jobs:
            return handle
        self._api.connect()
        record = store.read_json(record_name(handle), TpuRecord)
        if record is None:
            zones = self.zones(store)
            if why := self._too_dear(spec.run):
                raise StageFailed(why)
            if spec.data is not None:
                spec = spec.model_copy(update={"data": ship_data(store, Path(spec.data))})
            source = ship_source(store)
            store.create_json(attempt_file(spec.key, spec.attempt, "job.json"), spec)
            name = self._api.name(zones[0], self.order(store, handle, spec.run, source).short)
            record = TpuRecord(
                resources=(name,),
                target=self._kind.name,
                tier=self._tpu.tier,
                run=spec.run,
                usd_per_hour=self._usd_per_hour,
                requested=time.time(),
            )
            self._follow(store, handle, record, spec.run, zones, source, asked=False)
        else:
            self._take_over(store, handle, record, spec.run)
        return handle

    def attach(self, store: Store, key: str, run: str, attempts: Sequence[str]) -> JobHandle | None:
        """See JobBackend. It continues the newest attempt of this type whose TPU exists or is
        requested, unless it has failed."""
        found: JobHandle | None = None
        store = self._store(store.uri)
        for attempt in attempts:
            handle = JobHandle(store.uri, key, attempt)
            record = store.read_json(record_name(handle), TpuRecord)
            if record is None or record.state == "deleted":
                continue
            if found is None and self._goes_on(store, handle, record):
                found = handle
                self._take_over(store, handle, record, run)
            else:
                log.info(
                    "attempt %s of an earlier run is deleted: %s", attempt, record.resources[-1]
                )
                self._take_over(store, handle, record, run, dispose=True).cancel()
        return found

    def poll(self, handle: JobHandle) -> JobStatus:
        """See JobBackend. Never waits."""
        return self._job(handle).status()

    def cancel(self, handle: JobHandle) -> None:
        self._job(handle).cancel()

    def leave(self, handle: JobHandle) -> None:
        self._job(handle).leave()

    def pause(self, handle: JobHandle) -> None:
        """See JobBackend. It writes a file for which each host's agent looks. If the bucket is
        away, the job loses its work since the last checkpoint, and no more."""
        name = pause_file(handle.key, handle.attempt)
        with suppress(OSError):
            self._store(handle.store).write_bytes(name, b"", PAUSE_SECONDS)

    def log(self, handle: JobHandle, offset: int) -> tuple[str, int]:
        """See JobBackend. Never waits."""
        return self._job(handle).log(offset)

    def close(self) -> list[str]:
        left = [message for job in list(self.jobs.values()) if (message := job.close())]
        until = time.monotonic() + self._settings.lease_seconds + RELEASE_SECONDS
        for thread in self._releases:
            thread.join(max(0.0, until - time.monotonic()))
        alive = {store for thread, store in self._releases.items() if thread.is_alive()}
        left += [
            "machines of earlier runs may still be there;"
            f" {gc_command(self._kind.name, store)} lists them, and removes them with --delete"
            for store in sorted(alive)
        ]
        return left

    def release(self, store: Store, key: str, say: Callable[[str], None]) -> None:
        """See JobBackend. It asks the API only if the store has a record of a machine that may
        exist."""
        thread = threading.Thread(
            target=self._release, args=(store, key, say), name=f"release-{key[:8]}", daemon=True
        )
        self._releases[thread] = store.uri
        thread.start()

    def _release(self, store: Store, key: str, say: Callable[[str], None]) -> None:
        try:
            if jobs := unfinished(store, key):
                release(self._api, store, key, jobs, self._settings, say)
        except (ApiError, InputError, OSError) as error:
            say(
                f"a machine of an earlier run may still be there ({error});"
                f" {gc_command(self._kind.name, store.uri)} lists it, and removes it with --delete"
            )

    def reap(self, store: Store, delete: bool) -> list[Leftover]:
        """See JobBackend. Looks in all zones where the type is offered, and those of
        LYCEUM_ZONES."""
        self._api.connect()
        zones = sorted({*self._kind.zones, *self._settings.zones})
        return reap(self._api, store, zones, delete, self._settings, self._tpu)

    # Jobs

    def _job(self, handle: JobHandle) -> TpuJob:
        """The job, taken over if another process submitted it. Raises InputError if there is
        none."""
        if handle in self.jobs:
            return self.jobs[handle]
        store = self._store(handle.store)
        record = store.read_json(record_name(handle), TpuRecord)
        if record is None:
            raise InputError(
                f"store {store.uri}: no TPU was asked for by attempt {handle.attempt} of job"
                f" {handle.key}."
            )
        return self._take_over(store, handle, record, record.run)

    def _take_over(
        self, store: Store, handle: JobHandle, record: TpuRecord, run: str, dispose: bool = False
    ) -> TpuJob:
        """Follow a job that another process submitted, for a run, or delete it."""
        if dispose and record.ended is None:
            record = record.model_copy(
                update={"state": "failed", "ended": time.time(), "reason": "no run went on with it"}
            )
        if record.ended is not None:
            last = store.read_json(host_status(handle.key, handle.attempt, 0), JobStatus)
            lost = failure(record.reason or "it was given up", lost=True)
            final = last if last is not None and last.state in FINAL else lost
            return self._follow(store, handle, record, run, (), "", True, final)
        return self._follow(store, handle, record, run, self.zones(store), ship_source(store), True)

    def _follow(
        self,
        store: Store,
        handle: JobHandle,
        record: TpuRecord,
        run: str,
        zones: tuple[str, ...],
        source: str,
        asked: bool,
        final: JobStatus | None = None,
    ) -> TpuJob:
        order = self.order(store, handle, record.run, source)
        dear = functools.partial(self._too_dear, run)
        given = self._api, self._kind, store, handle, record, zones, order, self._tpu
        job = TpuJob(*given, dear, asked, final)
        with self._lock:
            known = self.jobs.setdefault(handle, job)
            self._payers.setdefault(handle, (run, record.cost_usd(time.time())))
        if known is job:
            job.start()
        return known

    def _goes_on(self, store: Store, handle: JobHandle, record: TpuRecord) -> bool:
        """Whether a job of an earlier run has succeeded, or may still."""
        status = store.read_json(host_status(handle.key, handle.attempt, 0), JobStatus)
        if status is not None and status.state in FINAL:
            made = status.artifact
            return made is not None and store.lookup(made.kind, handle.key) is not None
        if record.ended is not None or record.target != self._kind.name:
            return False
        try:
            seen = self._api.look(record.resources[-1])
        except ApiError:
            return True  # whoever follows it will see
        states = {seen.request, seen.node} if seen.request == "ACTIVE" else {seen.request}
        return not _HOPELESS & states

    def _too_dear(self, run: str) -> str | None:
        """Why a run may not ask for further machines; None if it may."""
        limit = self._settings.max_usd
        with self._lock:
            jobs = [(job, *self._payers[handle]) for handle, job in self.jobs.items()]
        spent = sum(job.cost_usd() - before for job, payer, before in jobs if payer == run)
        if limit is None or spent < limit:
            return None
        return (
            f"the run has spent {spent:.2f} dollars on TPUs (list price) and may spend"
            f" {limit:.2f} (LYCEUM_MAX_USD): no more are started. What is done is kept. The same"
            " command, or Retry, goes on, and may spend as much again: it counts from zero."
        )

    # What is asked for

    def _store(self, location: str) -> Store:
        """Raises InputError for a store that VMs cannot reach."""
        check_reach(self._kind.name, location)
        return context().store(location)

    def zones(self, store: Store) -> tuple[str, ...]:
        """The zones to ask in, the preferred one first. Raises InputError when the bucket is too
        far from them."""
        if store.uri not in self._near:
            self._near[store.uri] = self._settings.zones or self._default_zones(store)
            store.require_near(self._settings)
        return self._near[store.uri]

    def _default_zones(self, store: Store) -> tuple[str, ...]:
        """The zones that offer the type: near the bucket first, others only if allowed."""
        near, refusal = [], None
        strict = self._settings.model_copy(update={"far_bucket": False})
        for zone in self._kind.zones:
            try:
                store.require_near(strict.model_copy(update={"zones": (zone,)}))
                near.append(zone)
            except InputError as error:
                refusal = refusal or error
        if self._settings.far_bucket:
            return (*near, *(zone for zone in self._kind.zones if zone not in near))
        if refusal is not None and not near:
            raise InputError(
                f"{self._kind.name} is offered in {', '.join(self._kind.zones)}. {refusal}"
            ) from refusal
        return tuple(near)

    def order(self, store: Store, handle: JobHandle, run: str, source: str) -> Order:
        """The request to the API for a job. Its name contains a part of the store's, since two
        stores in one project may have the same job.

        Args:
            run: the run that submits it.
            source: the name of the code's archive in the store.
        """
        values = self._settings.model_dump(mode="json", include=_SENT, exclude_none=True)
        environment = {f"LYCEUM_{name.upper()}": str(value) for name, value in values.items()}
        label = store_label(store)
        return Order(
            short=f"lyceum-{handle.key[:24]}-{handle.attempt}-{label[:8]}",
            labels={
                "lyceum": "job",
                "lyceum-key": handle.key[:24],
                "lyceum-attempt": handle.attempt,
                "lyceum-store": label,
                "lyceum-run": re.sub(r"[^a-z0-9_-]", "-", run.lower())[:63],
            },
            # what the startup script and the agent find on the metadata server of their VM
            metadata={
                "startup-script": STARTUP_SCRIPT.read_text(encoding="utf-8"),
                "lyceum-store": store.uri,
                "lyceum-job": attempt_file(handle.key, handle.attempt, "job.json"),
                "lyceum-source": source,
                "lyceum-environment": json.dumps(environment),
                "lyceum-port": str(COORDINATOR_PORT),
                "lyceum-silence": f"{self._tpu.silence_seconds:g}",
            },
        )

    def _warm_up(self) -> None:
        """Import the client while others prepare the store and the code. `submit` reports
        errors."""
        with suppress(InputError):
            self._api.connect()
