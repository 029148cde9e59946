"""Batch files: everything is asked once, whatever is killed in between."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from schemas.base import InputError, StageFailed
from tasks.chat import batch_files
from tasks.chat.budget import Budget
from tests.fakes.chat_fixtures import ask, engine, question, questions
from tests.fakes.chat_server import ChatServer, Request


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_files, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(batch_files, "CHUNK", 10)


def test_answers_come_in_order_and_are_kept_one_by_one(tmp_path: Path) -> None:
    """25 questions are three chunks; afterwards the same answers serve a run without batches."""
    with ChatServer() as server:
        replies = ask(server.url, tmp_path, 25, batch=True)
        texts = [reply.text for reply in replies]
        assert all(text.endswith(f"<answer>{at}</answer>") for at, text in enumerate(texts))
        assert len(server.desk.batches) == 3
        assert server.count == 0, "no request was sent singly"
        assert [reply.text for reply in ask(server.url, tmp_path, 25)] == texts
        assert all(reply.cached for reply in ask(server.url, tmp_path, 25, batch=True))
        assert server.billed.total() == 25


@pytest.mark.parametrize(
    "when", ["while it is worked on", "before its id was kept", "while answers were kept"]
)
def test_a_killed_run_finds_its_batch_again(when, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    with ChatServer() as server:
        with engine(server.url, tmp_path, batch=True) as running, monkeypatch.context() as patch:
            put, calls = running.answers.put, count(1)
            last = {"before its id was kept": 1, "while answers were kept": 6}.get(when)

            def dying(digest: str, body: bytes) -> None:
                if next(calls) == last:
                    raise Killed
                put(digest, body)

            async def dies(seconds: float) -> None:
                raise Killed

            patch.setattr(running.answers, "put", dying)
            if when == "while it is worked on":
                patch.setattr(batch_files.asyncio, "sleep", dies)
            with pytest.raises(Killed):
                list(batch_files.ask_in_batches(running, questions(10)))
        assert len(server.desk.batches) == 1
        replies = ask(server.url, tmp_path, 10, batch=True)
        assert {reply.problem for reply in replies} == {None}
        assert len(server.desk.batches) == 1, "the batch that was paid is waited for"
        assert server.billed.total() == 10


def test_what_expires_or_fails_on_their_side_is_asked_again_and_what_is_rejected_is_not(tmp_path):
    failed, rejected, expired = (f"{question(number).digest[:60]}-0" for number in (1, 2, 3))
    told = {failed: (500, {}), rejected: (400, {"error": {"message": "too long"}})}
    with ChatServer() as server:
        for name, (status, body) in told.items():
            response = {"status_code": status, "body": body}
            server.desk.fail[name] = {"response": response, "error": None}
        server.desk.unanswered = {expired}
        finish = server.desk.finish

        def once(batch: dict[str, object]) -> None:
            finish(batch)
            server.desk.fail.pop(failed, None)
            server.desk.unanswered = set()

        server.desk.finish = once  # type: ignore[method-assign]
        replies = ask(server.url, tmp_path, 5, batch=True)
        assert [reply.problem for reply in replies] == [None, None, "failed", None, None]
        assert "too long" in replies[2].detail
        totals = [batch["request_counts"]["total"] for batch in server.desk.batches.values()]
        assert totals == [5, 2]


def test_an_answer_file_that_the_provider_deleted_is_asked_for_again(tmp_path, caplog):
    """Files go after 30 days; the batch's id stays, and what it leaves open is asked in a new
    one."""
    with ChatServer() as server:
        server.desk.unanswered = {f"{question(3).digest[:60]}-0"}
        replies = ask(server.url, tmp_path, 5, batch=True)
        assert [reply.problem for reply in replies].count("failed") == 1
        server.desk.files.clear()
        server.desk.unanswered = set()
        assert {reply.problem for reply in ask(server.url, tmp_path, 5, batch=True)} == {None}
        assert server.billed.total() == 5
    assert " is gone: what it answered is asked again" in caplog.text


def test_a_batch_that_the_provider_refuses_stops_the_stage_and_can_be_tried_again(tmp_path):
    with ChatServer() as server:
        server.desk.ending = "failed"
        with pytest.raises(StageFailed, match="the model has no batches"):
            ask(server.url, tmp_path, 5, batch=True)
        server.desk.ending = "completed"
        assert {reply.problem for reply in ask(server.url, tmp_path, 5, batch=True)} == {None}


@pytest.mark.parametrize(
    ("status", "wait", "error", "words"),
    [
        (404, "0.01", InputError, "unset LYCEUM_TEACHER_BATCH"),
        (503, "0.01", StageFailed, "not answer: 503 None"),
        (429, "86400", StageFailed, "not answer: 429 None"),
    ],
)
def test_a_provider_that_takes_no_batch_ends_the_stage(tmp_path, status, wait, error, words):
    """Files it takes, and lists what batches there are. A day's wait is not sat out."""
    with ChatServer() as server:
        handle = server.desk.handle

        async def none(request: Request) -> web.Response:
            if (request.method, request.path) == ("POST", "/v1/batches"):
                return web.Response(status=status, body=b"None", headers={"retry-after": wait})
            return await handle(request)

        server.desk.handle = none  # type: ignore[method-assign]
        with pytest.raises(error, match=words):
            ask(server.url, tmp_path, 5, batch=True, dead_seconds=0.2)


def test_the_budget_holds_in_batches_and_ends_at_the_same_request(tmp_path: Path) -> None:
    """What one batch costs less than its worst case is spent by the next."""
    with ChatServer() as server:
        singly = ask(server.url, tmp_path / "a", 60, budget=Budget(max_tokens=1200))
        batched = ask(server.url, tmp_path / "b", 60, budget=Budget(max_tokens=1200), batch=True)
        assert [reply.problem for reply in batched] == [reply.problem for reply in singly]
        assert sum(reply.input_tokens + reply.output_tokens for reply in batched) <= 1200
        assert {reply.problem for reply in batched} == {None, "unasked"}


def test_a_question_that_comes_again_is_paid_once(tmp_path: Path) -> None:
    """In one chunk and in the next, as in a run without batches."""
    spent = []
    with ChatServer() as server:
        for batch in (False, True):
            budget = Budget(account="one")
            with engine(server.url, tmp_path / str(batch), budget=budget, batch=batch) as running:
                asked = ((number, question(number % 4)) for number in range(25))
                replies = [reply for _, reply in batch_files.ask_all(running, asked)]
                spent.append((budget.spent, running.meter.cost, running.meter.replies["cached"]))
            assert len({reply.text for reply in replies}) == 4
        assert server.billed.total() == 8
    assert {cached for *_, cached in spent} == {21}
    costs = [cost for *both, _ in spent for cost in both]
    assert costs == [pytest.approx(costs[0])] * 4


def test_empty_answers_are_asked_for_again_in_batches_too(tmp_path: Path) -> None:
    third = iter(["", "", "at last"])

    def reply(body: dict[str, Any]) -> str:
        return next(third) if body["messages"][-1]["content"] == "say 3" else "text"

    with ChatServer(reply=reply) as server:
        replies = ask(server.url, tmp_path, 5, batch=True)
        assert replies[3].text == "at last"
        assert len(server.desk.batches) == 3
        assert server.billed["say 3"] == 3


def test_an_unsteady_service_is_insisted_on(tmp_path: Path) -> None:
    """Each first call of its kind fails."""
    with ChatServer() as server:
        handle, seen = server.desk.handle, set()

        async def unsteady(request: Request) -> web.Response:
            kind = (request.method, request.path.split("?")[0].rstrip("0123456789"))
            if kind in seen:
                return await handle(request)
            seen.add(kind)
            return web.Response(status=503, body=b"busy", headers={"retry-after": "0.01"})

        server.desk.handle = unsteady  # type: ignore[method-assign]
        replies = ask(server.url, tmp_path, 5, batch=True)
        assert {reply.problem for reply in replies} == {None}
        assert len(server.desk.batches) == 1
