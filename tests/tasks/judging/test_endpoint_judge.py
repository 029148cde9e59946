"""A judge behind an endpoint: each question asked once, in whatever thread; and an endpoint that is
down changes no ruling."""

import hashlib
import json
import math
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from infra.store.answers import Answers
from infra.store.store import open_store
from schemas.base import StageFailed
from tasks.chat import attempts, breaker
from tasks.contract.reward import Resources
from tasks.judging.judge import EndpointJudgeConfig, Judge, JudgeConfig, Question, Ruling
from tasks.judging.open_judge import judge_models, open_judge
from tests.fakes.chat_server import ChatServer, Fault, Request
from tests.fakes.process import free_port, until

PRICE = {"input_usd_per_million": 1.0, "output_usd_per_million": 1.0}
JUDGE = {"name": "endpoint", "provider": "bench", "model": "judge-1", **PRICE}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of a tenth."""
    monkeypatch.setattr(attempts, "FIRST_DELAY", 0.02)
    monkeypatch.setattr(breaker, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(breaker, "_PATIENT_PAUSE", 0.2)


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Opens judges on one store."""
    opened: list[Judge] = []

    def open_one(url: str, settings: dict[str, Any] | None = None, **config: Any) -> Judge:
        monkeypatch.setenv("BENCH_BASE_URL", url)
        for name, value in (settings or {}).items():
            monkeypatch.setenv(f"LYCEUM_{name.upper()}", str(value))
        resources = Resources({}, Answers(open_store(tmp_path / "store")))
        opened.append(open_judge(EndpointJudgeConfig.parse({**JUDGE, **config}), resources))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def rating(body: dict[str, Any]) -> str:
    """Depends on the question alone."""
    text = json.dumps(body["messages"], sort_keys=True).encode()
    return json.dumps({"rating": int(hashlib.sha256(text).hexdigest(), 16) % 10})


def questions(count: int, word: str = "response") -> list[Question]:
    return [Question(f"{word} {number}") for number in range(count)]


def texts(rulings: list[Ruling]) -> list[str]:
    assert [one.problem for one in rulings] == [None] * len(rulings)
    return [one.text for one in rulings]


def expected(asked: list[Question]) -> list[str]:
    return [rating({"messages": [{"role": "user", "content": one.text}]}) for one in asked]


def test_rulings_come_in_order_and_a_question_is_asked_once_over_runs(judge: Any) -> None:
    asked = [*questions(20), *questions(5)]
    with ChatServer(reply=rating) as server:
        first = judge(server.url)
        rulings = first.ask(asked)
        assert texts(rulings) == expected(asked)
        assert len(server.seen) == 20
        assert [one.digest for one in rulings[:5]] == [one.digest for one in rulings[20:]]
        counted = first.values()
        assert (counted["asked"], counted["requests"], counted["abstained"]) == (25, 20, 0)
        assert counted["usd"] == pytest.approx(sum(one.usd for one in rulings)) != 0
        again = judge(server.url, max_usd=1e-6)  # another config, in which nothing could be paid
        repeated = again.ask(asked)
        assert texts(repeated) == expected(asked)
        assert all(one.cached and one.usd == 0 for one in repeated)
        assert len(server.seen) == 20


def test_what_is_sent_is_the_config_s_and_the_question_s(judge: Any) -> None:
    with ChatServer(reply=rating) as server:
        effort, limit = {"reasoning_effort": "low"}, "max_completion_tokens"
        one = judge(server.url, temperature=0.5, limit_parameter=limit, parameters=effort)
        (question,) = questions(1)
        form = {"response_format": {"type": "json_object"}}
        asked = [question, Question(question.text, parameters=form)]
        asked.append(Question(question.text, sample=1))
        assert len({ruling.digest for ruling in one.ask(asked)}) == 3
        messages = [{"role": "user", "content": question.text}]
        plain = {"model": "judge-1", "messages": messages, "temperature": 0.5}
        bodies = sorted((request.body for request in server.seen), key=len)
        assert bodies[0] == bodies[1] == plain | {limit: 512} | effort
        assert bodies[2] == bodies[0] | form


def test_threads_share_the_slots_and_the_budget(judge: Any) -> None:
    """Four rollouts in flight ask at a time: never more than the slots, and one budget, which is
    enough for a part."""
    with ChatServer(reply=rating, latency=0.02) as server:
        one = judge(server.url, {"teacher_concurrency": 6}, max_usd=0.001, max_abstained=1.0)
        with ThreadPoolExecutor(4) as threads:
            calls = [threads.submit(one.ask, questions(20, f"rollout {i}")) for i in range(4)]
            rulings = [ruling for call in calls for ruling in call.result()]
        answered = [ruling for ruling in rulings if ruling.problem is None]
        assert 0 < len(answered) < 80
        problems = {ruling.problem for ruling in rulings if ruling.problem}
        assert problems == {"unasked: the budget is spent"}
        assert sum(ruling.usd for ruling in rulings) == pytest.approx(one.values()["usd"])
        assert one.values()["usd"] <= 0.001
        assert server.most <= 6
        assert len(server.seen) == len(answered)


def test_a_stage_that_goes_on_has_what_is_left_of_its_budget(judge: Any) -> None:
    """What a killed attempt paid for and this one does not ask again is counted; what it asks again
    is counted once."""
    with ChatServer(reply=rating) as server:
        before = judge(server.url, max_usd=1.0)
        before.ask(questions(20))
        usd = before.values()["usd"]
        after = judge(server.url, max_usd=1.0)
        after.ask(questions(5))
        after.count_on({"usd": usd})
        assert after.values()["usd"] == usd
        spent = judge(server.url, max_usd=1.0, max_abstained=1.0)
        spent.count_on({"usd": 1.0})
        assert {one.problem for one in spent.ask(questions(3, "new"))} == {
            "unasked: the budget is spent"
        }
        assert len(server.seen) == 20


class Outage:
    """From the `after`-th request on everything fails in a way, until a question has failed more
    than `most` times."""

    def __init__(self, fault: Fault, after: int, most: float) -> None:
        self.fault, self.after, self.most = fault, after, most
        self.failed: Counter[str] = Counter()

    def __call__(self, request: Request) -> Fault | None:
        if request.number < self.after or max(self.failed.values(), default=0) > self.most:
            return None
        self.failed[request.question] += 1
        return self.fault


PAGE = "<html>Down for maintenance</html>"


@pytest.mark.parametrize("fault", [Fault("status", 503), Fault("reset"), Fault("body", text=PAGE)])
def test_an_outage_changes_no_ruling(fault: Fault, judge: Any) -> None:
    """It lasts so long that every request under way fails more often than it is allowed to."""
    asked, outage = questions(48), Outage(fault, after=20, most=5)
    with ChatServer(outage, reply=rating, latency=0.005) as server:
        one = judge(server.url, {"teacher_concurrency": 8, "teacher_attempts": 3})
        assert texts(one.ask(asked)) == expected(asked)
        assert max(outage.failed.values()) > 5
        assert one.values()["waited_seconds"] > 0
        assert one.values()["abstained"] == 0


def test_an_endpoint_that_is_not_there_is_waited_for(judge: Any) -> None:
    """Two questions, fewer than a breaker needs to tell an outage from bad luck: a refused
    connection says it alone."""
    port, asked = free_port(), questions(2)
    one = judge(f"http://127.0.0.1:{port}/v1", {"teacher_attempts": 2})
    with ThreadPoolExecutor(1) as threads:
        rulings = threads.submit(one.ask, asked)
        until(lambda: one.values()["requests"] >= 8)
        assert not rulings.done()
        with ChatServer(reply=rating, port=port):
            assert texts(rulings.result(300)) == expected(asked)


@pytest.mark.timeout(60, method="thread")
@pytest.mark.parametrize("slots", [4, 1])
def test_patience_ends_and_the_same_command_goes_on(slots: int, judge: Any, monkeypatch) -> None:
    """What was answered before the outage is not asked again, and threads that wait at the same
    time learn of it, too. A question that was asked again before all others kept the only slot, and
    no three questions could tell that the endpoint is down."""
    monkeypatch.setattr(random, "uniform", lambda low, high: low)  # of the pauses before that
    asked = questions(30)
    with ChatServer(Outage(Fault("status", 503), after=12, most=math.inf), reply=rating) as server:
        one = judge(server.url, {"judge_patience_seconds": 1.0, "teacher_concurrency": slots})
        with ThreadPoolExecutor(2) as threads:
            other = threads.submit(one.ask, questions(20, "another rollout"))
            fix = r"answered nothing for .* BENCH_BASE_URL is right.*LYCEUM_JUDGE_PATIENCE_SECONDS"
            with pytest.raises(StageFailed, match=fix):
                one.ask(asked)
            with pytest.raises(StageFailed, match="has answered nothing"):
                other.result(300)
        answered = set(server.billed)
    assert len(answered) == 12
    with ChatServer(reply=rating) as server:
        assert texts(judge(server.url).ask(asked)) == expected(asked)
        assert not answered & set(server.billed)


def test_a_question_that_always_fails_gets_no_ruling_and_too_many_end_the_stage(judge: Any) -> None:
    def fault(request: Request) -> Fault | None:
        return Fault("status", 500, text="CUDA error") if request.question.endswith(" 3") else None

    asked = questions(10)
    with ChatServer(fault, reply=rating, latency=0.005) as server:
        one = judge(server.url, {"teacher_attempts": 3})
        rulings = one.ask(asked)
        assert [bool(ruling.problem) for ruling in rulings] == [i == 3 for i in range(10)]
        assert rulings[3].problem == "failed: 500 CUDA error"
        most = r"no ruling on 1 of 5 questions, more than max_abstained = 0\.1 .*\(1 times: failed"
        with pytest.raises(StageFailed, match=most):
            one.ask(asked[:5])
        one.check([None] * 9 + ["no JSON"])
        with pytest.raises(StageFailed, match="2 times: no JSON"):
            one.check([None] * 8 + ["no JSON"] * 2)


def test_close_ends_those_who_wait(judge: Any) -> None:
    """A stage that is stopped while its endpoint is down does not wait for it."""
    one = judge(f"http://127.0.0.1:{free_port()}/v1", {"stop_seconds": 0.2})
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            one.ask(questions(3))
        except BaseException as error:  # noqa: BLE001  whatever it is
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    until(lambda: one.values()["requests"] >= 1)
    one.close()
    thread.join(300)
    assert not thread.is_alive()
    assert len(errors) == 1


def test_configs_are_told_apart_by_name_and_refused_with_reasons() -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(JudgeConfig)
    gemma = {"name": "gemma", "model": "gemma3-12b-it", "prompt_length": 1024}
    assert judge_models(adapter.validate_python(gemma)) == ("gemma3-12b-it",)
    assert judge_models(adapter.validate_python(JUDGE)) == ()
    free = {"input_usd_per_million": 0.0, "output_usd_per_million": 0.0}
    for wrong, words in (
        ({"parameters": {"max_tokens": 3}}, "max_tokens: set by"),
        ({"max_usd": 1.0, **free}, "max_usd needs"),
        ({"provider": "http://x"}, "lower-case name"),
    ):
        with pytest.raises(ValidationError, match=words):
            adapter.validate_python({**JUDGE, **wrong})
