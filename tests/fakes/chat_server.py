"""An OpenAI-compatible server that misbehaves as it is told: for tests and benchmarks.

`with ChatServer(faults=...) as server:` is a thread of the process; `GET /counts` and `/billed`
tell others what it has seen. Batch files are in `chat_batches.py`.

It has so many slots: requests beyond them wait, as in a real server. It counts every answer that it
made in full as billed, whether or not somebody received it; with `idempotent` it makes one answer
per Idempotency-Key and bills it once.
"""

import asyncio
import json
import re
import socket
import struct
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from tests.fakes.chat_batches import Batches

Reply = Callable[[dict[str, Any]], str]
"""The text for a request's body."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request. Kinds:

    `status`: answer `code` with `headers` and `text`; `hang`: say nothing for `seconds`; `reset`:
    close before a byte is sent; `cut`: close in the middle of the body; `drip`: a byte of the body
    every `seconds`; `body`: answer 200 with `text`; `change`: answer well but for what `change`
    does to the JSON; `slow`: answer after `seconds`, and when `ready` says so.
    """

    kind: str
    code: int = 200
    text: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    change: Callable[[dict[str, Any]], None] = lambda body: None
    ready: Callable[[], bool] = lambda: True


@dataclass
class Request:
    """A request as it arrived. `number` counts from 0, `again` how often this question was seen
    before."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    number: int = 0
    again: int = 0

    @cached_property
    def body(self) -> dict[str, Any]:
        return json.loads(self.raw)

    @property
    def question(self) -> str:
        messages = self.body["messages"]
        return messages[-1]["content"] if messages else ""


def echo(body: dict[str, Any]) -> str:
    """A trace whose answer is the question's last number."""
    question = body["messages"][-1]["content"] if body["messages"] else ""
    numbers = re.findall(r"\d+", question)
    answer = numbers[-1] if numbers else "none"
    return f"<reasoning>The question is: {question[-80:]}</reasoning>\n<answer>{answer}</answer>"


class ChatServer:
    """The server.

    Args:
        faults: called with each chat request; what it returns goes wrong, None: nothing.
        latency: seconds from a request's turn to its answer.
        slots: requests that are worked on at a time.
        idempotent: honours Idempotency-Key.

    Attributes:
        paths: where chat requests go.
        seen: all chat requests.
        billed: question -> answers made in full. `keys`: Idempotency-Key -> the same.
        most: the most requests that were under way at a time.
    """

    def __init__(
        self,
        faults: Callable[[Request], Fault | None] = lambda request: None,
        *,
        latency: float = 0.0,
        slots: int = 64,
        idempotent: bool = False,
        reply: Reply = echo,
        record: bool = True,
        port: int = 0,
    ) -> None:
        self.faults, self.latency, self.slots = faults, latency, slots
        self.idempotent, self.reply, self.record = idempotent, reply, record
        self.paths: tuple[str, ...] = ("/v1/chat/completions",)
        self.seen: list[Request] = []
        self.billed: Counter[str] = Counter()
        self.keys: Counter[str] = Counter()
        self.count = self.under_way = self.most = 0
        self.desk = Batches(self)
        self._made: dict[str, asyncio.Future[bytes]] = {}
        self._again: defaultdict[str, int] = defaultdict(int)
        self._port = port

    def __enter__(self) -> Self:
        started = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self.serve(started)), daemon=True
        )
        self._thread.start()
        assert started.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def serve(self, started: threading.Event) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._free = asyncio.Semaphore(self.slots)
        server = await self.loop.create_server(
            lambda: _Connection(self), "127.0.0.1", self._port, backlog=1024
        )
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        started.set()
        await self._stop.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def chat(self, request: Request, connection: "_Connection") -> None:
        request.number, self.count = self.count, self.count + 1
        request.again = self._again[request.question]
        self._again[request.question] += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            if self.record:
                self.seen.append(request)
            fault = self.faults(request)
            if fault is None:
                connection.send(200, await self.answer(request))
            else:
                await self._misbehave(fault, request, connection)
        finally:
            self.under_way -= 1

    async def answer(self, request: Request) -> bytes:
        """A whole answer, which is billed."""
        key = request.headers.get("idempotency-key", "")
        if self.idempotent and key in self._made:
            return await self._made[key]
        made: asyncio.Future[bytes] = self.loop.create_future()
        if self.idempotent:
            self._made[key] = made
        async with self._free:
            await asyncio.sleep(self.latency)
        self.billed[request.question] += 1
        self.keys[key] += 1
        made.set_result(json.dumps(completion(request.body, self.reply(request.body))).encode())
        return made.result()

    async def _misbehave(self, fault: Fault, request: Request, connection: "_Connection") -> None:
        if fault.kind == "status":
            connection.send(fault.code, fault.text.encode(), fault.headers)
        elif fault.kind == "hang":
            await asyncio.sleep(fault.seconds)
            connection.reset()
        elif fault.kind == "reset":
            connection.reset()
        elif fault.kind == "body":
            connection.send(200, fault.text.encode(), fault.headers)
        elif fault.kind == "slow":
            await asyncio.sleep(fault.seconds)
            while not fault.ready():
                await asyncio.sleep(0.01)
            connection.send(200, await self.answer(request), fault.headers)
        elif fault.kind == "cut":
            head, body = _parts(200, await self.answer(request), {})
            connection.transport.write(head + body[: len(body) // 2])
            await asyncio.sleep(0.02)
            connection.reset()
        elif fault.kind == "drip":
            head, body = _parts(200, await self.answer(request), {})
            connection.transport.write(head)
            for byte in body:
                await asyncio.sleep(fault.seconds)
                connection.transport.write(bytes([byte]))
        else:
            assert fault.kind == "change", fault.kind
            value = json.loads(await self.answer(request))
            fault.change(value)
            connection.send(200, json.dumps(value).encode(), fault.headers)

    def counts(self) -> dict[str, Any]:
        billed = {"billed": self.billed.total(), "questions": len(self.billed)}
        return {"requests": self.count, "most": self.most, **billed}


def completion(body: dict[str, Any], text: str) -> dict[str, Any]:
    """A chat completion as OpenAI writes it; a token is four characters."""
    inputs, outputs = len(json.dumps(body["messages"])) // 4, len(text) // 4
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": inputs, "completion_tokens": outputs}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {**usage, "total_tokens": inputs + outputs},
    }


def _parts(status: int, body: bytes, headers: dict[str, str]) -> tuple[bytes, bytes]:
    lines = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} X\r\n{head}\r\n".encode(), body


class _Connection(asyncio.Protocol):
    """HTTP/1.1, one request after the other, kept alive."""

    transport: asyncio.Transport

    def __init__(self, server: ChatServer) -> None:
        self._server = server
        self._buffer = b""
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        """Who works on an answer goes on: a real server bills it, too."""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        pairs = (line.partition(": ") for line in lines)
        headers = {name.lower(): value for name, _, value in pairs}
        whole = end + 4 + int(headers.get("content-length", "0"))
        if len(self._buffer) < whole:
            return
        method, path, _ = first.split(" ")
        request = Request(method, path, headers, self._buffer[end + 4 : whole])
        self._buffer = self._buffer[whole:]
        self._task = self._server.loop.create_task(self._handle(request))

    async def _handle(self, request: Request) -> None:
        told = {"/counts": self._server.counts, "/billed": lambda: self._server.billed}
        if request.path in self._server.paths:
            await self._server.chat(request, self)
        elif request.path in told:
            self.send(200, json.dumps(told[request.path]()).encode())
        else:
            await self._server.desk.handle(request, self)

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.transport.write(b"".join(_parts(status, body, headers or {})))

    def reset(self) -> None:
        """Close without a farewell: RST."""
        raw = self.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()
