"""TPUs that nobody follows any more: found by their labels, told from those that a flow holds, and removed.

A flow that was killed leaves its TPU running, so that a retry can take it over; the VM deletes itself when its job is done. What is left
then is little, but it holds quota: requests that wait, failed or were suspended, and the TPUs of runs that nobody goes on with. A resource
is in use when a flow holds the lease of its stage (`infra.lease`); it is removed under that lease, so that no flow begins meanwhile.
"""

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from infra.backend import Leftover
from infra.lease import seize, unheld
from infra.settings import Settings, TpuSettings
from infra.store import Store
from infra.tpu_api import GONE, ApiError, Resource, TpuApi, deletion_command
from schemas.base import InputError

log = logging.getLogger("lyceum.tpu")

USELESS = ("FAILED", "SUSPENDING", "SUSPENDED")
"""States of a request that comes to nothing any more, and holds quota until it is deleted."""
NO_PLACE = ("invalid", "permission")
"""Problems of a zone that this project may not use: nothing of it can be there."""


def reap(
    api: TpuApi, store: Store, store_label: str, zones: Sequence[str], delete: bool, settings: Settings, tpu: TpuSettings
) -> list[Leftover]:
    """See JobBackend.reap.

    Args:
        store_label: what the resources of this store's jobs are labelled with.
        zones: where to look.

    Raises:
        InputError: the API does not let us look, or does not answer.
    """
    ours = [one for one in _listed(api, zones) if one.labels.get("lyceum") == "job"]
    own = {one.name: _job_of(one) for one in ours if one.labels.get("lyceum-store") == store_label}
    keys = {key: 0 for key, _ in own.values() if key}
    free = unheld(store, keys, seconds=settings.lease_seconds, poll_seconds=settings.poll_seconds, waiting=log.info)
    found = []
    for one in ours:
        key, attempt = own.get(one.name, (one.labels.get("lyceum-key", ""), one.labels.get("lyceum-attempt", "")))
        state = one.node if one.request == GONE else " ".join(state for state in (one.request, one.node) if state not in ("", GONE))
        why, removable = _judged(one, one.name in own, key, key in free)
        removed = False
        if removable and delete:
            removed = _removed(api, store, one, key, free.get(key), settings, tpu)
        found.append(Leftover(one.name, key, attempt, state, why, removable, removed))
    return found


def _listed(api: TpuApi, zones: Sequence[str]) -> list[Resource]:
    with ThreadPoolExecutor(len(zones)) as pool:
        return [one for found in pool.map(lambda zone: _listed_in(api, zone, zones), zones) for one in found]


def _listed_in(api: TpuApi, zone: str, zones: Sequence[str]) -> list[Resource]:
    try:
        return api.list(zone)
    except ApiError as error:
        if error.problem.kind in NO_PLACE and len(zones) > 1:
            log.warning("not looked for TPUs in %s: %s", zone, error)
            return []
        raise InputError(f"TPUs in {zone} cannot be listed: {error}") from error


def _job_of(resource: Resource) -> tuple[str, str]:
    """The key and attempt of the job it was made for; its labels hold a part of the key only."""
    parts = resource.metadata.get("lyceum-job", "").split("/")
    return (parts[1], parts[2]) if len(parts) == 4 else ("", resource.labels.get("lyceum-attempt", ""))


def _judged(resource: Resource, ours: bool, key: str, free: bool) -> tuple[str, bool]:
    """Why a resource is a leftover, and whether it may be removed."""
    if not ours:
        return "it belongs to another store; look from there (--store)", False
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
    return "no run follows it; `lyceum run` with the same recipe and store would take it over", True


def _removed(api: TpuApi, store: Store, resource: Resource, key: str, generation: int | None, settings: Settings, tpu: TpuSettings) -> bool:
    """Remove a resource, under the lease of its stage unless it is of no use to anybody."""
    if generation is None:
        return _delete(api, resource, tpu)
    with seize(store, key, generation, "lyceum gc", seconds=settings.lease_seconds) as mine:
        return mine and _delete(api, resource, tpu)


def _delete(api: TpuApi, resource: Resource, tpu: TpuSettings) -> bool:
    """Whether nothing of it is left within `delete_seconds`."""
    until = time.monotonic() + tpu.delete_seconds
    problem = ""
    while time.monotonic() < until:
        try:
            if api.remove(resource.name):
                return True
        except ApiError as error:
            problem = f" ({error})"
        time.sleep(tpu.poll_seconds)
    log.error("%s is still there%s. Delete by hand: %s", resource.name, problem, deletion_command(resource.name))
    return False
