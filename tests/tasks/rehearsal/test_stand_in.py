"""The stand-in as a server: who is asked, how often, and what a real judge's grades tell."""

import json
import socket
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from infra.store.answers import Answers
from infra.store.store import open_store
from schemas.examples import Domain, Prompt
from tasks.chat.batch_files import ask_all
from tasks.chat.request import ChatRequest
from tasks.distillation.endpoint_teacher import EndpointTeacher, EndpointTeacherConfig
from tasks.judging.sheets import Item, Sheet, question
from tasks.rehearsal.first_rows import Asked, FirstRows
from tasks.rehearsal.scripted import Script
from tasks.rehearsal.stand_in import URL_VARIABLE, StandIn
from tasks.routing.asking import RoutingTeacher, asking
from tasks.teaching.lesson import Lesson
from tests.fakes.chat_fixtures import engine
from tests.fakes.chat_server import ChatServer, Fault
from tests.fakes.process import reset, until

ADD = Prompt(id="1", prompt="What is 17 + 25?", domain=Domain.MATH, answer="42")
TAGS = "<reasoning>r</reasoning>\n<answer>a</answer>"


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with StandIn(Script(FirstRows(asked=[Asked(ADD, TAGS, 1)])), asked=3) as server:
        yield server


def ask(server: StandIn, model: str, content: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": content}]}
    request = Request(f"{server.url}/chat/completions", json.dumps(body).encode())
    with urlopen(request) as answered:
        said: dict[str, Any] = json.loads(answered.read())
    return str(said["choices"][0]["message"]["content"])


def test_without_a_key_nobody_else_is_asked(stand_in, monkeypatch):
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    assert "<answer>42</answer>" in ask(stand_in, "gemini:g", f"{TAGS}\n\n{ADD.prompt}")
    tally = stand_in.tallies["gemini:g"]
    assert (tally.asked.total(), tally.stood_in) == (0, {"teacher": 1})
    assert "GEMINI_API_KEY" in tally.why_not


def test_a_real_endpoint_is_asked_as_often_as_the_cap_allows(stand_in, monkeypatch):
    with ChatServer(reply=lambda body: f"from {body['model']}") as real:
        monkeypatch.setenv("VLLM_BASE_URL", real.url)
        monkeypatch.setenv("VLLM_API_KEY", "sk-a-key-of-a-test")
        said = [ask(stand_in, "vllm:openai/m", f"{TAGS}\n\n{ADD.prompt}") for _ in range(5)]
        keys = {request.headers["authorization"] for request in real.seen}
    assert said[:3] == 3 * ["from openai/m"]
    assert all("<answer>42</answer>" in text for text in said[3:])
    assert keys == {"Bearer sk-a-key-of-a-test"}
    tally = stand_in.tallies["vllm:openai/m"]
    assert (tally.asked.total(), tally.stood_in.total()) == (3, 2)


def test_what_a_real_endpoint_refuses_comes_back_as_it_is(stand_in, monkeypatch):
    gone = Fault("status", code=404, text='{"error": {"message": "no such model"}}')
    with ChatServer(faults=lambda request: gone) as real:
        monkeypatch.setenv("VLLM_BASE_URL", real.url)
        with pytest.raises(HTTPError) as error:
            ask(stand_in, "vllm:old", "hello")
    assert error.value.code == 404
    assert "no such model" in next(iter(stand_in.tallies["vllm:old"].refused))


def test_a_real_judges_grades_are_kept(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    sheet = Sheet((Item("logic", "Logic", "rating"),))
    ten = json.dumps({"mark": "0" * 16, "reason": "fine", "grades": {"1": 10}})
    with ChatServer(reply=lambda body: ten) as real:
        monkeypatch.setenv("VLLM_BASE_URL", real.url)
        for answer in ("42", "41"):
            material = {"task": ADD.prompt, "reasoning": "because", "answer": answer}
            ask(stand_in, "vllm:j", question(sheet, material)[0].text)
    assert list(stand_in.tallies["vllm:j"].grades.values()) == 2 * ['{"1": 10}']


def test_nobody_who_does_not_know_its_path_is_answered(stand_in: StandIn) -> None:
    """Other users of the machine would spend the key's money."""
    address = stand_in.url.split("/")[2]
    with pytest.raises(HTTPError) as error:
        urlopen(Request(f"http://{address}/v1/chat/completions", b"{}"))
    assert error.value.code == 404


def test_a_worker_that_is_gone_before_its_answer_leaves_no_traceback(stand_in, monkeypatch, capfd):
    """On the terminal of who stopped a rehearsal."""
    gone, told = threading.Event(), threading.Event()
    over = StandIn.shutdown_request
    monkeypatch.setattr(stand_in, "shutdown_request", lambda one: (over(stand_in, one), told.set()))
    monkeypatch.setattr(stand_in.script, "reply", lambda body: str(gone.wait(60)))
    asked = json.dumps({"model": "m", "messages": [{"role": "user", "content": "?"}]})
    path = f"{stand_in.path}/chat/completions"
    worker = socket.create_connection(stand_in.server_address)
    worker.sendall(f"POST {path} HTTP/1.1\r\nContent-Length: {len(asked)}\r\n\r\n{asked}".encode())
    until(lambda: stand_in.tallies)
    reset(worker)
    gone.set()
    assert told.wait(60)
    assert capfd.readouterr().err == ""


def test_the_router_is_asked_through_it(stand_in, monkeypatch, tmp_path):
    monkeypatch.setenv(URL_VARIABLE, stand_in.url)
    lesson = Lesson(0, None, Answers(open_store(tmp_path)), tally=defaultdict(float))
    config = RoutingTeacher.parse({"provider": "rehearsal", "model": "gemini:g"})
    with asking(config, lesson) as ask_router:
        assert ask_router(["Write a poem about the sea."]) == [Domain.CREATIVE]
    assert stand_in.tallies["gemini:g"].stood_in == {"router": 1}


def test_a_teacher_that_scores_token_ids_finds_each_as_likely(stand_in, monkeypatch, tmp_path):
    monkeypatch.setenv(URL_VARIABLE, stand_in.url)
    table = {"name": "endpoint", "provider": "rehearsal", "model": "rehearsal-4/vllm:t"}
    config, answers = EndpointTeacherConfig.parse(table), Answers(open_store(tmp_path))
    with closing(EndpointTeacher(config, answers, response_length=3, account="test")) as teacher:
        logps = teacher.score([([5], [7, 8])]).logps
    assert logps.tolist() == [[-1.0, -1.0, 0.0]]
    assert stand_in.tallies["vllm:t"].stood_in == {"teacher": 1}


def test_a_teacher_that_answers_through_batch_files_gets_them(stand_in, tmp_path):
    """The rows' own answers, as to single requests; none is sent singly."""
    message = {"role": "user", "content": f"{TAGS} – très bien\n\n{ADD.prompt}"}
    asked = [(seed, ChatRequest("gemini:g", (message,), {"seed": seed})) for seed in (1, 2)]
    with engine(stand_in.url, tmp_path, batch=True) as running:
        replies = [reply.text for _, reply in ask_all(running, asked)]
    assert all("<answer>42</answer>" in text for text in replies)
    (batch,) = stand_in.desk.batches.values()
    assert batch["request_counts"]["total"] == 2
    assert stand_in.tallies["gemini:g"].stood_in == {"teacher": 2}
    with pytest.raises(HTTPError) as error:
        urlopen(f"{stand_in.url}/files/file-9/content")
    assert error.value.code == 404
