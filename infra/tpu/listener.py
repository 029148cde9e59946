"""Reads the reports of a job's VMs from the store in a thread of its own, so that an outage of the
store delays nobody else.

`infra.store.remote` lists the files.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import cycle, islice

from infra.backend import FINAL, JobHandle
from infra.secrets import mask
from infra.silence import Silence
from infra.store.remote import host_status, read_log
from infra.store.store import Store
from infra.tpu.state_machine import Host
from schemas.base import InputError
from schemas.job import JobStatus

log = logging.getLogger("lyceum.tpu")

LISTEN_SECONDS = 1.0
"""Seconds between two looks while VMs exist; without VMs it looks as often as at the API."""
HOSTS_AT_ONCE = 4
"""Hosts beside host 0 to read in one look, in turns."""


class Listener:
    """Listens from `start` until `stop`, after which it looks once more. Its answers come at once.

    Args:
        hosts: the number of hosts.
        seconds: time between two looks as long as no VM is there.
        attentive: whether VMs are there.
        on_news: called for a final status, or when the store cannot be read.

    Attributes:
        trouble: why the store cannot be read, if a person must fix it.
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
        self._heard, self._most = time.monotonic(), 5 * max(LISTEN_SECONDS, seconds)
        self._silences = [Silence() for _ in range(hosts)]
        self._hosts = [Host() for _ in range(hosts)]
        self._turns = cycle(range(1, hosts))
        self._chunks: list[tuple[int, int, str]] = []
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._asked: deque[threading.Event] = deque()
        self._thread = threading.Thread(
            target=self._listen, name=f"tpu-listener-{handle.key[:8]}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop after a last look, because the job has ended."""
        self._stopped.set()
        self._wake.set()

    def hosts(self) -> list[Host]:
        """The last status of each host."""
        return list(self._hosts)

    def log(self, offset: int) -> tuple[str, int]:
        chunks = [chunk for chunk in list(self._chunks) if chunk[0] >= offset]
        return "".join(text for _, _, text in chunks), chunks[-1][1] if chunks else offset

    def look(self, seconds: float) -> bool:
        """Look now. Returns whether the store has answered within so many seconds: a look that
        began after this call, since this process may have stood still within one."""
        answered = threading.Event()
        self._asked.append(answered)
        self._wake.set()
        return answered.wait(seconds)

    def _listen(self) -> None:
        while True:
            ended = self._stopped.is_set()
            asked = len(self._asked)
            try:
                self._hear(ended)
                for _ in range(asked):
                    self._asked.popleft().set()
            except OSError as error:
                what = f"what the VMs of {self._handle.key}/{self._handle.attempt} say"
                log.warning("%s cannot be read: %s", what, error)
            except InputError as error:
                self.trouble = error
                self._on_news()
            if ended:
                return
            often = min(LISTEN_SECONDS, self._seconds)
            self._wake.wait(often if self._attentive() else self._seconds)
            self._wake.clear()

    def _hear(self, ended: bool) -> None:
        """Read the statuses of host 0 and of the next others, and the log, which is complete before
        a final status is reported."""
        key, attempt = self._handle.key, self._handle.attempt
        hosts = [0, *islice(self._turns, min(HOSTS_AT_ONCE, len(self._hosts) - 1))]
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
        now = time.monotonic()
        if now - self._heard > self._most:  # the store was away: no host could be heard
            self._silences = [Silence() for _ in self._hosts]
        self._heard = now
        for host, status in found.items():
            last = status or self._hosts[host].status
            self._hosts[host] = Host(last, self._silences[host].of(last))
        if final:
            self._on_news()
