"""The HTTP side of an endpoint: `/v1/models`, `/v1/chat/completions`, `/v1/completions`."""

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tasks.serving.completions import Answer, closed
from tasks.serving.continuous_batching import Busy, Closed, Engine
from tasks.serving.protocol import ChatRequest, CompletionRequest, Refused, Request

LONGEST_BODY = 4 << 20
"""The most bytes of a request."""

RETRY_AFTER = {"Retry-After": "2"}
"""Seconds to wait, for clients that come while the queue is full."""

AT_ONCE = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers of a streamed answer, whose pieces a proxy is to pass on as they come."""

Handler = Callable[[HttpRequest], Awaitable[Response]]


def application(engine: Engine, name: str, key: str | None, hosts: list[str]) -> Starlette:
    """The application that answers over HTTP.

    Args:
        name: the model's.
        key: the key that `Authorization: Bearer` must have; None: anybody may ask.
        hosts: valid names in the header Host, without a port. A browser's page that reaches us
            under another name (DNS rebinding) is refused.
    """
    model = {"id": name, "object": "model", "created": 0, "owned_by": "lyceum"}

    async def models(request: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [model]})

    async def one_model(request: HttpRequest) -> Response:
        _check_name(request.path_params["model"], name)
        return JSONResponse(model)

    def read(kind: type[Request], body: bytes) -> tuple[Request, list[list[int]]]:
        """The request and its prompts' tokens. A long text takes seconds, during which other
        requests are answered."""
        asked = kind.read(body)
        _check_name(asked.model, name)
        return asked, asked.prompts(engine.loaded.tokenizer)

    def answering(kind: type[Request]) -> Handler:
        async def answer(request: HttpRequest) -> Response:
            asked, prompts = await asyncio.to_thread(read, kind, await _body(request))
            try:
                answer = Answer(engine, asked, prompts, name)
            except Busy as error:
                message = f"{engine.places} answers wait already; ask again"
                raise Refused(429, message, code="rate_limit_exceeded") from error
            except Closed as error:
                raise closed() from error
            if asked.stream:
                events, form = _events(answer), "text/event-stream"
                return StreamingResponse(events, headers=AT_ONCE, media_type=form)
            return await _whole(answer, request)

        return answer

    def admitted(handler: Handler) -> Handler:
        async def handle(request: HttpRequest) -> Response:
            scheme, _, given = request.headers.get("authorization", "").partition(" ")
            known = hmac.compare_digest(given.encode(), (key or "").encode())
            if key is not None and not (known and scheme.lower() == "bearer"):
                raise Refused(401, "this endpoint wants its key", code="invalid_api_key")
            return await handler(request)

        return handle

    return Starlette(
        routes=[
            Route("/v1/models", admitted(models)),
            Route("/v1/models/{model:path}", admitted(one_model)),
            Route("/v1/chat/completions", admitted(answering(ChatRequest)), methods=["POST"]),
            Route("/v1/completions", admitted(answering(CompletionRequest)), methods=["POST"]),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)],
        exception_handlers={
            Refused: _refused,
            ClientDisconnect: _gone,
            HTTPException: _no_route,
            Exception: _broken,
        },
    )


def _check_name(given: str, name: str) -> None:
    if given != name:
        raise Refused(
            404,
            f"there is no model {given!r}; this one is {name!r}",
            param="model",
            code="model_not_found",
        )


async def _body(request: HttpRequest) -> bytes:
    """Read the body. Raises Refused when it is too long, or has a type that a browser's page may
    send without a preflight request."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, f"Content-Type is {kind!r}; send application/json")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LONGEST_BODY:
            raise Refused(413, f"a request has at most {LONGEST_BODY >> 20} MiB")
    return body


async def _whole(answer: Answer, request: HttpRequest) -> Response:
    """The answer, or nothing if the client leaves first."""
    told = asyncio.create_task(answer.whole())
    gone = asyncio.ensure_future(request.receive())  # the body was read: only the end may come
    tasks: list[asyncio.Future[Any]] = [told, gone]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return JSONResponse(told.result()) if told.done() else await _gone(request, None)
    finally:
        answer.leave()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _events(answer: Answer) -> AsyncIterator[str]:
    try:
        async for event in answer.events():
            yield f"data: {json.dumps(event, ensure_ascii=False)}\n\n"
        yield "data: [DONE]\n\n"
    finally:
        answer.leave()


async def _refused(request: HttpRequest, error: Any) -> Response:
    headers = RETRY_AFTER if error.status in (429, 503) else None
    return JSONResponse(error.body(), error.status, headers)


async def _gone(request: HttpRequest, error: Any) -> Response:
    """What nobody reads."""
    return Response(status_code=499)


async def _no_route(request: HttpRequest, error: Any) -> Response:
    said = f"{request.method} {request.url.path}: {error.detail}"
    return JSONResponse(Refused(error.status_code, said).body(), error.status_code, error.headers)


async def _broken(request: HttpRequest, error: Exception) -> Response:
    return JSONResponse(Refused(500, "the endpoint failed at this request").body(), 500)
