"""`lyceum gc` finds the objects that no run needs any more, with their size, and removes them.

A run needs what its record names, even if it failed, was stopped or killed, because it resumes from
there; a nightly run also needs the evaluations behind its decision. A committed stage needs its
artifact and, of its working files, only SMALL, which are small and tell what happened. A key with a
live lease needs everything, including its job's inputs. The run of a champion, or of one to which a
rollback may lead, cannot be dropped. The rest is garbage:

    run         a run that is to be dropped (its record is removed first, and what only it named is
                garbage)
    artifact    an artifact of no run, with everything that belongs to its key
    attempt     files of an attempt that no manifest names: it was killed in the commit, lost the
                race, or was set aside
    set aside   manifests of damaged or discarded artifacts
    work        checkpoints, journals, unfinished outputs of a committed stage or a key of no run
    temporary   what a killed process left of a single write
    cache       this machine's copies and working files of what is gone or garbage in a bucket
    export      what an interrupted `lyceum push` left in this machine's cache

Runs that begin meanwhile are safe. Each key is removed under its lease, so that a run that wants
the stage waits; run records are read again right before; an artifact's manifest goes first, so that
nobody finds an artifact with half of its files, and comes back if a run has found it meanwhile
(`Needs.let_go`), if need be with the next `gc`. A run that reads one in that moment finds its input
gone, and makes it again (`flows.chain`). Machines go before the records of their jobs do.
"""

import itertools
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flows.cli.needs import Needs, check_drop, drop_run, remove
from flows.cli.unsent import discard_unsent, unsent
from flows.runs.record import run_folder
from infra.backend import JobBackend
from infra.context import context
from infra.settings import Settings
from infra.store.lease import seize, unheld
from infra.store.local_objects import TEMPORARY
from infra.store.objects import Found
from infra.store.store import Store, attempt_file
from infra.targets import open_backend
from infra.tpu.reaper import unfinished
from schemas.job import JobSpec

SMALL = ("lease.json", "job.json", "status.json", "log.txt")
"""Files of an attempt that stay as long as a run names the key."""

TEMPORARY_SECONDS = 3600.0
"""A temporary file lives for as long as one small write takes; one that was written this long ago
was left behind."""

_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass
class Garbage:
    """Something that can go.

    Attributes:
        kind: see above.
        name: the prefix in the store (of the cache: on this machine) below which all of it lies.
        key: the stage key it belongs to; None for runs and temporary files.
        names: the objects and prefixes to remove.
        bytes, objects: how much it is.
        written: when the newest part of it was written, seconds since the epoch.
        deleted: it has been removed.
    """

    kind: str
    name: str
    why: str
    key: str | None = None
    names: set[str] = field(default_factory=set)
    bytes: int = 0
    objects: int = 0
    written: float = 0.0
    deleted: bool = False

    def add(self, found: Found, remove: str) -> None:
        """Count an object in, which is removed with `remove`."""
        self.names.add(remove)
        self.bytes += found.size
        self.objects += 1
        self.written = max(self.written, found.written)

    def as_json(self) -> dict[str, Any]:
        shown = ("kind", "name", "why", "bytes", "objects", "written", "deleted")
        return {name: getattr(self, name) for name in shown}


def collect_garbage(
    store: Store,
    drop: Collection[str],
    delete: bool,
    settings: Settings,
    say: Callable[[str], None],
) -> list[Garbage]:
    """Find all garbage of a store and, with `delete`, remove it.

    Args:
        drop: ids of runs that are treated as if they had no record, and with `delete` have none
            afterwards.
        say: receives what a person should know meanwhile, e.g. that leases are watched.

    Raises:
        InputError: a run to drop is unknown, still running or a champion's, a run record cannot be
            read, or something cannot be removed.
    """
    check_drop(store, drop)
    needs = Needs(store, drop)
    sweep = _Sweep(store, needs.keys)
    runs = {folder: store.objects(folder) for folder in map(run_folder, drop)}
    again = "a push was interrupted; the next makes it again"
    found = [*_listed("run", "it is to be dropped", runs), *sweep.garbage()]
    found += _listed("export", again, unsent(store))
    keys = {item.key for item in found if item.key}
    leased = {key: sweep.leases[key] for key in keys & sweep.leases.keys()}
    patience = {"seconds": settings.lease_seconds, "poll_seconds": settings.poll_seconds}
    # a lease that is taken from here on is noticed before anything goes
    unleased = dict.fromkeys(keys - leased.keys(), 0)
    free = unleased | unheld(store, leased, **patience, waiting=say)
    busy = keys - free.keys()
    used = busy | {key for one in busy for key in _job_inputs(store, one)}
    found = [item for item in found if item.key not in used]
    if delete:
        check_drop(store, drop)  # leases were watched meanwhile
        needs.look()
        _delete_without_keys(store, found)
        kept = _with_machines(store, (keys - used - needs.begun()) & sweep.machines, say)
        doomed = [item for item in found if item.key and item.key not in kept]
        _delete_keys(store, doomed, free, settings.lease_seconds, needs)
    return found


def _job_inputs(store: Store, key: str) -> set[str]:
    """The keys of the artifacts that jobs of a key were given."""
    specs = (
        store.read_json(attempt_file(key, attempt, "job.json"), JobSpec)
        for attempt in store.children(f"work/{key}")
    )
    return {ref.key for spec in specs if spec for ref in spec.inputs.values()}


def _listed(kind: str, why: str, places: Mapping[str, Iterable[Found]]) -> Iterator[Garbage]:
    for name, files in places.items():
        item = Garbage(kind, name, why)
        for found in files:
            item.add(found, name)
        yield item


class _Sweep:
    """One pass over the listing of a store. What it keeps in memory are the garbage, the keys of
    needed artifacts, and `leases`.

    Attributes:
        leases: every key that has attempts -> the newest, which is the generation of its lease if
            it has one.
        machines: every key with a job in the cloud.
    """

    def __init__(self, store: Store, needed: set[str]) -> None:
        self._store, self._needed = store, needed
        self._committed: dict[str, set[str]] = {}
        self._temporary: list[Garbage] = []
        self.leases: dict[str, int] = {}
        self.machines: set[str] = set()

    def garbage(self) -> Iterator[Garbage]:
        """All garbage but runs."""
        for (_, kind, key), group in self._grouped(self._store, "artifacts", 3):
            yield from self._artifact(f"artifacts/{kind}/{key}", kind, key, group)
        for (_, key), group in self._grouped(self._store, "work", 2):
            below = list(group)
            if attempts := [
                int(one) for found in below for one in found.name.split("/")[2:3] if one.isdecimal()
            ]:
                self.leases[key] = max(attempts)
            if any(found.name.endswith("/tpu.json") for found in below):
                self.machines.add(key)
            yield from self._work("work", f"work/{key}", key, below)
        for top in ("runs", "champions", "nights"):
            for _ in self._grouped(self._store, top, 1):
                pass  # for their temporary files
        if not self._store.is_directory:
            yield from self._cache()
        yield from self._temporary

    def _artifact(
        self, prefix: str, kind: str, key: str, group: Iterable[Found]
    ) -> Iterator[Garbage]:
        whole = Garbage("artifact", prefix, "no run needs it", key)
        aside = Garbage("set aside", prefix, "its artifact was damaged or discarded", key)
        attempts: dict[str, Garbage] = {}
        committed = False
        for found in group:
            whole.add(found, prefix)
            below = found.name.removeprefix(f"{prefix}/").split("/")
            if below == ["manifest.json"]:
                committed = True
            elif below[0].startswith("manifest."):
                aside.add(found, found.name)
            elif below[0] == "data" and len(below) > 2:
                name = f"{prefix}/data/{below[1]}"
                unnamed = Garbage("attempt", name, "no manifest names it", key)
                attempts.setdefault(below[1], unnamed).add(found, name)
        if key not in self._needed:
            yield whole
            return
        if committed:
            self._committed[key] = set(attempts)
            if len(attempts) == 1:
                attempts.clear()  # it is the manifest's, which need not be read in the common case
            elif attempts:
                manifest = self._store.lookup(kind, key)
                attempts.pop(manifest.attempt if manifest else "", None)
        yield from (item for item in (aside, *attempts.values()) if item.objects)

    def _work(
        self, garbage: str, prefix: str, key: str, group: Iterable[Found]
    ) -> Iterator[Garbage]:
        needed = key in self._needed
        if needed and key not in self._committed:
            return
        why = "its stage is committed" if needed else "no run needs it"
        item = Garbage(garbage, prefix, why, key)
        for found in group:
            below = found.name.removeprefix(f"{prefix}/").split("/")
            if not needed:
                item.add(found, prefix)
            elif not (len(below) == 2 and below[1] in SMALL):
                item.add(found, "/".join([prefix, *below[:2]]))
        if item.objects:
            yield item

    def _cache(self) -> Iterator[Garbage]:
        """The directories in which this machine keeps files of a bucket: copies of trees, whole
        (`trees/`) and arriving (`parts/`), and working files (`work/`)."""
        here = _here(self._store)
        for root in ("trees", "parts"):
            for (_, _, kind, key), group in self._grouped(here, f"{root}/artifacts", 4):
                place = f"{root}/artifacts/{kind}/{key}"
                item = Garbage("cache", place, "a copy of what is gone or garbage", key)
                for found in group:
                    attempt = found.name.removeprefix(f"{item.name}/").split("/")[1]
                    if attempt not in self._committed.get(key, ()):
                        item.add(found, f"{item.name}/data/{attempt}")
                if item.objects:
                    yield item
            for (_, _, key), group in self._grouped(here, f"{root}/work", 3):
                yield from self._work("cache", f"{root}/work/{key}", key, group)
        for (_, key), group in self._grouped(here, "work", 2):
            yield from self._work("cache", f"work/{key}", key, group)

    def _grouped(
        self, store: Store, top: str, segments: int
    ) -> Iterator[tuple[tuple[str, ...], Iterator[Found]]]:
        """The objects below `top` by the first segments of their names, the last of which is a
        stage key, or `top` alone.

        Whatever else lies there was not made by Lyceum, and is passed over. Temporary files are
        noted apart.
        """

        def start(found: Found) -> tuple[str, ...]:
            return tuple(found.name.split("/")[:segments])

        for prefix, group in itertools.groupby(self._lasting(store, top), key=start):
            if prefix == (top,) or (len(prefix) == segments and _KEY.fullmatch(prefix[-1])):
                yield prefix, group

    def _lasting(self, store: Store, top: str) -> Iterator[Found]:
        for found in store.objects(top):
            if not TEMPORARY.fullmatch(found.name.rpartition("/")[2]):
                yield found
            elif store is self._store and time.time() - found.written > TEMPORARY_SECONDS:
                item = Garbage("temporary", found.name, "a killed process left it")
                item.add(found, found.name)
                self._temporary.append(item)


def _here(store: Store) -> Store:
    """This machine's working files and copies of a store in a bucket, which lie in a directory, as
    a store."""
    return context().store(store.path("work").parent, write=False)


def _delete_without_keys(store: Store, found: Iterable[Garbage]) -> None:
    for item in found:
        if item.kind == "run":
            drop_run(store, item.name.removeprefix("runs/"))
            item.deleted = True
        elif item.kind == "temporary":
            (store.path("work").parent / item.name).unlink(missing_ok=True)
            item.deleted = True
        elif item.kind == "export":
            item.deleted = discard_unsent(store, item.name)


def _with_machines(store: Store, keys: Iterable[str], say: Callable[[str], None]) -> set[str]:
    """See to the end of the machines that jobs of these keys may still have: who removed what is
    known of one would leave it to itself. Returns the keys of those that may be there still."""
    left = {key: unfinished(store, key) for key in sorted(keys)}
    backends: dict[str, JobBackend] = {}
    for key, jobs in left.items():
        for target in sorted({record.target for record in jobs.values()}):
            if target not in backends:
                backends[target] = open_backend(target)
            backends[target].release(store, key, say)
    for backend in backends.values():
        for message in backend.close():
            say(message)
    return {key for key, jobs in left.items() if jobs and unfinished(store, key)}


def _delete_keys(
    store: Store, found: Iterable[Garbage], free: dict[str, int], seconds: float, needs: Needs
) -> None:
    """Remove what belongs to keys, each under its lease; nothing where somebody else has taken that
    by now, or a run needs it that has begun."""
    by_key: dict[str, list[Garbage]] = {}
    for item in found:
        by_key.setdefault(item.key or "", []).append(item)
    for key, items in by_key.items():
        with seize(store, key, free[key], "lyceum gc", seconds=seconds) as mine:
            for item in items:
                if key in needs.begun():
                    break
                _delete_item(store, needs, item, key, f"work/{key}/{free[key] + 1}", mine)


def _delete_item(
    store: Store, needs: Needs, item: Garbage, key: str, lease: str, mine: Callable[[], bool]
) -> None:
    """Remove an item, except the lease under which that is done; nothing from the moment on in
    which it is not `mine`."""
    place = _here(store) if item.kind == "cache" else store
    if not mine():
        return
    if item.kind == "artifact" and not needs.let_go(item.name.split("/")[1], key):
        return
    if item.kind == "set aside":
        needs.take_back(item.name.split("/")[1], key, item.names)
    named = {name for name in item.names if needs.names_files(name)}
    for name in sorted(item.names - named):
        below = [name]
        if name == f"work/{key}":
            below = [f"{name}/{child}" for child in place.children(name)]
        for one in below:
            if one == lease and place is store:
                continue
            if not mine():
                return
            remove(place, one)
    item.deleted = not named
