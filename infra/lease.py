"""Leases: one live runner per stage key, so that two runs of one recipe do the work once.

A lease is a series of objects `work/<key>/<generation>/lease.json`; the highest generation counts. Taking a lease is creating the next
generation, of which exactly one racer succeeds; the holder replaces its own object again and again (the heartbeat) and marks it released
at the end. Create, replace and list are all that is needed, so the same code serves a directory and a bucket.

A lease is expired when its holder's heartbeat has not changed for the time to live *as measured by whoever waits*: clocks of two machines
are never compared. A holder on this machine whose process is gone is expired at once.

Leases only save work. A holder that was taken for dead and comes back does no harm: the commit is create-only (`infra.store`), so the
second to commit adopts what the first one committed. The generation names the attempt, so two runners never share a working directory.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from infra.store import Store, attempt_file
from schemas.base import InputError, Stopped, StrictModel

log = logging.getLogger("lyceum.lease")


class LeaseRecord(StrictModel):
    """`lease.json`.

    Attributes:
        owner: who holds it, for people.
        host, namespace, pid: the holder's process; the first two tell whether `pid` can be looked up from here.
        renewed: the last heartbeat, seconds since the epoch by the holder's clock; only ever compared with itself.
        released: the holder is done.
    """

    owner: str
    host: str
    namespace: str
    pid: int
    renewed: float
    released: bool = False

    def __str__(self) -> str:
        return f"{self.owner} (process {self.pid} on {self.host})"


@dataclass
class Lease:
    """A lease that is held. `lost` is set when somebody else has taken it over, which the heartbeat notices."""

    key: str
    generation: int
    lost: threading.Event = field(default_factory=threading.Event)

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

    Whoever had to wait should look for the artifact first: the holder before has most likely committed it.

    Args:
        store: where the lease lives.
        key: the stage key.
        owner: who holds it, for people, e.g. a run id.
        seconds: time to live; a holder renews every third of it.
        poll_seconds: time between two looks at somebody else's lease.
        waiting: receives one message for each holder that is waited for or taken over from.
        stop: ends the waiting when it is set.

    Raises:
        Stopped: `stop` was set while waiting.
    """
    lease = _acquire(store, key, owner, seconds, poll_seconds, waiting, stop or threading.Event())
    done = threading.Event()
    heart = threading.Thread(target=_beat, args=(store, lease, owner, seconds / 3, done), name=f"lease-{key[:8]}", daemon=True)
    heart.start()
    try:
        yield lease
    finally:
        done.set()
        heart.join()
        _write(store, lease, owner, released=True)


def _acquire(
    store: Store, key: str, owner: str, seconds: float, poll_seconds: float, waiting: Callable[[str], None], stop: threading.Event
) -> Lease:
    seen: tuple[int, LeaseRecord] | None = None
    since = 0.0
    while True:
        generation, record = _newest(store, key)
        if record is not None and (generation, record) != seen:
            if seen is None or seen[0] != generation:
                waiting(f"{record} is running this stage; waiting for it")
            seen, since = (generation, record), time.monotonic()
        if record is None or _is_gone(record) or time.monotonic() - since > seconds:
            if record is not None:
                waiting(f"{record} is gone; taking over")
            if store.create_json(_name(key, generation + 1), _record(owner)):
                return Lease(key, generation + 1)
        elif stop.wait(poll_seconds):
            raise Stopped(f"stopped while waiting for {record}")


def _newest(store: Store, key: str) -> tuple[int, LeaseRecord | None]:
    """The highest generation (0: there was none) and its record; None when it is released, or so damaged that its holder must be dead.

    A directory without a record is a generation that somebody is just creating: it does not count yet.
    """
    for generation in sorted((int(name) for name in store.children(f"work/{key}") if name.isdecimal()), reverse=True):
        try:
            record = store.read_json(_name(key, generation), LeaseRecord)
        except InputError:
            return generation, None
        if record is not None:
            return generation, None if record.released else record
    return 0, None


def _beat(store: Store, lease: Lease, owner: str, interval: float, done: threading.Event) -> None:
    while not done.wait(interval) and not lease.lost.is_set():
        _write(store, lease, owner)


def _write(store: Store, lease: Lease, owner: str, released: bool = False) -> None:
    """Renew or release. A store that fails for a moment does not end the lease, and a lost lease does not end the work: log and go on."""
    try:
        newest, _ = _newest(store, lease.key)
        if newest > lease.generation:
            if not lease.lost.is_set():
                log.warning("the lease of %s was taken over while this process was not heard of; the first to commit wins", lease.key)
            lease.lost.set()
            return
        store.write_json(_name(lease.key, lease.generation), _record(owner, released))
    except (OSError, InputError) as error:
        log.warning("the lease of %s could not be renewed: %s", lease.key, error)


def _record(owner: str, released: bool = False) -> LeaseRecord:
    return LeaseRecord(
        owner=owner, host=socket.gethostname(), namespace=_namespace(), pid=os.getpid(), renewed=time.time(), released=released
    )


def _name(key: str, generation: int) -> str:
    return attempt_file(key, str(generation), "lease.json")


def _namespace() -> str:
    """On Linux the id of the process namespace: two containers may share a host name, but not their process ids."""
    link = Path("/proc/self/ns/pid")
    return os.readlink(link) if link.is_symlink() else ""


def _is_gone(record: LeaseRecord) -> bool:
    if (record.host, record.namespace) != (socket.gethostname(), _namespace()):
        return False
    try:
        os.kill(record.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # alive, and another user's
        return False
    return False
