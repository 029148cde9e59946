"""What the runs on record need of a store: the stage keys that their records name, and of a night
the evaluations that its decision is going to rest on, or rests on.

Runs are dropped for `lyceum gc --drop-run`, unless they still run, or a champion needs them."""

import re
import time
from collections.abc import Collection
from contextlib import suppress

from pydantic import ValidationError

from flows.promotion.champion import protected
from flows.promotion.nights import DECISION, REMATCHES, needed_by_night
from flows.runs.record import in_full, record_name, run_folder, run_status
from infra.store.store import Store, manifest_name, parse_manifest
from schemas.base import InputError, nearest, problem_text
from schemas.reports import RunRecord

RECORD = record_name("").rpartition("/")[2]

LOOK_SECONDS = 3.0
"""How old the last look at the records may be when something is removed: keys of a large store go
for minutes, and a process may stand still in between."""

COLLECTED = "collected"
"""Why a manifest was set aside: somebody had to look whether a run needs the artifact."""

_DATA = re.compile(
    r"((trees|parts)/)?artifacts/(?P<kind>[^/]+)/(?P<key>[^/]+)/data/(?P<attempt>[^/]+)"
)


class Needs:
    """The stage keys that runs need, by their records at first and now.

    Args:
        drop: ids of runs that count as if they had no record.

    Attributes:
        keys: those that were needed at first.

    Raises:
        InputError: a record cannot be read; `look` and `begun` raise it, too.
    """

    def __init__(self, store: Store, drop: Collection[str]) -> None:
        self._store, self._drop = store, drop
        # keys by files that change no more: of runs that have ended, of nights with a decision
        self._over: dict[tuple[str, str], set[str]] = {}
        self._now: set[str] = set()
        self.look()
        self.keys = self._now

    def begun(self) -> set[str]:
        """Keys that are needed by now, and were not at first."""
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self.look()
        return self._now - self.keys

    def let_go(self, kind: str, key: str) -> bool:
        """Set the artifact of a key aside, and look at the records then: a run names an artifact
        before it looks for it, so whoever found this one is on record by now. Returns whether
        nobody needs it; else it is put back."""
        manifest = self._store.discard(kind, key, COLLECTED)
        if manifest is None:
            return True
        needed = True
        try:
            self.look()
            needed = key in self._now
        finally:
            if needed:
                self._store.create_bytes(manifest_name(kind, key), manifest)
        return not needed

    def take_back(self, kind: str, key: str, aside: Collection[str]) -> None:
        """Put the artifact of a key, which is needed, back where a `gc` that was killed had set it
        aside (`let_go`), unless another one has taken its place.

        Args:
            aside: names of all its manifests that were set aside.
        """
        for name in sorted(aside):
            if f"/manifest.{COLLECTED}-" in name and self._store.lookup(kind, key) is None:
                raw = self._store.read_bytes(name)
                manifest = parse_manifest(raw, kind, key)
                if raw is not None and manifest is not None and not self._store.verify(manifest):
                    self._store.create_bytes(manifest_name(kind, key), raw)

    def look(self) -> None:
        self._looked = time.monotonic()
        listed = self._store.each("runs", RECORD, DECISION, REMATCHES)
        found = [(one.name.split("/")[1], one.name.split("/")[2]) for one in listed]
        runs = {run for run, file in found if file == RECORD} - {*self._drop}
        known = dict.fromkeys(one for one in found if one[0] in runs)
        unread = [one for one in known if one not in self._over]
        now: set[str] = set().union(*(self._over.get(one, ()) for one in known))
        names = [f"{run_folder(run)}/{file}" for run, file in unread]
        for (run, file), raw in zip(unread, self._store.read_all(names), strict=True):
            if raw is None:  # another process dropped it in this moment
                continue
            if file == RECORD:
                record = self._record(run, raw)
                keys = {stage.key for stage in record.stages if stage.key}
                over = record.status != "running"
            else:
                try:
                    keys, over = needed_by_night(file, raw), (run, DECISION) in known
                except ValidationError:  # passed over by everybody: it can be made again
                    continue
            now |= keys
            if over:
                self._over[run, file] = keys
        self._now = now

    def names_files(self, name: str) -> bool:
        """Whether a manifest names the files of this attempt, in the store or, of a bucket, copied
        or arriving here: it was committed since they were listed."""
        if (found := _DATA.fullmatch(name)) is None:
            return False
        manifest = self._store.lookup(found["kind"], found["key"])
        return manifest is not None and manifest.attempt == found["attempt"]

    def _record(self, run: str, raw: bytes) -> RunRecord:
        try:
            return in_full(self._store, RunRecord.model_validate_json(raw))
        except ValidationError as error:
            why = problem_text(error.errors()[0])
            raise InputError(
                f"store {self._store.uri}: {record_name(run)} is damaged ({why}), so nobody can"
                f" tell what run {run} needs, and nothing is removed. Restore the file, or give up"
                f" the run with --drop-run {run}."
            ) from error


def check_drop(store: Store, drop: Collection[str]) -> None:
    """Raise InputError for a run that may not be dropped: it is unknown, still running, or a
    champion's."""
    known, champions = (store.list_runs(), protected(store)) if drop else ([], {})
    for run in drop:
        if run not in known:
            raise InputError(f"unknown run {run!r} in store {store.uri}.{nearest(run, known)}")
        if run in champions:
            raise InputError(f"run {run!r} cannot be dropped: {champions[run]}.")
        with suppress(ValidationError):
            record = RunRecord.model_validate_json(store.read_bytes(record_name(run)) or b"")
            if run_status(record) == "running":
                raise InputError(
                    f"run {run!r} is running (process {record.process and record.process.pid});"
                    " stop it before dropping it."
                )


def drop_run(store: Store, run: str) -> None:
    """Remove a run. Its record goes first, and comes back if somebody has promoted the run
    meanwhile. Raises InputError."""
    name, kept = record_name(run), True
    record = store.read_bytes(name)
    remove(store, name)
    try:
        champions = protected(store)
        kept = run in champions
    finally:
        if kept and record is not None:
            store.create_bytes(name, record)
    if kept:
        raise InputError(f"run {run!r} cannot be dropped: {champions[run]}.")
    remove(store, run_folder(run))


def remove(store: Store, name: str) -> None:
    """Remove an object and all below it. Raises InputError: something is left."""
    store.remove(name)
    if next(store.objects(name), None) is not None:
        raise InputError(
            f"{store.location(name)} could not be removed; see whether you may write there, and run"
            " the same command again."
        )
