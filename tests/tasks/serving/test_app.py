"""What an endpoint refuses, how it holds a crowd, and how it ends."""

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tasks.data.tokens import Tokenizer
from tasks.models.loading import LoadedModel
from tasks.planning.programs import compilations
from tasks.serving.app import application
from tasks.serving.continuous_batching import Drawn, Engine, Row, Sampling
from tests.fakes.chat_fixtures import engine as chat_engine
from tests.fakes.chat_fixtures import question
from tests.fakes.process import until
from tests.tasks.sampling import test_slots
from tests.tasks.serving.place import KEY, SHAPE, Place, place

loaded = test_slots.loaded
USER = [{"role": "user", "content": "seven"}]
PICTURE = {"type": "image_url", "image_url": {"url": "https://example.org/one.png"}}


@pytest.fixture(scope="module")
def endpoint(loaded: LoadedModel) -> Iterator[Place]:
    with place(loaded) as found:
        yield found


def test_the_model_is_listed(endpoint: Place) -> None:
    listed = endpoint.client.get("/v1/models").json()
    assert [one["id"] for one in listed["data"]] == ["m"]
    assert endpoint.client.get("/v1/models/m").json() == listed["data"][0]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"model": "gpt"}, 404, "model"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, 400, "messages"),
        ({"messages": [*USER, {"role": "assistant", "content": "a"}]}, 400, "messages"),
        ({"messages": [{"role": "user", "content": "word " * 99}]}, 400, "messages"),
        ({"messages": [{"role": "user", "content": [PICTURE]}]}, 400, "messages.0.content.0.type"),
        ({"max_tokens": 25}, 400, "max_tokens"),
        ({"max_completion_tokens": 25}, 400, "max_completion_tokens"),
        ({"temperature": "1"}, 400, "temperature"),
        ({"temperature": 2.5}, 400, "temperature"),
        ({"top_p": 0}, 400, "top_p"),
        ({"n": 17}, 400, "n"),
        ({"stop": ["a", ""]}, 400, "stop"),
        ({"top_logprobs": 3}, 400, "top_logprobs"),
        ({"frequency_penalty": 0.5}, 400, "frequency_penalty"),
        ({"tools": [{"type": "function"}]}, 400, "tools"),
        ({"temprature": 1}, 400, "temprature"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_openais_words(endpoint, body, status, param):
    response = endpoint.post("chat/completions", **({"messages": USER} | body))
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param)
    assert error["type"] == "invalid_request_error"
    assert param.split("_")[0] in error["message"] or "messages" in param


def test_bodies_that_are_none_and_ways_that_there_are_not(endpoint: Place) -> None:
    def post(content: bytes, kind: str = "application/json", **headers: str) -> int:
        path, said = "/v1/completions", {"Content-Type": kind, **headers}
        response = endpoint.client.post(path, content=content, headers=said)
        return response.status_code

    assert [post(b"{"), post(b"[]"), post(b'{"prompt": NaN}')] == [400, 400, 400]
    assert post(b"{}", "text/plain") == 415
    assert post(b'"' + b"a" * (4 << 20) + b'"') == 413
    assert post(b"{}", Host="evil.example") == 400
    other = endpoint.client.get("/v1/embeddings")
    assert (other.status_code, other.json()["error"]["type"]) == (404, "invalid_request_error")
    assert endpoint.client.get("/v1/completions").status_code == 405


def test_who_leaves_while_he_asks_is_no_error_of_ours(endpoint: Place) -> None:
    said: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        said.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers}
    asyncio.run(application(endpoint.engine, "m", None, ["127.0.0.1"])(scope, receive, send))
    assert said[0]["status"] == 499


def test_others_are_answered_while_a_long_text_is_read(endpoint, monkeypatch):
    encode, begun, go_on = Tokenizer.encode, threading.Event(), threading.Event()

    def slow(self: Tokenizer, text: str) -> list[int]:
        if "long" in text:
            begun.set()
            assert go_on.wait(300)
        return encode(self, text)

    monkeypatch.setattr(Tokenizer, "encode", slow)
    found: list[httpx.Response] = []
    ask = lambda: found.append(endpoint.post("completions", prompt="long " * 99))  # noqa: E731
    asking = threading.Thread(target=ask)
    asking.start()
    assert begun.wait(300)
    assert endpoint.client.get("/v1/models").status_code == 200
    assert endpoint.chat("seven", max_tokens=2)["choices"]
    assert not found
    go_on.set()
    asking.join()
    assert [one.status_code for one in found] == [400]
    assert "the prompt has" in found[0].json()["error"]["message"]


def test_null_and_what_changes_nothing_are_as_if_left_out(endpoint: Place) -> None:
    neutral = {"temperature": None, "presence_penalty": 0, "logit_bias": {}, "tools": []}
    neutral |= {"store": False, "metadata": {"of": "mine"}, "tool_choice": "none"}
    more = {"response_format": {"type": "text"}, "seed": 1, "max_completion_tokens": 4}
    assert endpoint.ask("chat/completions", messages=USER, **neutral, **more)["choices"]


def test_an_engine_that_is_warm_compiles_nothing_for_a_short_answer(loaded: LoadedModel) -> None:
    engine = Engine(loaded, slots=8, places=8, **SHAPE)
    engine.warm_up()
    programs = engine._programs
    each = (programs.prefill, programs.admit, programs.decode, programs.resize)
    compiled = [compilations(program) for program in each]
    assert all(compiled)
    assert engine.load() == (0, 0)
    told: list[Drawn] = []
    how = Sampling(temperature=0.5, top_p=0.9, seed=1, row=0, told=True)
    engine.ask([Row([loaded.tokenizer.bos_id, 7], 4, how, told.append)])
    running = threading.Thread(target=engine.run)
    running.start()
    until(lambda: told and told[-1].finish)
    engine.close()
    running.join()
    assert [compilations(program) for program in each] == compiled


def test_sixty_four_clients_are_all_answered(endpoint: Place, tmp_path: Path) -> None:
    """Our own chat engine, 64 at a time in 8 slots, each sampled answer that of its seed alone."""
    questions = [question(number, max_tokens=12, seed=number % 4) for number in range(96)]
    asked = [(number, replace(one, model="m")) for number, one in enumerate(questions)]
    with chat_engine(f"{endpoint.url}/v1", tmp_path, concurrency=64, attempts=1) as running:
        replies = dict(running.ask_singly(asked))
    assert len(replies) == 96
    assert {reply.problem for reply in replies.values()} <= {None, "truncated", "empty"}
    for number in (0, 50, 95):
        alone = endpoint.chat(f"say {number}", max_tokens=12, seed=number % 4)
        assert replies[number].text == alone["choices"][0]["message"]["content"]


def test_who_goes_away_leaves_a_free_slot(loaded, monkeypatch):
    monkeypatch.setattr(Engine, "_advance", lambda self: time.sleep(0.02))
    body = {"model": "m", "messages": USER}
    with place(loaded) as found:
        path = "/v1/chat/completions"
        with found.client.stream("POST", path, json={**body, "stream": True}) as response:
            lines = response.iter_lines()  # who drops them has left
            next(lines)
            until(lambda: found.engine.load() == (1, 0))
        until(lambda: found.engine.load() == (0, 0))
        with pytest.raises(httpx.ReadTimeout):
            found.client.post(path, json=body, timeout=0.5)
        until(lambda: found.engine.load() == (0, 0))


def test_a_full_queue_says_when_to_come_again_and_an_end_is_told_to_who_waits(loaded, monkeypatch):
    """An engine that begins nothing, and one place: 429 to the second, 503 to the first when it
    ends, both with Retry-After; the connection is refused after."""
    monkeypatch.setattr(Engine, "_admit", lambda self: not self._closed and not time.sleep(0.02))
    monkeypatch.setattr(Engine, "_advance", lambda self: None)
    found: list[httpx.Response] = []

    def ask(url: str) -> None:
        body = {"model": "m", "messages": USER}
        path = f"{url}/v1/chat/completions"
        found.append(httpx.post(path, json=body, trust_env=False, timeout=60))

    with place(loaded, places=1) as there:
        waiting = threading.Thread(target=ask, args=(there.url,))
        waiting.start()
        until(lambda: there.engine.load() == (0, 1))
        ask(there.url)
    waiting.join(60)
    assert [one.status_code for one in found] == [429, 503]
    assert [one.headers["retry-after"] for one in found] == ["2", "2"]
    codes = [one.json()["error"]["code"] for one in found]
    assert codes == ["rate_limit_exceeded", "server_stopping"]
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{there.url}/v1/models", trust_env=False)


def test_where_a_key_is_wanted_nobody_else_is_answered(loaded: LoadedModel) -> None:
    with place(loaded, key=KEY) as found:
        assert found.client.get("/v1/models").status_code == 401
        wrong = found.client.get("/v1/models", headers={"Authorization": f"Bearer {KEY}x"})
        assert wrong.json()["error"]["code"] == "invalid_api_key"
        for given, status in ((f"Bearer {KEY}", 200), (f"bearer {KEY}", 200), (KEY, 401)):
            asked = found.client.get("/v1/models", headers={"Authorization": given})
            assert asked.status_code == status


def test_an_engine_that_breaks_ends_the_server_and_says_why(loaded, monkeypatch):
    def broken(self: Engine) -> None:
        raise MemoryError("no memory left on the device")

    monkeypatch.setattr(Engine, "_advance", broken)

    statuses: list[int] = []
    with pytest.raises(MemoryError), place(loaded) as found:
        statuses.extend(found.post("completions", prompt="seven").status_code for _ in range(2))
    assert statuses == [503, 503]
