"""What holds at every moment of every history, looked at after each operation by somebody who sees
everything: the place's bytes, who lives, the true time."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from infra.backend import FINAL
from infra.gcs.requests import LONGEST_DELAY
from infra.store.remote import host_status
from infra.store.store import data_name, parse_manifest
from schemas.artifact import Manifest
from schemas.reports import RunRecord
from tests.simulation.broken import Broken
from tests.simulation.champions import Champions
from tests.simulation.holder import Holder, others
from tests.simulation.naming import short
from tests.simulation.on_record import OnRecord
from tests.simulation.payments import Payments
from tests.simulation.worker import made_of
from tests.simulation.world import Process, World


@dataclass
class Laws:
    """Watches one history.

    Args:
        read: the bytes of an object, without an operation.
        seconds: time to live of a lease.

    Attributes:
        forced, damaged: keys that somebody discards on purpose, or whose bytes have rotted.
        broken: the first law that did not hold.
        lenient: the store was away, so that a record may be missing.
        stormy, away_since, storm_until: the store was away at all; since when it was the last time;
            until when nobody was answered.
        refused: somebody was refused what only people can put right.
        spoiled: records that have rotted.
        lagging: listings did, so that a checkpoint may not be found.
        deaf: the cloud did not answer, or refused, so that a machine may stay for a while.
        losses: artifacts that were taken away or have rotted; a chain makes its input again once.
        on_first: what happens so many seconds after the first commit.
    """

    world: World
    read: Callable[[str], bytes | None]
    seconds: float
    forced: set[str] = field(default_factory=set)
    damaged: set[str] = field(default_factory=set)
    broken: Broken | None = None
    lenient: bool = False
    stormy: bool = False
    away_since: float = -1.0
    storm_until: float = 0.0
    refused: bool = False
    spoiled: set[str] = field(default_factory=set)
    lagging: bool = False
    deaf: bool = False
    losses: int = 0
    committed: dict[tuple[str, str], Manifest] = field(default_factory=dict)
    commits: int = 0
    on_first: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)
    _since: dict[tuple[str, str], float] = field(default_factory=dict)
    _digests: dict[tuple[str, str], str] = field(default_factory=dict)
    _holders: dict[tuple[str, int], Holder] = field(default_factory=dict)
    _jobs: set[tuple[str, str, str]] = field(default_factory=set)
    _asked: dict[Process, float] = field(default_factory=dict)
    _steps: dict[tuple[str, str], int] = field(default_factory=dict)
    _kept: dict[str, int] = field(default_factory=dict)
    _floor: dict[tuple[str, str], int] = field(default_factory=dict)
    _submitted: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.champions = Champions(self)
        self.payments = Payments(self.world, self.break_)
        self.on_record = OnRecord(self.world, self.read)

    def break_(self, law: str, how: str) -> None:
        if self.broken is None:
            self.broken, self.world.over = Broken(law, how), True
            self.world.say(f"BROKEN: {law}: {how}")

    def away(self, until: float = 0.0) -> None:
        """From now on the store does not answer for a while; nobody before that moment."""
        self.stormy, self.away_since = True, self.world.now
        self.storm_until = max(self.storm_until, until)

    def observe(self, process: Process, what: str, name: str, result: object) -> None:
        """After an operation of a process; `result` is None inside one that killed it."""
        if process.role == "operator":
            self.on_record.looks(process, what, name)
        if what == "read lease":
            self._asked[process] = self.world.now
        elif what.startswith("list") or (what.startswith("read") and process.role != "operator"):
            return
        elif name.startswith("artifacts/"):
            self._artifact(process, what, name)
        elif name.endswith("/lease.json") and result is not False:
            if result is not None or what != "create lease":
                self._lease(process, what, name)
        elif name.startswith("answers/"):
            if self.read(name) is not None:  # not of who was killed before that
                self.payments.answered(name)
        elif what == "create job" and result:
            self._submitted["/".join(name.split("/")[1:3])] = self.world.now
        elif what == "write tpu":
            self.payments.follows(process, "/".join(name.split("/")[1:3]))
        elif what in ("create champion", "create night", "remove champion") and result is not False:
            self.champions.changed(process, what, name, killed=result is None)
        elif what in ("write run", "remove run", "remove any") and name.startswith("runs/"):
            self.on_record.changed(name)
            if what.startswith("remove"):
                self.removed.add(name.split("/")[1])
        elif what == "create seal" and "/checkpoints/" in name and result:
            key = name.split("/")[1]
            if self.read(name.replace("seal.json", "data/values.json")) is None:
                return  # somebody ended the stage and removed it, before its worker woke
            self._kept[key] = max(self._kept.get(key, 0), int(name.split("/")[4].split("-")[0]))
        elif what.startswith("remove") and name.startswith("work/"):
            key = name.split("/")[1]
            done = any(of == key for _, of in self.committed)
            if name.endswith("/kept") or process.role == "operator" or done:
                self._kept.pop(key, None)
            self._forget_what_is_removed(key)

    def _forget_what_is_removed(self, key: str) -> None:
        """Generations and attempts whose files are removed may come again."""
        for of, generation in list(self._holders):
            if of == key and self.read(f"work/{key}/{generation}/lease.json") is None:
                del self._holders[of, generation]
        for of, attempt, host in list(self._jobs):
            if of == key and self.read(f"work/{key}/{attempt}/job.json") is None:
                self._jobs.remove((of, attempt, host))
                self._steps.pop((of, attempt), None)

    # Artifacts

    def _artifact(self, process: Process, what: str, name: str) -> None:
        _, kind, key, *rest = name.split("/")
        known = self.committed.get((kind, key))
        raw = self.read(f"artifacts/{kind}/{key}/manifest.json")
        now = parse_manifest(raw, kind, key)
        if raw is not None and now is None:
            self.break_("commit", f"the manifest of {kind}/{key[:6]} is torn")
        elif known is not None and now is None:
            self._gone(process, kind, key)
            del self.committed[kind, key], self._since[kind, key]
        elif now is not None and known is not None and now != known:
            how = f"{kind}/{key[:6]} changed from attempt {known.attempt} to {now.attempt}"
            self.break_("one artifact a key", how)
        elif now is not None and known is None:
            data = self.read(f"{data_name(now)}/{now.files[0].path}")
            if data is None and self._woke(process):  # gc came before its very request
                self.damaged.add(key)
            self._committed(now)
        elif now is not None and ("data" in rest or not rest):
            self._intact(now, process)
        elif what.startswith("remove") and self.on_record.was_found(process, key):
            self.break_(
                "artifacts do not vanish", f"{kind}/{key[:6]} was found, and does not return"
            )

    def _committed(self, manifest: Manifest) -> None:
        place = manifest.kind, manifest.key
        self.committed[place], self._since[place] = manifest, self.world.now
        self.commits += 1
        for after, act in self.on_first if self.commits == 1 else ():
            self.world.at(self.world.now + after, act)
        self._intact(manifest, None)
        if manifest.key in self.damaged:
            return
        before = self._digests.setdefault(place, manifest.digest)
        if before != manifest.digest:
            self.break_("same bytes", f"{manifest.kind}/{manifest.key[:6]} was made with others")
        right = made_of(manifest.kind, manifest.config, manifest.inputs).encode()
        if self.read(f"{data_name(manifest)}/result") != right:
            self.break_(
                "same bytes", f"{manifest.kind}/{manifest.key[:6]} skipped or repeated a step"
            )

    def _intact(self, manifest: Manifest, process: Process | None) -> None:
        for entry in manifest.files:
            data = self.read(f"{data_name(manifest)}/{entry.path}")
            if manifest.key in self.damaged:
                return
            if data is None or hashlib.sha256(data).hexdigest() != entry.sha256:
                who = f" by {process.name}" if process else ""
                what = "is gone" if data is None else "has other bytes"
                how = f"{entry.path} of {manifest.kind}/{manifest.key[:6]} {what}{who}"
                self.break_("artifacts do not change", how)

    def _gone(self, process: Process, kind: str, key: str) -> None:
        self.losses += 1
        self.on_record.gone[key] = self.world.now
        if key in self.damaged:
            self.damaged.remove(key)
            return
        if process.role == "flow" and key in self.forced:
            return
        if process.role == "operator":
            if self.champions.needed(key) < self.on_record.looked.get(process, 0.0):
                how = f"{process.name} removed the model of a champion, {kind}/{key[:6]}"
                self.break_("champions stay", how)
            if self.on_record.is_known(process, key):
                how = f"{kind}/{key[:6]} was removed, which a run on record needs"
                self.break_("artifacts do not vanish", how)
            self.on_record.aside[process, key] = self.on_record.as_of()
            return
        self.break_("artifacts do not vanish", f"{process.name} set {kind}/{key[:6]} aside")

    def spoil(self, name: str) -> None:
        """A record rots: of what it names nobody knows any more."""
        self.payments.lost(name)
        self.spoiled.add(name)
        self.on_record.spoil(name)
        self.champions.spoil()

    def record(self, process: Process, record: RunRecord) -> None:
        """A run has ended with this record: what it says that it made is there, none of its workers
        is, and it failed for a reason."""
        for child in self.world.processes:
            if child.parent is process and child.alive:
                self.break_("nothing runs after the end", f"{child.name} outlives {process.name}")
        for stage in record.stages:
            error, stopped = stage.error or "", record.status == "cancelled"
            if stage.exit_code == 2 and not self.refused:
                self.break_("no bad input", f"{process.name}: {short(error)[:300]}")
            spent = "no more are started" in error and self.payments.budget is not None
            twice = self.losses > 1 and "is missing or damaged" in error
            mine = [job for job in self._submitted if job.startswith(f"{stage.key}/")]
            gone = stopped and stage.key in self.on_record.gone  # it makes nothing again
            used_up = twice or gone or any(job.endswith("-3") for job in mine)
            if stage.status == "failed" and not (self.lenient or self.refused or spent or used_up):
                self.break_("no run fails for nothing", f"{process.name}: {short(error)[:300]}")
            if stage.status == "running":
                self.break_("records agree", f"{process.name} left {stage.name} running")
            made = stage.artifact
            there = made and self.committed.get((made.kind, made.key))
            if made and not there and not self.on_record.lost(record.run_id, made.key):
                self.break_("records agree", f"{process.name}: {stage.name} is not in the store")
            if made and there and there.digest != made.digest:
                self.break_("records agree", f"{process.name}: {stage.name} is another one")
        kept = self.read(f"runs/{record.run_id}/run.json")
        said = json.loads(kept)["status"] if kept and kept != b"{" else "nothing"
        dropped = kept is None and record.run_id in self.removed
        if said != record.status and not (self.lenient or dropped):
            self.break_("records agree", f"{process.name} {record.status}, its record: {said}")

    def sound(self, record: RunRecord) -> None:
        """What a run that nothing disturbed has ended with verifies."""
        self.damaged.clear()
        for stage in record.stages:
            made = stage.artifact
            if made is not None and (there := self.committed.get((made.kind, made.key))):
                self._intact(there, None)

    # Leases and jobs

    def _lease(self, process: Process, what: str, name: str) -> None:
        _, key, generation, _ = name.split("/")
        place, raw = (key, int(generation)), self.read(name)
        if what == "create lease":
            self._taken(process, place)
        elif what == "remove lease" or raw is None:
            self._holders.pop(place, None)
        elif (holder := self._holders.get(place)) is not None and holder.process is process:
            holder.beat, holder.released = self.world.now, json.loads(raw)["released"]

    def _taken(self, process: Process, place: tuple[str, int]) -> None:
        key, generation = place
        before = self._holders.get(place)
        if before is not None and before.process is not process:
            how = f"{before.process.name} and {process.name} both have generation {generation}"
            self.break_("one holder", f"{how} of {key[:6]}")
        mine = Holder(process, self.world.now, self.world.now)
        looked = -1.0 if self._woke(process) else self._asked.get(process, self.world.now)
        for (of, number), last in self._holders.items():
            if of != key or last is before or last.passed:
                continue
            if number > generation and process.disturbed >= last.since:
                mine.passed = True  # it stood still between system calls, and was passed meanwhile
                continue
            last.passed = number < generation
            if not last.released and last.process.alive:
                silent = self.world.now - last.beat
                # whose stage ended while the store was away could not say that it is released
                awake = last.process.disturbed < last.beat
                well = awake and last.beat > self.away_since and not self.lenient
                well |= awake and self.world.now - self.storm_until < 0.55 * self.seconds
                how = f"{process.name} took {key[:6]} from {last.process.name}"
                if last.process is process:
                    if not self.stormy:
                        self.break_("nobody waits for itself", how)
                elif last.beat < looked and (silent < 0.55 * self.seconds or well):
                    self.break_("one holder", f"{how}, heard of {silent:.1f} s ago")
        self._holders[place] = mine

    def _woke(self, process: Process) -> bool:
        """Whether it stood still between its last look and what it does now: who woke while the
        store was away could not look before it was asked again."""
        woke, until = process.disturbed, self.storm_until
        blind = 0 <= self.away_since <= woke < until
        return woke <= self.world.now < (until + LONGEST_DELAY if blind else woke) + 0.5

    def worker(self, process: Process, key: str, attempt: str, host: str) -> None:
        """A worker of an attempt starts."""
        if (key, attempt, host) in self._jobs:
            self.break_("one worker an attempt", f"{key[:6]}/{attempt} is started twice")
        self._jobs.add((key, attempt, host))
        self._floor[key, attempt] = self._kept.get(key, 0)
        self._not_done(key, attempt, process.name)

    def _not_done(self, key: str, attempt: str, who: str) -> None:
        """What was committed before the lease of an attempt was taken is not begun again."""
        holder = self._holders.get((key, int(attempt.partition("-")[0] or 0)))
        done = [at for (_, one), at in self._since.items() if one == key]
        if holder is not None and done and done[0] < holder.since:
            self.break_("done work is not done again", f"{who} begins {key[:6]}/{attempt}")

    def machine(self, process: Process, key: str, attempt: str, others: Sequence[str]) -> bool:
        """The cloud has accepted a request for a machine; `others` are there for the same key, to
        stay, though nobody alive follows them. Returns whether who asked stood still in it."""
        unaware = self._woke(process)
        if others and not unaware:
            how = f"{process.name} asked for one for {key[:6]} beside {', '.join(others)}"
            self.break_("one machine a stage", how)
        self._not_done(key, attempt, process.name)
        raw = self.read(host_status(key, attempt, 0))
        if raw and json.loads(raw)["state"] in FINAL and not (self.stormy or unaware):
            how = f"{process.name} asks for a machine for {key[:6]}/{attempt}, which has ended"
            self.break_("done work is not done again", how)
        return unaware

    def deleted(self, process: Process, key: str, attempt: str, number: int, working: bool) -> None:
        """The cloud has accepted the deletion of a machine. Whose run began after the last look at
        the lease, or while a flow stood still within the request, is unlucky: the cloud knows no
        leases. A flow may delete its own when another has a later one or it can read nothing."""
        generation = int(attempt.partition("-")[0])
        submitted = [name.split("/")[1] for name in self._submitted if name.startswith(key)]
        later = any(int(one.partition("-")[0]) > generation for one in submitted)
        if later and (own := self._holders.get((key, generation))) and own.process is process:
            return
        looked = self._asked.get(process, 1e9)
        at_once = self._woke(process) and 0 <= process.stopped - looked < 1.0
        before = looked if process.role == "operator" or at_once else 1e9
        live = [
            one.process.name
            for one in others(self._holders, key, process, generation)
            if one.since < before and self._is_well(one)
        ]
        blind = self.refused or not working
        if live and (process.role == "operator" or (process.role == "flow" and not blind)):
            self.break_(
                "what a run follows stays", f"{process.name} deletes machine {number} of {live[0]}"
            )

    def _is_well(self, one: Holder) -> bool:
        """Whether a holder's heart beats, or would if somebody let it."""
        beats = self.world.now - one.beat < 0.55 * self.seconds
        return beats or (one.process.disturbed < one.beat and not self.lenient)

    def is_left(self, key: str, process: Process) -> bool:
        """Whether a job of a key is left to another flow, though that one stand still."""
        return bool(others(self._holders, key, process))

    def step(self, key: str, attempt: str, step: int) -> None:
        """A worker begins a step."""
        first = (key, attempt) not in self._steps
        kept = min(self._kept.get(key, 0), self._floor.get((key, attempt), 0))
        if first and step < kept and not self.lagging:
            how = f"attempt {attempt} of {key[:6]} begins at step {step}"
            self.break_("no work is lost", f"{how}, though step {kept} was kept")
        self._steps[key, attempt] = step
        self._alone(key, attempt)

    def _alone(self, key: str, attempt: str) -> None:
        """A flow that another one has passed gives its job up: two work on a stage for a while
        only."""
        generation = int(attempt.partition("-")[0])
        mine = self._holders.get((key, generation))
        excused = self.stormy or self.refused or self.lenient or self.lagging or self.deaf
        if mine is None or not mine.process.alive or excused:
            return
        for (of, number), other in self._holders.items():
            began = self._submitted.get(f"{key}/{number}")
            if of == key and number > generation and other.process.alive and began is not None:
                both = self.world.now - max(began, mine.process.disturbed)
                if other.process is not mine.process and both > 2 * self.seconds:
                    how = f"attempts {attempt} and {number} of {key[:6]} for {both:.0f} s"
                    self.break_("one machine a stage", how)

    def fault_of(self, process: Process, allowed: tuple[type[BaseException], ...]) -> None:
        """No process ends with an exception that nobody expects."""
        for error in process.errors:
            if not isinstance(error, allowed):
                how = f"{process.name}: {type(error).__name__}: {short(str(error))[:300]}"
                self.break_("no unexpected error", how)
