"""Leases: one live runner per stage key, so that two runs of one recipe do the work once.

A lease is a series of objects `work/<key>/<generation>/lease.json`; the highest generation counts.
Taking a lease is creating the next generation, of which exactly one racer succeeds; the holder
replaces its own object again and again (the heartbeat) and marks it released at the end. Create,
replace and list are all that is needed, so the same code serves a directory and a bucket. A listing
that lags behind does no harm: generations above the listed ones are looked for by name, and a
generation that exists cannot be created.

A lease is expired when its holder's heartbeat has not changed for the time to live *as measured by
whoever waits*: clocks of two machines are never compared, and time in which the store did not
answer does not count, because it may not have answered the holder either. A holder on this machine
whose process is gone is expired at once.

Leases only save work. A holder that was taken for dead and comes back does no harm: the commit is
create-only (`infra.store.store`), so the second to commit adopts what the first one committed. The
generation names the attempt, so two runners never share a working directory.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from infra.process_identity import is_gone, this_process
from infra.silence import Silence
from infra.store.store import Store, attempt_file
from schemas.base import InputError, Stopped
from schemas.reports import Process

log = logging.getLogger("lyceum.lease")

_LOOKS = 8
"""Leases that `unheld` looks at side by side."""


class LeaseRecord(Process):
    """`lease.json`; the process is the holder's.

    Attributes:
        owner: who holds it, for people.
        nonce: random; no two leases have the same bytes, so a holder whose create was never
            acknowledged can tell that it won.
        beats: heartbeats so far.
        renewed: the last heartbeat, seconds since the epoch by the holder's clock; for people only.
        released: the holder is done.
    """

    owner: str
    nonce: str
    beats: int = 0
    renewed: float
    released: bool = False

    def __str__(self) -> str:
        return f"{self.owner} (process {self.pid} on {self.host})"


@dataclass
class Lease:
    """A lease that is held. `lost` is set when somebody else has taken it over, which the heartbeat
    notices."""

    key: str
    generation: int
    record: LeaseRecord
    lost: threading.Event = field(default_factory=threading.Event)
    unheard_since: float | None = None

    @property
    def attempt(self) -> str:
        """The attempt that this generation of the lease is for: `work/<key>/<attempt>/`."""
        return str(self.generation)


@contextmanager
def hold(
    store: Store,
    key: str,
    owner: str,
    *,
    seconds: float,
    poll_seconds: float,
    waiting: Callable[[str], None] = log.info,
    stop: threading.Event | None = None,
) -> Iterator[Lease]:
    """Hold the lease of a stage key, waiting for as long as somebody else does.

    Whoever had to wait should look for the artifact first: the holder before has most likely
    committed it.

    Args:
        owner: who holds it, for people, e.g. a run id.
        seconds: time to live; a holder renews every third of it.
        poll_seconds: time between two looks at somebody else's lease.
        waiting: receives one message for each holder that is waited for or taken over from.
        stop: ends the waiting when it is set.

    Raises:
        Stopped: `stop` was set while waiting.
    """
    lease = _acquire(store, key, owner, seconds, poll_seconds, waiting, stop or threading.Event())
    try:
        with _beating(store, lease, seconds / 3):
            yield lease
    finally:
        if not lease.lost.is_set():
            _renew(store, lease, seconds / 3, released=True)


def attempt_numbers(attempt: str) -> tuple[int, ...]:
    """The generation of the lease that an attempt was made under and, of a job that was submitted
    again, how often: `3-1` as (3, 1). A name that is no attempt's has none."""
    parts = attempt.split("-")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else ()


def attempts(store: Store, key: str) -> list[str]:
    """The attempts of a key, the newest first: those that are listed, and those that a listing
    that lags may lack, one for each generation of the lease and those of jobs that were submitted
    again. Not all of them need to be there."""
    names = set(store.children(f"work/{key}"))
    newest = max((int(name) for name in names if name.isdecimal()), default=0)
    while store.read_bytes(_name(key, newest + 1)) is not None:
        newest += 1
    for generation in range(1, newest + 1):
        names.add(str(generation))
        again = 1
        while (name := f"{generation}-{again}") in names or is_submitted(store, key, name):
            names.add(name)
            again += 1
    return sorted(names, key=attempt_numbers, reverse=True)


def is_submitted(store: Store, key: str, attempt: str) -> bool:
    """Whether the job of an attempt is on record."""
    return store.read_bytes(attempt_file(key, attempt, "job.json")) is not None


def later(attempts: Iterable[str], generation: int) -> list[str]:
    """Those of the attempts that were made under a later generation of the lease."""
    return [name for name in attempts if attempt_numbers(name)[:1] > (generation,)]


def unheld(
    store: Store,
    keys: Mapping[str, int],
    *,
    seconds: float,
    poll_seconds: float,
    waiting: Callable[[str], None] = log.info,
) -> dict[str, int]:
    """Those of `keys` whose lease nobody alive holds, and the newest generation of each (0: there
    was none).

    All leases are watched at once, for the time to live, and only if one of them may be held; again
    when the store did not answer meanwhile, or could not be asked because this process stood still.
    One that changes is held.

    Args:
        keys: stage key -> the newest generation of its lease, as a listing has just told it, or 0:
            it is looked for.
        waiting: receives one message when there is something to wait for.
    """

    def look(key: str) -> tuple[int, LeaseRecord | None]:
        return (keys[key], _read(store, key, keys[key])) if keys[key] else _newest(store, key)

    with ThreadPoolExecutor(_LOOKS) as pool:
        looks = dict(zip(keys, pool.map(look, keys), strict=True))
    began = time.monotonic()
    free = {
        key: generation
        for key, (generation, record) in looks.items()
        if record is None or is_gone(record)
    }
    silent = {key: look for key, look in looks.items() if key not in free}
    if silent:
        waiting(
            f"{len(silent)} leases may be held; watching for up to {seconds:g} s whether they are"
            " renewed"
        )
    over, nap, answered = False, min(poll_seconds, seconds), began
    while silent and not over:
        time.sleep(nap)
        over = time.monotonic() - began > seconds
        for key, seen in list(silent.items()):
            if _newest(store, key, seen[0]) != seen:
                del silent[key]
            before, answered = answered, time.monotonic()
            if answered - before > nap + seconds / 3:
                began, over = answered, False  # the store may have been away, for holders too
    return free | {key: generation for key, (generation, _) in silent.items()}


def taken_over(store: Store, lease: Lease, seconds: float) -> bool:
    """Whether somebody else who lives holds the lease's key now, by what the store says within so
    many seconds; False when it does not answer."""
    found = threading.Event()

    def look() -> None:
        with suppress(OSError, InputError):
            _, record = _newest(store, lease.key)
            if record is not None and record.nonce != lease.record.nonce and not is_gone(record):
                found.set()

    looking = threading.Thread(target=look, name=f"look-{lease.key[:8]}", daemon=True)
    looking.start()
    looking.join(seconds)
    return found.is_set()


@contextmanager
def seize(
    store: Store, key: str, generation: int, owner: str, *, seconds: float
) -> Iterator[Callable[[], bool]]:
    """Take the lease of a key that `unheld` found at this generation, without waiting, and leave no
    trace of it: it is removed, not released, with directories that are empty without it.

    What it gives looks whether the lease is held: somebody else may have been faster, or have taken
    over from a process that stood still. Ask before each thing that cannot be taken back.
    """
    lease = Lease(key, generation + 1, _record(owner))
    if not _taken(store, lease):
        yield lambda: False
        return
    try:
        with _beating(store, lease, seconds / 3):
            yield lambda: _is_ours(store, lease)
    finally:
        if _is_ours(store, lease):
            _erase(store, lease)


def _acquire(
    store: Store,
    key: str,
    owner: str,
    seconds: float,
    poll_seconds: float,
    waiting: Callable[[str], None],
    stop: threading.Event,
) -> Lease:
    silence = Silence(max(seconds / 3, 3 * poll_seconds))
    generation, told = 0, 0
    while True:
        generation, record = _newest(store, key, generation)
        silent = silence.of((generation, record))
        if record is None or is_gone(record) or silent > seconds:
            if record is not None:
                waiting(f"{record} is gone; taking over")
            lease = Lease(key, generation + 1, _record(owner))
            if _taken(store, lease):
                return lease
        elif told != generation:
            waiting(f"{record} is running this stage; waiting for it")
            told = generation
        if stop.wait(poll_seconds):
            raise Stopped(f"stopped while waiting for {record or 'another run'}")


def _taken(store: Store, lease: Lease) -> bool:
    """Create a lease; False when somebody else was faster, or the generation that it follows is
    gone: `lyceum gc` has removed what belongs to the key, and generations may have begun anew."""
    name = _name(lease.key, lease.generation)
    if not store.create_json(name, lease.record):
        return False
    before = lease.generation - 1
    if not before or store.read_bytes(_name(lease.key, before)) is not None:
        return True
    if store.children(f"work/{lease.key}/{before}"):
        return True  # a process was killed while it removed the attempt
    _erase(store, lease)
    return False


def _is_ours(store: Store, lease: Lease) -> bool:
    """Whether a lease is held by what the store says: this process' clock may have stood still."""
    record, following = _read(store, lease.key, lease.generation), lease.generation + 1
    if record is None or record.nonce != lease.record.nonce:
        return False
    return store.read_bytes(_name(lease.key, following)) is None


def _erase(store: Store, lease: Lease) -> None:
    """Remove a lease, and directories that are empty without it."""
    store.remove(_name(lease.key, lease.generation))
    with suppress(OSError):  # not empty, or no directories at all
        store.path(f"work/{lease.key}/{lease.attempt}").rmdir()
        store.path(f"work/{lease.key}").rmdir()


def _newest(store: Store, key: str, known: int = 0) -> tuple[int, LeaseRecord | None]:
    """The highest generation (0: there was none) and its record; None when it is released, or so
    damaged that its holder must be dead.

    Args:
        known: a generation that existed; as long as it does nothing is listed, and only those above
            it are looked for. Whoever seized it removes it, and generations may begin anew.
    """
    generation = known or _listed(store, key)
    while store.read_bytes(_name(key, generation + 1)) is not None:
        generation += 1
    raw = store.read_bytes(_name(key, generation)) if generation else None
    if known and raw is None:
        return _newest(store, key)
    return generation, _parsed(store, key, generation, raw)


def _read(store: Store, key: str, generation: int) -> LeaseRecord | None:
    return _parsed(store, key, generation, store.read_bytes(_name(key, generation)))


def _parsed(store: Store, key: str, generation: int, raw: bytes | None) -> LeaseRecord | None:
    try:
        record = store.parsed(_name(key, generation), raw, LeaseRecord)
    except InputError:
        return None
    return None if record is None or record.released else record


def _listed(store: Store, key: str) -> int:
    """The highest generation in the listing. An empty directory is a generation that somebody is
    just creating: it does not count yet."""
    generations = sorted(
        (int(name) for name in store.children(f"work/{key}") if name.isdecimal()), reverse=True
    )
    return next((one for one in generations if store.children(f"work/{key}/{one}")), 0)


@contextmanager
def _beating(store: Store, lease: Lease, interval: float) -> Iterator[None]:
    """Renew the lease every `interval` seconds while inside."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(interval) and not lease.lost.is_set():
            _renew(store, lease, interval)

    heart = threading.Thread(target=beat, name=f"lease-{lease.key[:8]}", daemon=True)
    heart.start()
    try:
        yield
    finally:
        done.set()
        heart.join(2 * interval)  # a store that does not answer delays the end no longer


def _renew(store: Store, lease: Lease, seconds: float, released: bool = False) -> None:
    """Renew or release, and notice whether somebody has taken the lease over.

    A store that fails does not end the lease, and a lost lease does not end the work: log and go
    on. Ask no longer than `seconds`: whoever asks on through an outage may sleep beyond its end.
    """
    changes = {"beats": lease.record.beats + 1, "renewed": time.time(), "released": released}
    lease.record = lease.record.model_copy(update=changes)
    try:
        store.write_json(_name(lease.key, lease.generation), lease.record, seconds)
        taken = store.read_bytes(_name(lease.key, lease.generation + 1), seconds) is not None
    except (OSError, InputError) as error:
        if lease.unheard_since is None:
            lease.unheard_since = time.monotonic()
            log.warning(
                "the lease of %s cannot be renewed; the work goes on and it is tried again: %s",
                lease.key,
                error,
            )
        return
    if taken:
        lease.lost.set()
        log.warning(
            "the lease of %s was taken over while this process was not heard of; the first to"
            " commit wins",
            lease.key,
        )
    elif lease.unheard_since is not None:
        away = time.monotonic() - lease.unheard_since
        log.info("the lease of %s is renewed again after %.0f s", lease.key, away)
    lease.unheard_since = None


def _record(owner: str) -> LeaseRecord:
    return LeaseRecord(
        **this_process().model_dump(), owner=owner, nonce=secrets.token_hex(8), renewed=time.time()
    )


def _name(key: str, generation: int) -> str:
    return attempt_file(key, str(generation), "lease.json")
