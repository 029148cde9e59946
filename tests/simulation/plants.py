"""Guards of today's code, each removed or reversed for as long as a context lasts: does the
simulation find out, and after how many histories?

    uv run python -m tests.simulation.plants [--seconds 60] [NAME ...]
"""

import argparse
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from flows.cli import gc
from flows.chain import Chain
from infra.backend import JobHandle
from infra.gcs.objects import BucketObjects
from infra.gcs.requests import Changed, Requests
from infra.local import LocalBackend
from infra.store import lease
from infra.store.files import Files
from infra.store.manifests import data_name, manifest_name
from infra.store.store import Store
from infra.tpu import machine, reaper
from infra.tpu.api import TpuApi
from infra.tpu.backend import CloudTpuBackend
from infra.tpu.host import Agent
from infra.tpu.job import TpuJob
from schemas.artifact import Manifest
from tasks import stage
from tasks.contract.journal import Journal
from tests.simulation.history import Result, play
from tests.simulation.plan import drawn

Without = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Plant:
    """A guard, the file that has it, what takes it away, and where histories are to be played."""

    name: str
    where: str
    without: Without
    target: str = "local"
    place: str = "directory"


def _replaced(owner: Any, name: str, new: Any) -> Without:
    return lambda: patch.object(owner, name, new)


def _create_replaces(self: Files, name: str, data: bytes) -> bool:
    self.write(name, data)
    return True


def _create_without_condition(self: BucketObjects, name: str, data: bytes) -> bool:
    self.upload(self.path(name), data)
    return True


def _manifest_first(self: Store, draft: Manifest, directory: Any) -> Manifest:
    if (winner := self.valid(draft.kind, draft.key)) is not None:
        return winner
    entries = self._entries(directory)
    made = draft.model_copy(update={"files": entries}).sealed()
    self.create_json(manifest_name(made.kind, made.key), made)
    self._objects.put_tree(directory, data_name(made), entries)
    return made


def _commit_over(self: Store, draft: Manifest, directory: Any) -> Manifest:
    made = draft.model_copy(update={"files": self._entries(directory)}).sealed()
    self._objects.put_tree(directory, data_name(made), made.files)
    self.write_json(manifest_name(made.kind, made.key), made)
    return made


@contextmanager
def _no_beats(store: Store, held: lease.Lease, interval: float) -> Iterator[None]:
    yield


@contextmanager
def _seize_anyway(
    store: Store, key: str, generation: int, owner: str, *, seconds: float
) -> Iterator[bool]:
    yield True


def _no_check_after_lease() -> AbstractContextManager[Any]:
    """The second look of `_run_stage`, under the lease, finds nothing."""
    real, looks = Store.valid, {"n": 0}

    def valid(self: Store, kind: str, key: str, *damage: Any) -> Manifest | None:
        found = real(self, kind, key, *damage)
        if damage and key in lease_taken:
            return None
        return found

    lease_taken: set[str] = set()
    acquire = lease._acquire

    def acquired(store: Store, key: str, *rest: Any) -> lease.Lease:
        taken = acquire(store, key, *rest)
        lease_taken.add(key)
        return taken

    stack = _both(patch.object(Store, "valid", valid), patch.object(lease, "_acquire", acquired))
    del looks
    return stack


@contextmanager
def _both(*patches: AbstractContextManager[Any]) -> Iterator[None]:
    with patches[0], patches[1]:
        yield


def _one_attempt() -> AbstractContextManager[Any]:
    return patch.object(lease.Lease, "attempt", property(lambda self: "1"))


def _same_attempt_again(follower: Any, store: Store, attempt: str, restarts: int) -> Any:
    status = follower.submit(attempt)
    while status.lost and restarts:
        restarts -= 1
        status = follower.submit(attempt)
    return status


def _no_cancel(self: Any, handle: JobHandle) -> None:
    """Nothing is stopped."""


def _never_deleted(self: TpuJob) -> None:
    self._accepted.set()


def _request_unrecorded() -> AbstractContextManager[Any]:
    real = TpuJob._request

    def request(self: TpuJob) -> Any:
        with patch.object(self, "_write", lambda: True):
            return real(self)

    return patch.object(TpuJob, "_request", request)


def _all_are_free(store: Store, keys: Any, settings: Any) -> dict[str, int]:
    return {key: lease._newest(store, key)[0] for key in keys}


def _no_discard(store: Store, item: Any, key: str, held: str) -> None:
    place = gc._here(store) if item.kind == "cache" else store
    for name in sorted(item.names):
        gc._remove(place, name) if name != f"work/{key}" else None
    item.deleted = True


def _unheld_all(store: Store, keys: Any, **rest: Any) -> dict[str, int]:
    return {key: lease._newest(store, key)[0] for key in keys}


def _stale_needs() -> AbstractContextManager[Any]:
    """What runs name is read once, before leases are watched."""
    real, known = gc._needed, {}

    def needed(store: Store, drop: Any) -> set[str]:
        me = threading.current_thread(), id(store)
        return known.setdefault(me, real(store, drop))

    return patch.object(gc, "_needed", needed)


def _blind_create(self: BucketObjects, name: str, data: bytes) -> bool:
    """Who finds an object there does not ask whose it is."""
    try:
        self.upload(self.path(name), data, generation=0)
    except Changed:
        return False
    return True


def _trusting(self: Journal, entry: str) -> Any:
    raw = self._work.read(self._object(entry))
    return None if raw is None else json.loads(raw.partition(b"\n")[2])


def _strict_read(store: Store, key: str, generation: int) -> Any:
    record = store.read_json(lease._name(key, generation), lease.LeaseRecord)
    return None if record is None or record.released else record


def _patient_silence(self: lease.Silence, seen: object) -> float:
    """Time in which nobody looked counts as well."""
    now = time.monotonic()
    if seen != self._seen:
        self._seen, self._since = seen, now
    self._looked = now
    return now - self._since


def _foreign(self: TpuApi, name: str, *rest: Any) -> None:
    parent, _, short = name.partition("/queuedResources/")
    order = self.order(parent, short, *rest[:2], rest[2])
    request = {"parent": parent, "queued_resource_id": short, "queued_resource": order}
    self._ask(name, "create_queued_resource", request)


def _zone_left_alone() -> AbstractContextManager[Any]:
    real = TpuJob._go_on_elsewhere

    def go_on(self: TpuJob, problem: Any) -> None:
        real(self, problem)
        self._leaving.clear()
        self.record = self.record.model_copy(update={"resources": self.record.resources[-1:]})

    return patch.object(TpuJob, "_go_on_elsewhere", go_on)


def _one_try(self: Requests, call: Any, **options: Any) -> Any:
    options["seconds"] = 0.0
    return _ASK(self, call, **options)


def _never_silent() -> AbstractContextManager[Any]:
    real = machine._running

    def running(state: Any, seen: Any, terms: Any) -> Any:
        hosts = [replace(host, silent=0.0) for host in seen.hosts]
        return real(state, replace(seen, hosts=hosts), terms)

    return patch.object(machine, "_running", running)


_ASK = Requests.ask

PLANTS = (
    Plant("create-only in a directory", "infra/store/files.py", _replaced(Files, "create", _create_replaces)),
    Plant("create-only in a bucket", "infra/gcs/objects.py", _replaced(BucketObjects, "create", _create_without_condition), place="bucket"),
    Plant("the manifest is written last", "infra/store/store.py", _replaced(Store, "commit", _manifest_first)),
    Plant("a commit adopts the winner", "infra/store/store.py", _replaced(Store, "commit", _commit_over)),
    Plant("a holder's heartbeat", "infra/store/lease.py", _replaced(lease, "_beating", _no_beats)),
    Plant("a silent holder is waited for", "infra/store/lease.py", _replaced(lease.Silence, "of", lambda self, seen: 1e9)),
    Plant("a holder is gone only if its process is", "infra/store/lease.py", _replaced(lease, "is_gone", lambda process: True)),
    Plant("processes of other machines are not looked up here", "infra/store/lease.py", _replaced(lease, "is_here", lambda process: True)),
    Plant("the artifact is looked for again under the lease", "tasks/stage.py", _no_check_after_lease),
    Plant("the lease's generation names the attempt", "infra/store/lease.py", _one_attempt),
    Plant("a restart is another attempt", "tasks/stage.py", _replaced(stage, "_run_to_the_end", _same_attempt_again)),
    Plant("whatever ends the task cancels its job", "infra/local.py", _replaced(LocalBackend, "cancel", _no_cancel)),
    Plant("gc: the manifest goes first", "flows/cli/gc.py", _replaced(gc, "_delete_item", _no_discard)),
    Plant("gc: keys with a live lease are left alone", "flows/cli/gc.py", _replaced(gc, "unheld", _unheld_all)),
    Plant("gc: each key is removed under its lease", "flows/cli/gc.py", _replaced(gc, "seize", _seize_anyway)),
    Plant("gc: run records are read again before the removal", "flows/cli/gc.py", _stale_needs),
    Plant("a chain makes a lost input again", "flows/chain.py", _replaced(Chain, "_heal", lambda self, *rest: False)),
    Plant("a machine of a job that ended is deleted", "infra/tpu/job.py", _replaced(TpuJob, "_delete", _never_deleted), "v5e-8", "bucket"),
    Plant("a request is on record before it is sent", "infra/tpu/job.py", _request_unrecorded, "v5e-8", "bucket"),
    Plant("a job that outlived its flow is taken over", "infra/tpu/backend.py", _replaced(CloudTpuBackend, "attach", lambda self, store, key: None), "v5e-8", "bucket"),
    Plant("gc: machines that a run follows are left alone", "infra/tpu/reaper.py", _replaced(reaper, "_free", _all_are_free), "v5e-8", "bucket"),
    Plant("a lost acknowledgement of a create is understood", "infra/gcs/objects.py", _replaced(BucketObjects, "create", _blind_create), place="bucket"),
    Plant("a request is repeated", "infra/gcs/requests.py", _replaced(Requests, "ask", _one_try), place="bucket"),
    Plant("every byte of an artifact is verified before it is used", "infra/store/store.py", _replaced(Store, "verify", lambda self, manifest: [])),
    Plant("a journal's entry has a checksum", "tasks/contract/journal.py", _replaced(Journal, "_read", _trusting)),
    Plant("a damaged lease is nobody's", "infra/store/lease.py", _replaced(lease, "_read", _strict_read)),
    Plant("time in which the store is away is no silence", "infra/store/lease.py", _replaced(lease.Silence, "of", _patient_silence), place="bucket"),
    Plant("a request that exists already may be ours", "infra/tpu/api.py", _replaced(TpuApi, "create", _foreign), "v5e-8", "bucket"),
    Plant("a zone that is given up is cleared", "infra/tpu/job.py", _zone_left_alone, "v5e-8", "bucket"),
    Plant("a machine that nobody deletes deletes itself", "infra/tpu/host.py", _replaced(Agent, "_wait_for_deletion", lambda self, final: None), "v5e-8", "bucket"),
    Plant("a run that finds its stage done clears its machines", "infra/tpu/backend.py", _replaced(CloudTpuBackend, "release", lambda self, *rest: None), "v5e-8", "bucket"),
    Plant("a run waits for the end of its machines", "infra/tpu/job.py", _replaced(TpuJob, "cancel", lambda self: None), "v5e-8", "bucket"),
    Plant("a silent machine is given up", "infra/tpu/machine.py", _never_silent, "v5e-8", "bucket"),
)  # fmt: skip


def hunted(plant: Plant, first: int, most: int, seconds: float) -> tuple[int, Result | None]:
    """How many histories were played until one broke a law, and that one; None if none did."""
    played, began, seed = 0, time.monotonic(), first
    with plant.without():
        while played < most and time.monotonic() - began < seconds:
            plan = drawn(seed, (plant.target,))
            seed += 1
            if plan.place == plant.place:
                played += 1
                if (result := play(plan)).law:
                    return played, result
    return played, None


def main() -> None:
    """Hunt the plants that are named, or all, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.plants")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each")
    parser.add_argument("--histories", type=int, default=20_000, help="for each, at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("names", nargs="*", help="parts of their names")
    given = parser.parse_args()
    print("| guard taken away | in | found after | by the law |\n|---|---|---|---|")
    for plant in PLANTS:
        if given.names and not any(name in plant.name for name in given.names):
            continue
        played, found = hunted(plant, given.seed, given.histories, given.seconds)
        law = f"{found.law} (seed {found.plan.seed})" if found else "not found"
        print(f"| {plant.name} | {plant.where} | {played} | {law} |", flush=True)


if __name__ == "__main__":
    main()
