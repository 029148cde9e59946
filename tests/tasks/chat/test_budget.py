"""The budget: never exceeded, the same for a run and its continuations, and what is not asked is
counted."""

import random
from pathlib import Path

import pytest

from schemas.base import InputError
from tasks.chat.budget import Budget
from tests.fakes.chat_fixtures import PRICES, ask, engine, first, question, questions
from tests.fakes.chat_server import ChatServer, Fault

pytestmark = pytest.mark.usefixtures("no_long_waits")


def test_a_dollar_budget_stops_cleanly_at_the_same_request_whatever_the_concurrency(tmp_path):
    """Answers cost about a quarter of their worst case, so many more are asked than fit at their
    worst."""
    worst = Budget().worst(question(0), PRICES).usd
    asked = []
    for concurrency in (1, 7, 64):
        budget = Budget(max_usd=20 * worst)
        with ChatServer(latency=0.005) as server:
            store, settings = tmp_path / str(concurrency), {"concurrency": concurrency}
            replies = ask(server.url, store, 300, budget=budget, **settings)
            problems = [reply.problem for reply in replies]
            asked.append(problems.count(None))
            assert problems == [None] * asked[-1] + ["unasked"] * (300 - asked[-1])
            assert server.billed.total() == asked[-1]
        spent = sum(reply.usd for reply in replies)
        assert budget.spent.usd == pytest.approx(spent)
        assert 19 * worst - PRICES.usd(0, 64) < spent <= 20 * worst
    assert len(set(asked)) == 1
    assert asked[0] > 40


def test_a_token_budget_counts_prompts_and_responses_and_what_others_spent_before(tmp_path):
    budget = Budget(max_tokens=3000)
    with ChatServer() as server:
        replies = ask(server.url, tmp_path, 200, budget=budget)
        tokens = sum(reply.input_tokens + reply.output_tokens for reply in replies)
        assert 2500 < tokens == budget.spent.tokens <= 3000
        assert sum(reply.problem == "unasked" for reply in replies) > 50
        asked, little = server.count, Budget(max_usd=1.0, before_usd=0.9999999)
        replies = ask(server.url, tmp_path / "other", 5, budget=little)
        assert server.count == asked
    assert [reply.problem for reply in replies] == ["unasked"] * 5


def test_answers_that_somebody_else_paid_are_free_and_our_own_stay_paid(tmp_path: Path) -> None:
    """A killed stage has one budget, not one per start."""
    with ChatServer() as server:
        first = ask(server.url, tmp_path, 10, budget=Budget(account="one"))
        usd = sum(reply.usd for reply in first)
        resumed = Budget(max_usd=usd + 1e-5, account="one")
        other = Budget(max_usd=1e-9, account="two")
        again = ask(server.url, tmp_path, 12, budget=resumed)
        assert [reply.problem for reply in again] == [None] * 10 + ["unasked"] * 2
        assert sum(reply.usd for reply in again) == pytest.approx(usd)
        free = ask(server.url, tmp_path, 10, budget=other)
        assert {(reply.usd, reply.cached, reply.problem) for reply in free} == {(0.0, True, None)}
        assert server.count == 10


def test_without_usage_a_byte_counts_as_a_token(tmp_path: Path) -> None:
    for usage in (None, {"prompt_tokens": "12", "completion_tokens": -1}):
        without = Fault("change", change=lambda body, usage=usage: body.update(usage=usage))
        with ChatServer(lambda request, without=without: without) as server:
            (reply,) = ask(server.url, tmp_path / str(usage is None))
        assert reply.input_tokens == question(0).most_input_tokens > len("say 0")
        assert reply.output_tokens == 64, "at most the bound"
        assert reply.usd == PRICES.usd(reply.input_tokens, 64)


def test_answers_that_may_have_been_billed_count_at_their_worst_and_errors_not_at_all(tmp_path):
    worst = Budget().worst(question(0), PRICES)
    paid = [Fault("hang", seconds=5), Fault("cut"), Fault("reset"), Fault("body", text="<html>")]
    for fault, doubtful in [*((fault, 1) for fault in paid), (Fault("status", 503), 0)]:
        first = lambda request, fault=fault: None if request.again else fault  # noqa: E731
        with ChatServer(first) as server:
            budget, seconds = Budget(), 1.5 if fault.kind == "hang" else 600
            (reply,) = ask(
                server.url, tmp_path / fault.kind, budget=budget, timeout_seconds=seconds
            )
            (plain,) = ask(server.url, tmp_path / f"{fault.kind}-again")
        assert reply.usd == pytest.approx(plain.usd + doubtful * worst.usd), fault.kind
        assert budget.spent.usd == pytest.approx(reply.usd)


def test_a_budget_is_never_exceeded_whatever_fails(tmp_path: Path) -> None:
    """Many concurrent requests, half of which fail in some way; what the server has billed stays
    within the budget."""
    faults = [Fault("status", 500), Fault("cut"), Fault("reset"), Fault("body", text="<html>")]
    rng = random.Random(5)
    worst = Budget().worst(question(0), PRICES).usd
    budget = Budget(max_usd=30 * worst)
    with (
        ChatServer(lambda request: rng.choice([*faults, *[None] * 4]), latency=0.005) as server,
        engine(server.url, tmp_path, budget=budget) as running,
    ):
        replies = [reply for _, reply in running.ask_singly(questions(200))]
        answers = server.billed.total()
    answered = [reply for reply in replies if reply.problem is None]
    assert answers >= len(answered) > 10
    assert budget.spent.usd <= 30 * worst + 1e-9
    assert budget.spent.usd == pytest.approx(sum(reply.usd for reply in replies))
    assert replies[-1].problem == "unasked"


def test_who_failed_for_nothing_waits_for_budget_that_others_only_reserve(tmp_path: Path) -> None:
    """Each first attempt is refused, for nothing. Six fit at their worst, and the seventh takes the
    room of the first that is refused: then a new attempt has to wait."""
    budget = Budget(max_usd=6 * Budget().worst(question(0), PRICES).usd)
    busy = first(Fault("status", 503))
    with ChatServer(busy, latency=0.01) as server:
        replies = ask(server.url, tmp_path, 16, budget=budget, concurrency=8)
        assert {reply.problem for reply in replies} == {None}
        assert server.billed.total() == 16


def test_a_budget_needs_a_bound(tmp_path: Path) -> None:
    with ChatServer() as server, engine(server.url, tmp_path, budget=Budget(max_usd=1)) as running:
        with pytest.raises(InputError, match="max_tokens"):
            list(running.ask_singly([(0, question(0, max_tokens=None))]))
        assert server.count == 0
