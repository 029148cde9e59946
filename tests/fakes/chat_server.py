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
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from aiohttp import web

from tasks.rehearsal.batch_desk import completion
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
    asked: web.Request
    number: int = 0
    again: int = 0

    @cached_property
    def body(self) -> dict[str, Any]:
        return json.loads(self.raw)

    @property
    def question(self) -> str:
        messages = self.body["messages"]
        return messages[-1]["content"] if messages else ""

    def reset(self) -> web.Response:
        """Close without a farewell: RST."""
        assert self.asked.transport is not None
        raw = self.asked.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.asked.transport.abort()
        return web.Response()


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
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self._port, backlog=1024).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        started.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _handle(self, asked: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in asked.headers.items()}
        request = Request(asked.method, asked.raw_path, headers, await asked.read(), asked)
        if request.path in self.paths:
            return await self.chat(request)
        told = {"/counts": self.counts, "/billed": lambda: self.billed}
        if request.path in told:
            return web.json_response(told[request.path]())
        return await self.desk.handle(request)

    async def chat(self, request: Request) -> web.StreamResponse:
        request.number, self.count = self.count, self.count + 1
        request.again = self._again[request.question]
        self._again[request.question] += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            if self.record:
                self.seen.append(request)
            return await self._respond(request, self.faults(request) or Fault("none"))
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

    async def _respond(self, request: Request, fault: Fault) -> web.StreamResponse:
        if fault.kind in ("status", "body"):
            return response(fault.code, fault.text.encode(), fault.headers)
        if fault.kind in ("slow", "hang"):
            await asyncio.sleep(fault.seconds)
        if fault.kind in ("hang", "reset"):
            return request.reset()
        while not fault.ready():
            await asyncio.sleep(0.01)
        value = json.loads(await self.answer(request))
        fault.change(value)
        body = json.dumps(value).encode()
        if fault.kind not in ("cut", "drip"):
            return response(200, body, fault.headers)
        begun = web.StreamResponse(headers={"content-length": str(len(body))})
        await begun.prepare(request.asked)
        if fault.kind == "cut":
            await begun.write(body[: len(body) // 2])
            await asyncio.sleep(0.02)
            return request.reset()
        for byte in body:
            await asyncio.sleep(fault.seconds)
            await begun.write(bytes([byte]))
        return begun

    def counts(self) -> dict[str, Any]:
        billed = {"billed": self.billed.total(), "questions": len(self.billed)}
        return {"requests": self.count, "most": self.most, **billed}


def response(status: int, body: bytes, headers: dict[str, str]) -> web.Response:
    told = {"content-type": "application/json", **headers}
    return web.Response(status=status, body=body, headers=told)
