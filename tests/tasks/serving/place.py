"""A small model behind a real HTTP server on a free port."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tasks.models.loading import LoadedModel
from tasks.serving.app import application
from tasks.serving.continuous_batching import Engine
from tasks.serving.server import served

SHAPE = {"prompt_length": 72, "response_length": 24}
KEY = "a-key-of-the-test"


@dataclass(frozen=True)
class Place:
    """Where it answers, and the engine behind it."""

    engine: Engine
    url: str
    client: httpx.Client

    def post(self, kind: str, **body: Any) -> httpx.Response:
        return self.client.post(f"/v1/{kind}", json={"model": "m", **body})

    def ask(self, kind: str, **body: Any) -> dict[str, Any]:
        response = self.post(kind, **body)
        assert response.status_code == 200, response.text
        value: dict[str, Any] = response.json()
        return value

    def chat(self, text: str, **body: Any) -> dict[str, Any]:
        return self.ask("chat/completions", messages=[{"role": "user", "content": text}], **body)

    def stream(self, kind: str, **body: Any) -> list[dict[str, Any]]:
        """The events of a streamed answer, without the last, which says that it was."""
        asked = {"model": "m", "stream": True, **body}
        with self.client.stream("POST", f"/v1/{kind}", json=asked) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.headers["x-accel-buffering"] == "no"
            lines = [line for line in response.iter_lines() if line]
        assert lines.pop() == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines]


@contextmanager
def place(loaded: LoadedModel, *, places: int = 64, key: str | None = None) -> Iterator[Place]:
    """With 8 slots."""
    engine = Engine(loaded, slots=8, places=places, **SHAPE)
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    with (
        served(engine, application(engine, "m", key, ["127.0.0.1"]), listening),
        httpx.Client(base_url=url, timeout=300, trust_env=False) as client,
    ):
        yield Place(engine, url, client)
