"""Prefect as a view: a run tells Prefect what happens, and nothing in the run waits for Prefect's
answer.

Prefect's engine asks its API before and after a flow and, for tags and leases, also meanwhile; its
defaults wait minutes for an API that is away, and end the run with an exception. Here

- the engine's own client is a `ViewClient`: requests are bounded in time, and how a run ended is
  the run's own word, whether the API could be told or not;
- logs and the states of tasks go through an `Outbox`, which keeps them while the API is away.

An API that is lost before the flow has begun ends the run: there is nothing yet that could go on.
"""

import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice, takewhile
from typing import Any, Literal, TypeVar
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import OrchestrationResult, SetStateStatus, StateAcceptDetails
from prefect.context import SyncClientContext
from prefect.events.related import RESOURCE_CACHE
from prefect.events.worker import EventsWorker, ProcessPoolForwardingEventsClient
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.logging.handlers import set_api_log_sink
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_KEY,
    PREFECT_API_REQUEST_TIMEOUT,
    PREFECT_CLIENT_MAX_RETRIES,
    temporary_settings,
)
from prefect.states import State
from prefect.types import DateTime

from flows.server.api_link import ApiLink
from flows.server.prefect_api import answers
from schemas.base import StageFailed, Stopped

ANSWER_SECONDS = 10.0
"""A request may take so long. One that does not answer is made again if the API's health
answers."""

BUSY_SECONDS = 30.0
"""An API that says it is busy (its database is locked) is asked again for so long."""

BUSY = (408, 429, 502, 503)
"""The codes by which it says so."""

SEND_SECONDS = 1.0
"""The outbox sends at most so often."""

MOST_KEPT = 20_000
"""Records that the outbox keeps while the API is away; what comes after them is lost."""

BATCH = 200
"""Records a request at most. So many events are sent again after a loss: a server keeps them in
memory before it stores them, for long where the machine is busy, and knows each by its id."""

T = TypeVar("T")
Record = tuple[Literal["/logs/", "/events"], Any]
"""The place where something is recorded, and what."""


class ViewClient(SyncPrefectClient):
    """Prefect's client, for an API that may be away."""

    def __init__(self, link: ApiLink) -> None:
        super().__init__(
            link.url, auth_string=PREFECT_API_AUTH_STRING.value(), api_key=PREFECT_API_KEY.value()
        )
        self._link = link

    def request(self, *arguments: Any, **named: Any) -> httpx.Response:
        """Ask the API. Raises httpx.TransportError, at once while the API is known to be away."""
        repeated, send = False, super().request
        while True:
            if not self._link.up:
                raise _away(self._link)
            try:
                return unless_busy(lambda: send(*arguments, **named))
            except httpx.TransportError as error:
                if repeated or not answers(self._link.url):
                    self._link.lost()
                    raise _away(self._link) from error
                repeated = True

    def api_healthcheck(self) -> Exception | None:
        """Wait a moment for an API that is away; returns an error when it stays away."""
        return None if self._link.wait() else _away(self._link)

    def api_version(self) -> str:
        return str(self._patiently(lambda: self.request("GET", "/admin/version").json()))

    def create_flow_run(self, *arguments: Any, **named: Any) -> FlowRun:
        run = super().create_flow_run
        return self._patiently(lambda: run(*arguments, **named))

    def read_flow_run(self, flow_run_id: UUID) -> FlowRun:
        read = super().read_flow_run
        run = self._patiently(lambda: read(flow_run_id))
        self._learn_related(run)
        return run

    def update_flow_run(self, *arguments: Any, **named: Any) -> httpx.Response:
        update = super().update_flow_run
        return self._patiently(lambda: update(*arguments, **named))

    def set_flow_run_state(
        self, flow_run_id: UUID | str, state: State[T], force: bool = False
    ) -> OrchestrationResult[T]:
        """Record a state. That a run has ended is so, whether or not the API takes it down, and
        whatever somebody clicked meanwhile in the UI."""
        record = super().set_flow_run_state
        try:
            result = self._patiently(lambda: record(flow_run_id, state, force))
        except (httpx.HTTPError, ObjectNotFound):
            if not (state.is_final() or state.is_cancelling()):
                raise
            return OrchestrationResult(
                state=state, status=SetStateStatus.ACCEPT, details=StateAcceptDetails()
            )
        if state.is_running():
            self._link.begun()
        if state.is_final() and result.status == SetStateStatus.REJECT and _clicked(result.state):
            return self._patiently(lambda: record(flow_run_id, state, force=True))
        return result

    def renew_concurrency_lease(self, lease_id: UUID, lease_duration: float) -> httpx.Response:
        """Renew the slot of a deployment. The engine kills a run that cannot; ours goes on without
        the slot."""
        try:
            return super().renew_concurrency_lease(lease_id, lease_duration)
        except httpx.HTTPError:
            return httpx.Response(204)

    def _learn_related(self, run: FlowRun) -> None:
        """Read, while the API answers, what Prefect attaches to each event of a run. Later its
        worker would ask for that, and drop the events when it got no answer."""
        related: list[tuple[str, Callable[[Any], Any], UUID | str | None]] = [
            ("flow", self.read_flow, run.flow_id),
            ("deployment", self.read_deployment, run.deployment_id),
            ("work-queue", self.read_work_queue, run.work_queue_id),
            ("work-pool", self.read_work_pool, run.work_pool_name),
        ]
        for kind, read, name in related:
            if name is not None and f"{kind}.{name}" not in RESOURCE_CACHE:
                found = None
                with suppress(httpx.HTTPError, PrefectException):
                    found = read(name)
                RESOURCE_CACHE[f"{kind}.{name}"] = ({"kind": kind, "object": found}, DateTime.now())

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask again whenever the API is back; raises the API's error when it is not waited for any
        more."""
        while True:
            try:
                return ask()
            except httpx.TransportError:
                if not self._link.wait():
                    raise


def _clicked(kept: State[Any] | None) -> bool:
    """Whether the API keeps this state, in place of how the run ended, because of *Pause* or
    *Cancel*: of a run that no worker started nobody else hears of them."""
    return kept is not None and (
        kept.is_paused() or kept.is_cancelling() or "never resumed" in (kept.message or "")
    )


def _away(link: ApiLink) -> httpx.ConnectError:
    return httpx.ConnectError(f"the Prefect API at {link.url} does not answer")


def unless_busy(ask: Callable[[], T]) -> T:
    """Return what `ask` returns, and ask again for a while where the server is busy, or wants its
    new CSRF token. Raises what `ask` raises then."""
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return ask()
        except httpx.HTTPStatusError as error:
            answer = error.response
            stale = answer.status_code == 403 and "Invalid CSRF token" in answer.text
            if not (stale or answer.status_code in BUSY) or time.monotonic() > until:
                raise
            time.sleep(1)


class Outbox:
    """Sends logs and events to the API in the order in which they happened, from a thread of its
    own.

    Attributes:
        dropped: how many records the API refused, or were too many to keep.
    """

    def __init__(self, link: ApiLink) -> None:
        self.dropped = 0
        self._link = link
        self._queue: deque[Record] = deque()
        self._sent: deque[Any] = deque(maxlen=BATCH)  # the newest events, the oldest first
        self._unsure: list[Any] = []  # events that were sent before a loss
        self._alone = 0  # so many records at the head go one by one: some of them were refused
        self._lock, self._closing = threading.Lock(), threading.Event()
        context = contextvars.copy_context()  # Prefect's settings are in it
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name="prefect-outbox", daemon=True
        )
        self._thread.start()

    def log(self, log: dict[str, Any]) -> None:
        """Take one line of log, as Prefect's log handler makes it."""
        log.pop("__payload_size__", None)
        self._add(("/logs/", log))

    def put(self, item: tuple[str, Any]) -> None:
        """Take one event, as Prefect's `ProcessPoolForwardingEventsClient` puts it."""
        self._add(("/events", item[1].model_dump(mode="json")))

    def close(self) -> int:
        """Send what is left, if the API answers; returns how many records are lost."""
        self._closing.set()
        self._thread.join(timeout=3 * ANSWER_SECONDS)
        return self.dropped + len(self._queue)

    def _add(self, record: Record) -> None:
        with self._lock:
            if len(self._queue) < MOST_KEPT:
                self._queue.append(record)
            else:
                self.dropped += 1

    def _run(self) -> None:
        with ViewClient(self._link) as client:
            closing = False
            while not closing:
                closing = self._closing.wait(SEND_SECONDS)
                while self._queue and self._link.up:
                    self._send(client)

    def _send(self, client: SyncPrefectClient) -> None:
        """Send the records at the head of the queue that go to the same place."""
        with self._lock:
            path = self._queue[0][0]
            most = 1 if self._alone else BATCH
            batch = list(takewhile(lambda one: one[0] == path, islice(self._queue, most)))
        records = [record for _, record in batch]
        try:
            if self._unsure:
                client.request("POST", "/events", json=self._unsure)
                self._sent.extend(self._unsure)  # another loss may follow
                self._unsure = []
            client.request("POST", path, json=records)
        except httpx.TransportError:
            self._unsure += self._sent
            self._sent.clear()
            return
        except httpx.HTTPStatusError:
            if self._unsure:  # they were refused, and what comes after them was not sent yet
                self._unsure = []
                return
            if len(batch) > 1:
                self._alone = len(batch)
                return
            self.dropped += 1
        self._alone = max(0, self._alone - len(batch))
        with self._lock:
            for _ in batch:
                self._queue.popleft()
        if path == "/events":
            self._sent.extend(records)


@contextmanager
def prefect_view(
    url: str,
    say: Callable[[str], None],
    stop: threading.Event,
    *,
    start_seconds: float,
    end_seconds: float,
) -> Iterator[None]:
    """Make Prefect a view of what runs inside, in this thread and in those that flows start.

    Args:
        say: is told what a person should know, a line each.
        stop: when set, nothing waits for the API any more.
        start_seconds: how long after its loss a flow that has not begun waits for the API.
        end_seconds: the same for a flow that ends, so that how it ended is recorded.

    Raises:
        StageFailed: the API does not answer, or is not of a version that this client speaks to.
        Stopped: `stop` was set while it did not answer.
    """
    link = ApiLink(url, say, stop, start_seconds=start_seconds, end_seconds=end_seconds)
    bounds = {PREFECT_CLIENT_MAX_RETRIES: 0, PREFECT_API_REQUEST_TIMEOUT: ANSWER_SECONDS}
    with temporary_settings(bounds):
        context = SyncClientContext()
        context.client = ViewClient(link)
        try:
            context.__enter__()  # asks for the server's version
        except RuntimeError as error:
            link.close()
            raise (
                Stopped
                if stop.is_set()
                else StageFailed(f"{error.__cause__ or error}, so the run could not begin")
            ) from error
        outbox = Outbox(link)
        set_api_log_sink(outbox.log)
        EventsWorker.set_client_override(ProcessPoolForwardingEventsClient, event_queue=outbox)
        try:
            yield
        finally:
            EventsWorker.drain_all(timeout=ANSWER_SECONDS)  # into the outbox
            EventsWorker.set_client_override(None)
            set_api_log_sink(None)
            lost = outbox.close()
            link.close()
            context.__exit__(None, None, None)
            if lost:
                say(
                    f"{lost} records (log, task states) did not reach the Prefect server; the run's"
                    " record in the store is whole."
                )
