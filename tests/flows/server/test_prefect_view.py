"""Prefect as a view: what a client of ours does while the API is cut off or hangs, and what it
sends when it is back."""

import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import httpx
import pytest
from prefect import settings
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.responses import (
    OrchestrationResult,
    SetStateStatus,
    StateAcceptDetails,
    StateRejectDetails,
)
from prefect.events import Event
from prefect.states import AwaitingRetry, Cancelling, Completed, Failed, Paused, Running

from flows.server import prefect_view
from flows.server.api_link import ApiLink
from flows.server.prefect_view import Outbox, ViewClient
from tests.fakes.gate import Gate
from tests.fakes.http import Handler, HttpServer
from tests.fakes.process import until

LOST, BACK = "does not answer", "answers again"


class Api(HttpServer):
    """Answers every request as a Prefect API does that takes everything; `got` are the posted
    records by path; those in which `refused` stands are refused."""

    def __init__(self) -> None:
        self.got: list[tuple[str, Any]] = []
        self.status, self.refused = 201, ""
        super().__init__(_Handler)
        self.url += "/api"


class _Handler(Handler):
    server: Api

    def do_GET(self) -> None:
        self.answer(404 if "csrf" in self.path else 200, {})

    def do_POST(self) -> None:
        records, refused = self.body(), self.server.refused
        status = 422 if refused and refused in str(records) else self.server.status
        if status == 201:
            self.server.got += [(self.path, one) for one in records]
        self.answer(status, {})


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """Settings are as `prefect_view` makes them, with three seconds for a request, and an outbox
    that sends at once."""
    monkeypatch.setattr(prefect_view, "ANSWER_SECONDS", 3.0)
    monkeypatch.setattr(prefect_view, "SEND_SECONDS", 0.05)
    given = {settings.PREFECT_CLIENT_MAX_RETRIES: 0, settings.PREFECT_API_REQUEST_TIMEOUT: 3.0}
    with Api() as server, settings.temporary_settings(given):
        yield server


@pytest.fixture
def gate(api: Api) -> Iterator[Gate]:
    """What stands before the API."""
    with Gate(api.url) as made:
        yield made


@pytest.fixture
def said() -> list[str]:
    """What the link says."""
    return []


@pytest.fixture
def link(gate: Gate, said: list[str]) -> ApiLink:
    return ApiLink(gate.url, said.append, threading.Event(), start_seconds=0.5, end_seconds=0.5)


@pytest.fixture
def client(link: ApiLink) -> Iterator[ViewClient]:
    with ViewClient(link) as made:
        yield made


@pytest.mark.parametrize("then", ["refuse", "hang"])
def test_an_api_that_is_away_is_asked_once_and_again_when_its_health_answers(
    gate: Gate, client: ViewClient, said: list[str], then: Any
) -> None:
    """The first request takes what a request may take, later ones nothing; each change is said
    once."""
    client.request("GET", "/hello")
    gate.turn(then)
    for _ in range(100):
        with pytest.raises(httpx.TransportError):
            client.request("GET", "/hello")
    assert gate.connections < 50, "the first alone asks, and now and then its health"
    assert [LOST in line for line in said] == [True]
    gate.turn("forward")
    until(lambda: len(said) == 2)
    client.request("GET", "/hello")
    assert BACK in said[1]


def test_how_a_run_ended_needs_no_answer_and_how_it_begins_does(api, gate, client, said):
    run = "00000000-0000-0000-0000-000000000001"
    gate.turn("refuse")
    state: Any = Completed(message="done")
    assert client.set_flow_run_state(run, state).state == state
    with pytest.raises(httpx.TransportError):
        client.set_flow_run_state(run, Running())
    # raised, it would kill a night that holds its deployment's slot
    client.renew_concurrency_lease(UUID(run), 300)
    gate.turn("forward")
    until(lambda: len(said) == 2)
    api.status = 410  # the slot has expired meanwhile
    client.renew_concurrency_lease(UUID(run), 300)


@pytest.mark.parametrize(
    ("kept", "sent"),
    [
        (Paused(name="Suspended"), [False, True]),
        (Cancelling(), [False, True]),
        (Failed(message="The flow was completed and never resumed."), [False, True]),
        (AwaitingRetry(), [False]),
    ],
)
def test_how_a_run_ended_is_its_own_word_after_a_click_on_pause(client, monkeypatch, kept, sent):
    """It was kept as suspended, and five minutes later as failed. A retry is Prefect's to say."""
    forced: list[bool] = []

    def record(_: Any, run: str, state: Any, force: bool = False) -> OrchestrationResult[Any]:
        forced.append(force)
        answer = (SetStateStatus.ACCEPT, StateAcceptDetails(), state)
        if not force:
            answer = (SetStateStatus.REJECT, StateRejectDetails(reason="paused"), kept)
        return OrchestrationResult(status=answer[0], details=answer[1], state=answer[2])

    monkeypatch.setattr(SyncPrefectClient, "set_flow_run_state", record)
    client.set_flow_run_state("00000000-0000-0000-0000-000000000001", Completed())
    assert forced == sent


def test_the_outbox_keeps_what_cannot_be_sent_in_its_order(api, gate, link, monkeypatch):
    monkeypatch.setattr(prefect_view, "MOST_KEPT", 500)
    outbox = Outbox(link)
    outbox.log({"message": 0})
    until(lambda: len(api.got) == 1)
    gate.turn("refuse")
    for number in range(1, 451):
        outbox.log({"message": number, "__payload_size__": 12})
    time.sleep(0.5)
    gate.turn("forward")
    until(lambda: len({record["message"] for _, record in api.got}) == 451)
    assert outbox.close() == 0
    if api.got[0] == api.got[1]:  # the answer to the first one was cut off, so it was sent again
        del api.got[0]
    assert api.got == [("/api/logs/", {"message": number}) for number in range(451)]


def test_the_outbox_says_how_much_is_lost(api, gate, link, monkeypatch):
    """Ten that the API refuses, then six that nobody takes, of which three are too many to keep."""
    monkeypatch.setattr(prefect_view, "MOST_KEPT", 10)
    outbox = Outbox(link)
    api.status = 422
    for number in range(10):
        outbox.log({"message": number})
    until(lambda: outbox.dropped == 10)
    gate.turn("refuse")
    monkeypatch.setattr(prefect_view, "MOST_KEPT", 3)
    for number in range(6):
        outbox.log({"message": number})
    assert outbox.close() == 16


def test_events_that_the_server_may_not_have_stored_are_sent_again_after_each_loss(
    api: Api, gate: Gate, link: ApiLink, said: list[str]
) -> None:
    """A server keeps events in memory for a while; it knows those that come twice by their id."""
    names = ("first", "second", "third")
    events = [Event(event=name, resource={"prefect.resource.id": "a.b"}) for name in names]
    outbox = Outbox(link)
    outbox.put(("event", events[0]))
    until(lambda: len(api.got) == 1)
    for losses in (1, 2):
        gate.turn("refuse")
        outbox.put(("event", events[losses]))
        until(lambda: [LOST in line for line in said].count(True) == losses)  # noqa: B023
        gate.turn("forward")
        until(lambda: api.got[-1][1]["event"] == names[losses])  # noqa: B023
    assert outbox.close() == 0
    sent = " ".join(record["event"] for _, record in api.got)
    assert sent == "first first second first second third"


def test_events_that_are_refused_when_they_come_again_take_nothing_with_them(api, gate, link, said):
    """All that came after them was lost, to the end of the run."""
    first, second = (Event(event=name, resource={"prefect.resource.id": "a.b"}) for name in "xy")
    outbox = Outbox(link)
    outbox.put(("event", first))
    until(lambda: api.got and not outbox._queue)  # the answer has come, too
    gate.turn("refuse")
    outbox.put(("event", second))
    until(lambda: said)
    api.refused = str(first.id)
    gate.turn("forward")
    until(lambda: api.got[-1][1]["id"] == str(second.id))
    assert outbox.close() == 0


def test_an_event_that_is_refused_takes_nothing_with_it_that_goes_beside_it(api, link):
    first, second = (Event(event=name, resource={"prefect.resource.id": "a.b"}) for name in "xy")
    api.refused = str(first.id)
    outbox = Outbox(link)
    for event in (first, second):
        outbox.put(("event", event))
    until(lambda: api.got and api.got[-1][1]["id"] == str(second.id))
    assert outbox.close() == 1


def test_what_a_busy_server_refuses_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by clients of Prefect's own, which make the run of a flow in a flow."""
    monkeypatch.setattr(prefect_view.time, "sleep", lambda seconds: None)
    codes = iter([503, 429, 200, 500])

    def ask() -> int:
        response = httpx.Response(next(codes), request=httpx.Request("POST", "http://h/api"))
        return response.raise_for_status().status_code

    assert prefect_view.unless_busy(ask) == 200
    with pytest.raises(httpx.HTTPStatusError):
        prefect_view.unless_busy(ask)
