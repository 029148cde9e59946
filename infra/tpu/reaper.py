"""Finds TPUs that nobody follows by their labels, separates them from those in use, and removes
them.

A killed flow leaves its TPU running, so that a retry can take it over; the VM deletes itself when
its job is done. The rest is little, but it holds quota: requests that wait, failed or were
suspended, and the TPUs of abandoned runs. A resource is in use while a flow holds the lease of its
stage (`infra.store.lease`); it is removed under that lease, so that no flow begins meanwhile.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress

from infra.backend import JobHandle, Leftover
from infra.settings import Settings, TpuSettings
from infra.store.lease import attempts, seize, unheld
from infra.store.store import Store, attempt_file
from infra.tpu.api import GONE, ApiError, Resource, TpuApi, deletion_command
from infra.tpu.job_record import TpuRecord, record_name, store_label
from schemas.base import InputError
from schemas.job import JobSpec

log = logging.getLogger("lyceum.tpu")

RELEASE_SECONDS = 15.0
"""Seconds that a run waits for the end of a machine that it does not need."""
USELESS = ("FAILED", "SUSPENDING", "SUSPENDED")
"""States of a request that cannot succeed, and holds quota until it is deleted."""
NO_PLACE = ("invalid", "permission")
"""Problems of a zone that this project may not use, so that it has no resources there."""


def gc_command(target: str, store: str) -> str:
    """The command that finds what is left of a target's machines, of a store."""
    return f"`lyceum gc --target {target} --store {store}`"


def reap(
    api: TpuApi,
    store: Store,
    zones: Sequence[str],
    delete: bool,
    settings: Settings,
    tpu: TpuSettings,
) -> list[Leftover]:
    """See JobBackend.reap; looks in these zones.

    Raises:
        InputError: the API does not let us look, or does not answer.
    """
    label = store_label(store)
    ours = [one for one in _listed(api, zones) if one.labels.get("lyceum") == "job"]
    own = {one.name: _job_of(one) for one in ours if one.labels.get("lyceum-store") == label}
    keys = [key for key, _ in own.values() if key]
    free = _free(store, keys, settings)
    found = []
    for one in ours:
        labels = one.labels.get("lyceum-key", ""), one.labels.get("lyceum-attempt", "")
        key, attempt = own.get(one.name, labels)
        state = one.node
        if one.request != GONE:
            state = " ".join(word for word in (one.request, one.node) if word not in ("", GONE))
        done = key in free and _is_done(store, key, attempt)
        why, removable = _judged(one, one.name in own, key, key in free, done)
        removed = False
        if removable and delete:
            # under the lease of its stage, unless it is of no use to anybody
            lease: AbstractContextManager[Callable[[], bool]] = nullcontext(lambda: True)
            if key in free:
                lease = seize(store, key, free[key], "lyceum gc", seconds=settings.lease_seconds)
            with lease as mine:
                removed = _delete(api, one, tpu, mine)
        found.append(Leftover(one.name, key, attempt, state, why, removable, removed))
    return found


def unfinished(store: Store, key: str) -> dict[JobHandle, TpuRecord]:
    """The jobs of a key whose machines may still exist according to the records, without asking the
    cloud. It ignores damaged records."""
    found = {}
    for attempt in attempts(store, key):
        handle = JobHandle(store.uri, key, attempt)
        with suppress(InputError):
            record = store.read_json(record_name(handle), TpuRecord)
            if record is not None and record.state != "deleted":
                found[handle] = record
    return found


def release(
    api: TpuApi,
    store: Store,
    key: str,
    jobs: Mapping[JobHandle, TpuRecord],
    settings: Settings,
    say: Callable[[str], None],
) -> None:
    """Ask for the deletion of the machines of `jobs`, all of one key, unless a flow that lives
    holds its lease.

    A machine that is not gone within `RELEASE_SECONDS` stays on record: the next run that finds the
    stage done looks again, and so does `lyceum gc`.

    Raises:
        ApiError: it was refused, or nobody knows.
        InputError: there are no credentials, or no project.
        OSError: the store does not answer.
    """
    free = _free(store, [key], settings)
    if key not in free:
        return
    with seize(store, key, free[key], "lyceum run", seconds=settings.lease_seconds) as mine:
        if not mine():
            return

        def ask(names: Sequence[str]) -> list[str]:
            return [name for name in names if not (mine() and api.remove(name))]

        left = {handle: ask(record.resources) for handle, record in jobs.items()}
        for name in (name for names in left.values() for name in names):
            say(f"{name} was still there although no run followed it; its deletion is asked for")
        until = time.monotonic() + RELEASE_SECONDS
        while any(left.values()) and time.monotonic() < until:
            time.sleep(settings.poll_seconds)
            left = {handle: ask(names) for handle, names in left.items()}
        for handle, record in jobs.items():
            if not left[handle]:
                changes = {
                    "state": "deleted",
                    "ended": record.ended or time.time(),
                    "reason": record.reason or "no run followed it",
                }
                store.write_json(record_name(handle), record.model_copy(update=changes))


def _free(store: Store, keys: Iterable[str], settings: Settings) -> dict[str, int]:
    """The keys that no flow works on, see `unheld`."""
    wait, look = settings.lease_seconds, settings.poll_seconds
    return unheld(store, dict.fromkeys(keys, 0), seconds=wait, poll_seconds=look)


def _listed(api: TpuApi, zones: Sequence[str]) -> list[Resource]:
    def listed(zone: str) -> list[Resource]:
        try:
            return api.list(zone)
        except ApiError as error:
            if error.problem.kind in NO_PLACE and len(zones) > 1:
                log.warning("not looked for TPUs in %s: %s", zone, error)
                return []
            raise InputError(f"TPUs in {zone} cannot be listed: {error}") from error

    with ThreadPoolExecutor(len(zones)) as pool:
        return [one for of_zone in pool.map(listed, zones) for one in of_zone]


def _job_of(resource: Resource) -> tuple[str, str]:
    """The key and attempt of a resource's job; its labels have only a part of the key."""
    parts = resource.metadata.get("lyceum-job", "").split("/")
    return (
        (parts[1], parts[2]) if len(parts) == 4 else ("", resource.labels.get("lyceum-attempt", ""))
    )


def _is_done(store: Store, key: str, attempt: str) -> bool:
    """Whether the stage of a job has its artifact, so that no run will use the machine again."""
    try:
        job = store.read_json(attempt_file(key, attempt, "job.json"), JobSpec)
    except InputError:
        return False
    return job is not None and store.lookup(job.kind, key) is not None


def _judged(resource: Resource, ours: bool, key: str, free: bool, done: bool) -> tuple[str, bool]:
    """Why a resource is a leftover, and whether to remove it."""
    if not ours:
        where = resource.metadata.get("lyceum-store", "another store")
        return f"it belongs to {where}; look from there (--store)", False
    if "DELETING" in (resource.request, resource.node):
        return "it is being deleted", False
    if resource.request in USELESS:
        return f"its request is {resource.request} and holds quota", True
    if not key:
        return "its metadata does not say which job it was made for", False
    if not free:
        return "a run follows it", False
    if resource.request == GONE:
        return "its queued resource is gone, and no run follows it", True
    if done:
        return "its stage is done, and no run follows it", True
    return "no run follows it; `lyceum run` with the same recipe and store would take it over", True


def _delete(api: TpuApi, resource: Resource, tpu: TpuSettings, mine: Callable[[], bool]) -> bool:
    """Delete a resource; returns whether nothing of it is left within `delete_seconds`. It stops
    asking once the lease is not `mine`."""
    until = time.monotonic() + tpu.delete_seconds
    problem = ""
    while time.monotonic() < until:
        if not mine():
            return False
        try:
            if api.remove(resource.name):
                return True
        except ApiError as error:
            problem = f" ({error})"
        time.sleep(tpu.poll_seconds)
    by_hand = deletion_command(resource.name)
    log.error("%s is still there%s. Delete by hand: %s", resource.name, problem, by_hand)
    return False
