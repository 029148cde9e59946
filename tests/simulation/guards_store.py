"""Guards of the store, leases, the stage task, the chain and garbage collection, taken away."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

from flows.chain import Chain
from flows.cli import gc
from flows.cli.needs import Needs
from infra import process_identity
from infra.gcs.bucket_objects import BucketObjects
from infra.gcs.requests import Changed, Requests
from infra.local import LocalBackend
from infra.silence import Silence
from infra.store import lease
from infra.store.local_objects import Files
from infra.store.store import Store, data_name, manifest_name
from schemas.artifact import Manifest
from tasks.contract.journal import Journal
from tasks.running import execution
from tests.simulation.plan import Event, Fault, Plan
from tests.simulation.plant import Plant, replaced


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
def _no_check_after_lease() -> Iterator[None]:
    """The second look of `make`, under the lease, finds nothing."""
    real, acquire, lease_taken = Store.valid, lease._acquire, set[str]()

    def valid(self: Store, kind: str, key: str, *damage: Any) -> Manifest | None:
        found = real(self, kind, key, *damage)
        if damage and key in lease_taken:
            return None
        return found

    def acquired(store: Store, key: str, *rest: Any) -> lease.Lease:
        taken = acquire(store, key, *rest)
        lease_taken.add(key)
        return taken

    with patch.object(Store, "valid", valid), patch.object(lease, "_acquire", acquired):
        yield


def _same_attempt_again(follower: Any, store: Store, attempt: str, restarts: int) -> Any:
    status = follower.submit(attempt)
    while status.lost and restarts:
        restarts -= 1
        status = follower.submit(attempt)
    return status


def _no_discard(store: Store, needs: Needs, item: Any, key: str, held: str, mine: Any) -> None:
    place = gc._here(store) if item.kind == "cache" else store
    for name in sorted(item.names):
        gc.remove(place, name) if name != f"work/{key}" else None
    item.deleted = True


def unheld_all(store: Store, keys: Any, *rest: Any, **more: Any) -> dict[str, int]:
    return {key: lease._newest(store, key)[0] for key in keys}


def _set_aside_for_good(self: Needs, kind: str, key: str) -> bool:
    """Nobody looks whether a run has found the artifact."""
    self._store.discard(kind, key)
    return True


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


def _strict(store: Store, key: str, generation: int, raw: bytes | None) -> Any:
    record = store.parsed(lease._name(key, generation), raw, lease.LeaseRecord)
    return None if record is None or record.released else record


def _patient_silence(self: Silence, seen: object) -> float:
    """Time in which nobody looked counts as well."""
    now = time.monotonic()
    if seen != self._seen:
        self._seen, self._since = seen, now
    self._looked = now
    return now - self._since


def _one_try(self: Requests, call: Any, **options: Any) -> Any:
    options["seconds"] = 0.0
    return _ASK(self, call, **options)


_ASK = Requests.ask


def _gc_stands_still(place: str, what: str, count: int, stages: int, flow: str) -> Plan:
    """Garbage collection drops a run and stands still in the middle, and a flow begins."""
    when = "after" if what == "list any" else "before"
    fault = Fault("pause", "operator", what, count, when, 15.0)
    events = Event("gc", 60.0, amount=1.0), Event(flow, 61.5, amount=1.0)
    return Plan(0, place, "local", stages, (0.0,), (fault,), events)


PLANTS = (
    Plant(
        "create-only in a directory",
        replaced(Files, "create", lambda self, name, data: self.write(name, data) is None),
    ),
    Plant(
        "create-only in a bucket",
        replaced(BucketObjects, "create", _create_without_condition),
        place="bucket",
    ),
    Plant("the manifest is written last", replaced(Store, "commit", _manifest_first)),
    Plant("a commit adopts the winner", replaced(Store, "commit", _commit_over)),
    Plant("a holder's heartbeat", replaced(lease, "_beating", lambda *of: nullcontext())),
    Plant("a silent holder is waited for", replaced(Silence, "of", lambda self, seen: 1e9)),
    Plant(
        "a holder is gone only if its process is", replaced(lease, "is_gone", lambda process: True)
    ),
    Plant(
        "processes of other machines are not looked up here",
        replaced(process_identity, "is_here", lambda process: True),
    ),
    Plant("the artifact is looked for again under the lease", _no_check_after_lease),
    Plant(
        "the lease's generation names the attempt",
        replaced(lease.Lease, "attempt", property(lambda self: "1")),
    ),
    Plant(
        "a restart is another attempt", replaced(execution, "run_to_the_end", _same_attempt_again)
    ),
    Plant(
        "whatever ends the task cancels its job", replaced(LocalBackend, "cancel", lambda *of: None)
    ),
    Plant(
        "gc: the manifest goes first",
        replaced(gc, "_delete_item", _no_discard),
        place="bucket",
        needs=("gc at", "operator is killed"),
    ),
    Plant(
        "gc: keys with a live lease are left alone",
        replaced(gc, "unheld", unheld_all),
        needs=("gc at",),
    ),
    Plant(
        "gc: each key is removed under its lease",
        replaced(gc, "seize", lambda *of, **more: nullcontext(lambda: True)),
        aim=_gc_stands_still("bucket", "list any", 21, 1, "force"),
    ),
    Plant(
        "gc: run records are read again before the removal",
        replaced(Needs, "begun", lambda self: set()),  # read once, before leases are watched
        aim=_gc_stands_still("directory", "remove any", 1, 3, "night"),
    ),
    Plant(
        "gc: what a run has found meanwhile comes back",
        replaced(Needs, "let_go", _set_aside_for_good),
        aim=Plan(0, "bucket", "local", 3, (0.0, 52.0), (), (Event("gc", 51.8, amount=1.0),)),
    ),
    Plant(
        "a chain makes a lost input again",
        replaced(Chain, "_heal", lambda self, *rest: False),
        needs=("damage|gc at", "[23] stages"),
    ),
    Plant(
        "a lost acknowledgement of a create is understood",
        replaced(BucketObjects, "create", _blind_create),
        place="bucket",
    ),
    Plant("a request is repeated", replaced(Requests, "ask", _one_try), place="bucket"),
    Plant(
        "every byte of an artifact is verified before it is used",
        replaced(Store, "verify", lambda self, manifest: []),
    ),
    Plant("a journal's entry has a checksum", replaced(Journal, "_read", _trusting)),
    Plant("a damaged lease is nobody's", replaced(lease, "_parsed", _strict), needs=("power",)),
    Plant(
        "time in which the store is away is no silence",
        replaced(Silence, "of", _patient_silence),
        aim=Plan(0, "bucket", "local", 1, (0.0, 1.0), (), (Event("storm", 6.0, seconds=45.0),)),
    ),
)
