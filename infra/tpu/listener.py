"""What the VMs of a job say in the store, read by a thread of its own: an outage of the store holds
up nobody else.

See `infra.store.remote` for what there is to read.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice

from infra.backend import FINAL, JobHandle
from infra.secrets import mask
from infra.store.remote import host_status, read_log
from infra.store.store import Store
from infra.tpu.machine import Host
from schemas.base import InputError
from schemas.job import JobStatus

log = logging.getLogger("lyceum.tpu")

LISTEN_SECONDS = 1.0
"""Time between two looks while VMs are there; without, it is that between two looks at the API."""
HOSTS_AT_ONCE = 4
"""So many hosts beside host 0 are looked at in one look, by turns."""


class _Heard:
    """A host's last status, and how long it has not changed.

    Time in which the store did not answer does not count: the host could not say anything either.
    """

    def __init__(self) -> None:
        self.status: JobStatus | None = None
        self._changed = self._looked = time.monotonic()

    def hear(self, status: JobStatus | None, most_seconds: float) -> None:
        """A look has found this; two looks are at most so far apart, unless the store did not
        answer."""
        now = time.monotonic()
        if (status is not None and status != self.status) or now - self._looked > most_seconds:
            self._changed = now
        self.status, self._looked = status or self.status, now

    def host(self) -> Host:
        return Host(self.status, self._looked - self._changed)


class Listener:
    """Listens from `start` until `stop`, after which it looks once more. Whoever asks is answered
    at once.

    Args:
        hosts: how many there are.
        seconds: time between two looks as long as no VM is there.
        attentive: whether VMs are there.
        on_news: is called when there is a final status, or the store cannot be read.

    Attributes:
        trouble: why the store cannot be read, if a person must put it right.
    """

    def __init__(
        self,
        store: Store,
        handle: JobHandle,
        hosts: int,
        seconds: float,
        attentive: Callable[[], bool],
        on_news: Callable[[], None],
    ) -> None:
        self.trouble: InputError | None = None
        self._store, self._handle, self._attentive = store, handle, attentive
        self._seconds, self._on_news = seconds, on_news
        self._heard = [_Heard() for _ in range(hosts)]
        self._chunks: list[tuple[int, int, str]] = []
        self._wake, self._looked = threading.Event(), threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._listen, name=f"tpu-listener-{handle.key[:8]}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """The job has ended: what is there now is all."""
        self._stopped.set()
        self._wake.set()

    def hosts(self) -> list[Host]:
        """What is known of each host."""
        return [heard.host() for heard in self._heard]

    def log(self, offset: int) -> tuple[str, int]:
        """See JobBackend.log."""
        chunks = [chunk for chunk in list(self._chunks) if chunk[0] >= offset]
        return "".join(text for _, _, text in chunks), chunks[-1][1] if chunks else offset

    def look(self, seconds: float) -> None:
        """Look now. Returns after the look, or after so many seconds."""
        self._looked.clear()
        self._wake.set()
        self._looked.wait(seconds)

    def _listen(self) -> None:
        others = len(self._heard) - 1
        turns, handle = cycle(range(1, others + 1)), self._handle
        most = 5 * max(LISTEN_SECONDS, self._seconds) * (1 + others / HOSTS_AT_ONCE)
        while True:
            ended = self._stopped.is_set()
            try:
                self._hear([0, *islice(turns, min(HOSTS_AT_ONCE, others))], ended, most)
            except OSError as error:
                what = f"what the VMs of {handle.key}/{handle.attempt} say"
                log.warning("%s cannot be read: %s", what, error)
            except InputError as error:
                self.trouble = error
                self._on_news()
            self._looked.set()
            if ended:
                return
            often = min(LISTEN_SECONDS, self._seconds)
            self._wake.wait(often if self._attentive() else self._seconds)
            self._wake.clear()

    def _hear(self, hosts: Sequence[int], ended: bool, most_seconds: float) -> None:
        """One look at what hosts say, and at the log, which is complete before a final status is
        known."""
        key, attempt = self._handle.key, self._handle.attempt
        found = {
            host: self._store.read_json(host_status(key, attempt, host), JobStatus)
            for host in hosts
        }
        final = ended or any(
            status is not None and status.state in FINAL for status in found.values()
        )
        end = self._chunks[-1][1] if self._chunks else 0
        text, offset = read_log(self._store, key, attempt, end, final)
        if offset > end:
            self._chunks.append((end, offset, mask(text)))
        for host, status in found.items():
            self._heard[host].hear(status, most_seconds)
        if final:
            self._on_news()
