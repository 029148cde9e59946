"""What an endpoint refuses, how it holds a crowd, and how it ends."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tasks.models.loading import LoadedModel
from tasks.serving.answers import Answer
from tasks.serving.engine import Engine
from tests.fakes.chat_fixtures import engine as chat_engine
from tests.fakes.chat_fixtures import question
from tests.tasks.sampling import test_slots
from tests.tasks.serving.place import KEY, Place, place

loaded = test_slots.loaded
USER = [{"role": "user", "content": "seven"}]


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
        ({"max_tokens": 25}, 400, "max_tokens"),
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
def test_what_cannot_be_answered_is_refused_in_openais_words(
    endpoint: Place, body: dict[str, Any], status: int, param: str
) -> None:
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


def test_null_and_what_changes_nothing_are_as_if_left_out(endpoint: Place) -> None:
    neutral = {"temperature": None, "presence_penalty": 0, "logit_bias": {}, "tools": []}
    more = {"response_format": {"type": "text"}, "seed": 1, "max_completion_tokens": 4}
    assert endpoint.ask("chat/completions", messages=USER, **neutral, **more)["choices"]


def test_sixty_four_clients_are_all_answered(endpoint: Place, tmp_path: Path) -> None:
    """Our own chat engine, 64 at a time in 8 slots, each sampled answer that of its seed alone."""
    asked = [
        (number, replace(question(number, max_tokens=12, seed=number % 4), model="m"))
        for number in range(96)
    ]
    with chat_engine(f"{endpoint.url}/v1", tmp_path, concurrency=64, attempts=1) as running:
        replies = dict(running.ask_singly(asked))
    assert len(replies) == 96
    assert {reply.problem for reply in replies.values()} <= {None, "truncated", "empty"}
    for number in (0, 50, 95):
        alone = endpoint.chat(f"say {number}", max_tokens=12, seed=number % 4)
        assert replies[number].text == alone["choices"][0]["message"]["content"]


def test_a_full_queue_says_when_to_come_again(loaded: LoadedModel) -> None:
    """Two slots, one place to wait, and nobody who decodes."""
    with place(loaded, slots=2, places=1) as found:
        found.chat("seven", max_tokens=2)
        gate = threading.Event()
        advance = found.engine._advance
        found.engine._advance = lambda: (gate.wait(60), advance())[1]  # type: ignore
        with pytest.raises(httpx.HTTPStatusError) as caught:
            found.post("chat/completions", messages=USER, n=2).raise_for_status()
        refused = caught.value.response
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        gate.set()
        assert found.chat("seven", max_tokens=2)["choices"]


def test_who_goes_away_leaves_a_free_slot(loaded: LoadedModel) -> None:
    """One slot: a client that leaves in the middle, streamed or not, does not keep it."""
    with place(loaded, slots=1, response_length=20_000) as found:
        ids = {"prompt": [[5]], "max_tokens": 20_000, "temperature": 1.9, "seed": 1}
        found.ask("completions", prompt="seven", max_tokens=2)
        stops, loaded.tokenizer.stop_ids = loaded.tokenizer.stop_ids, ()
        try:
            with found.client.stream(
                "POST", "/v1/completions", json={"model": "m", "stream": True, **ids}
            ) as response:
                next(response.iter_lines())
            _wait(lambda: found.engine.load() == (0, 0))
            with pytest.raises(httpx.ReadTimeout):
                found.client.post("/v1/completions", json={"model": "m", **ids}, timeout=0.5)
            _wait(lambda: found.engine.load() == (0, 0))
        finally:
            loaded.tokenizer.stop_ids = stops


def test_an_endpoint_that_ends_says_so_to_who_waits(
    loaded: LoadedModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """503 with Retry-After, to a request that was taken; the connection is refused after."""
    taken = threading.Event()
    begin = Answer.__init__

    def begun(self: Answer, *args: Any) -> None:
        begin(self, *args)
        taken.set()

    monkeypatch.setattr(Answer, "__init__", begun)
    monkeypatch.setattr(Engine, "_admit", lambda self: not self._closed and not time.sleep(0.01))
    monkeypatch.setattr(Engine, "_advance", lambda self: None)
    found: list[httpx.Response] = []
    with place(loaded) as there:
        thread = threading.Thread(
            target=lambda: found.append(there.post("completions", prompt="seven"))
        )
        thread.start()
        assert taken.wait(60)
    thread.join(60)
    assert (found[0].status_code, found[0].headers["retry-after"]) == (503, "2")
    assert found[0].json()["error"]["code"] == "server_stopping"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{there.url}/v1/models", trust_env=False)


def test_where_a_key_is_wanted_nobody_else_is_answered(loaded: LoadedModel) -> None:
    with place(loaded, key=KEY) as found:
        assert found.client.get("/v1/models").status_code == 401
        wrong = found.client.get("/v1/models", headers={"Authorization": f"Bearer {KEY}x"})
        assert wrong.json()["error"]["code"] == "invalid_api_key"
        right = found.client.get("/v1/models", headers={"Authorization": f"Bearer {KEY}"})
        assert right.status_code == 200


def test_an_engine_that_breaks_ends_the_server_and_says_why(
    loaded: LoadedModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(self: Engine) -> None:
        raise MemoryError("no memory left on the device")

    monkeypatch.setattr(Engine, "_advance", broken)

    def ask() -> list[int]:
        with place(loaded) as found:
            asked = [found.post("completions", prompt="seven") for _ in range(2)]
            statuses.extend(one.status_code for one in asked)
        return statuses

    statuses: list[int] = []
    with pytest.raises(MemoryError):
        ask()
    assert statuses == [503, 503]


def _wait(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
