"""One attempt at one request, through the `openai` client, whose own retries are off: ours are in one place (`tasks.chat.engine`).

What the answers of servers mean:

200                     an answer, whatever it holds (`tasks.chat.reply`)
401                     the key is wrong: InputError. 402, or 429 with `insufficient_quota`: nothing is left to pay with: StageFailed
403, 404                no access, no such model or URL: InputError, unless the endpoint has answered before: then this request is bad
408, 409, 425, 429, 5xx later again, after Retry-After if it is given (RFC 9110: seconds or a date; `retry-after-ms`)
other 4xx               this request is bad
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from schemas.base import InputError, StageFailed
from tasks.chat.endpoint import Endpoint

if TYPE_CHECKING:
    from openai import AsyncOpenAI, RequestOptions

T = TypeVar("T")
CONNECT_SECONDS = 15.0
_LATER = {408, 409, 425, 429}
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)s)?(?:([\d.]+)ms)?")

FailureKind = Literal["rate_limited", "server_error", "timeout", "connection", "malformed", "rejected"]


@dataclass(frozen=True)
class Answer:
    """A body with status 200. `pause`: seconds until the endpoint's rate limit, now used up, is renewed."""

    body: bytes
    pause: float = 0.0


@dataclass(frozen=True)
class Failure:
    """No answer. `wait`: seconds that the endpoint asks for. `perhaps_paid`: the provider may have made an answer that did not arrive."""

    kind: FailureKind
    detail: str
    wait: float | None = None
    perhaps_paid: bool = False


class Transport:
    """Sends requests to an endpoint; to be made and used in one event loop.

    Args:
        slots: how many connections there may be.
        seconds: how long one request may take altogether.
    """

    def __init__(self, endpoint: Endpoint, slots: int, seconds: float) -> None:
        import httpx2
        import openai

        self._endpoint = endpoint
        self._seconds = seconds
        http = openai.DefaultAioHttpClient(limits=httpx2.Limits(max_connections=slots + 8, max_keepalive_connections=slots + 8))
        timeout = httpx2.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds))
        self.client: AsyncOpenAI = openai.AsyncOpenAI(
            base_url=endpoint.url, api_key=endpoint.key, max_retries=0, timeout=timeout, http_client=http
        )

    async def close(self) -> None:
        await self.client.close()

    async def send(self, body: bytes, path: str, idempotency_key: str, *, answered: bool) -> Answer | Failure:
        """Put a request, given as JSON, to the endpoint.

        Args:
            path: below the endpoint's URL.
            idempotency_key: the same for every attempt at the same answer: a provider that honours it bills it once.
            answered: whether the endpoint has answered any request before.

        Raises:
            InputError, StageFailed: no request will be answered; what to do is in the message.
        """
        import httpx2

        options: RequestOptions = {"headers": {"Idempotency-Key": idempotency_key, "Content-Type": "application/json"}}
        url = f"{self._endpoint.url}{path}"  # whole: the client puts the parts together for every request, slowly
        response = await self.attempt(
            lambda: self.client.post(url, cast_to=httpx2.Response, content=body, options=options), answered=answered
        )
        if isinstance(response, Failure):
            return response
        raw = response.headers.raw  # reading a header by its name costs the client 20 microseconds, and most servers send none of these
        limits = {name.decode("latin-1").lower(): text.decode("latin-1") for name, text in raw if name[:12].lower() == b"x-ratelimit-"}
        return Answer(self._endpoint.hide(response.content), renewal_seconds(limits) if limits else 0.0)

    async def attempt(self, call: Callable[[], Awaitable[T]], *, answered: bool) -> T | Failure:
        """What a call of the client returns, or how it failed. Raises as `send` does."""
        import openai

        try:
            async with asyncio.timeout(self._seconds):  # the client's own time-out begins anew with every byte
                return await call()
        except TimeoutError:
            return Failure("timeout", f"no answer in {self._seconds:g} s", perhaps_paid=True)
        except openai.APIConnectionError as error:
            return self._lost(error)
        except openai.APIStatusError as error:
            return self._refused(error, answered)

    def _lost(self, error: BaseException) -> Failure:
        """What it means that no answer came. The client and its transport each wrap what happened; aiohttp's error, below, is precise."""
        import aiohttp

        while error.__cause__ is not None:
            error = error.__cause__
            if isinstance(error, aiohttp.ClientError):
                break
        unsent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
        detail = self._endpoint.scrub(f"{type(error).__name__}: {error}")
        return Failure("timeout" if isinstance(error, TimeoutError) else "connection", detail, perhaps_paid=not unsent)

    def _refused(self, error: Any, answered: bool) -> Failure:
        """What a status other than 200 means. Raises InputError or StageFailed for what no later attempt can put right."""
        status: int = error.status_code
        words = self._endpoint.scrub(f"{status} {_words(error)}")
        place = f"the endpoint of {self._endpoint.provider} at {self._endpoint.url}"
        if status == 401 or "api key not valid" in words.lower():  # Gemini says so with status 400
            raise InputError(f"{place} refuses the key ({words}). Set {self._endpoint.variable('KEY')} to one that is valid.")
        if status == 402 or "insufficient_quota" in words:
            raise StageFailed(f"{place}: nothing is left to pay with ({words}). Top the account up; what was answered is kept.")
        if status == 403 and not answered:
            raise InputError(f"{place} denies access ({words}). Give the key of {self._endpoint.variable('KEY')} access to this model.")
        if status == 404 and not answered:
            raise InputError(
                f"{place}: no such model or URL ({words}). Correct the model (GET {self._endpoint.url}/models lists them), or "
                f"{self._endpoint.variable('URL')}, which ends before /chat/completions."
            )
        if status in _LATER or status >= 500:
            kind: FailureKind = "rate_limited" if status == 429 else "server_error"
            return Failure(kind, words, retry_after_seconds(error.response.headers))
        return Failure("rejected", words)


def _words(error: Any) -> str:
    """What a server says about its refusal, in one line: the message of OpenAI's error object with its code, or the body's beginning."""
    body = error.body
    if isinstance(body, dict):
        body = body.get("error", body) if isinstance(body.get("error", body), dict) else body
        return " ".join(str(body[name]) for name in ("message", "code") if body.get(name))[:500] or str(body)[:300]
    return " ".join(error.response.text.split())[:300]


def retry_after_seconds(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """The wait that an answer asks for, in seconds; None where it asks for none that can be read."""
    with suppress(ValueError):
        if milliseconds := headers.get("retry-after-ms"):
            return max(0.0, float(milliseconds) / 1000)
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    with suppress(ValueError):
        return max(0.0, float(text))
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    date = date.replace(tzinfo=UTC) if date.tzinfo is None else date
    return max(0.0, (date - (now or datetime.now(UTC))).total_seconds())


def renewal_seconds(headers: Mapping[str, str]) -> float:
    """Seconds until a used-up rate limit is renewed; 0 where something is left of every one, or nothing is said.

    OpenAI's headers (also those of Azure, Groq, vLLM's routers): `x-ratelimit-remaining-requests: 0`, `x-ratelimit-reset-requests: 6m0s`,
    the same with `-tokens`; without an ending, as OpenRouter has it, the reset is a moment in seconds or milliseconds since the epoch.
    """
    longest = 0.0
    for ending in ("-requests", "-tokens", ""):
        with suppress(ValueError):
            if float(headers.get(f"x-ratelimit-remaining{ending}", "1")) < 1:
                longest = max(longest, _duration(headers.get(f"x-ratelimit-reset{ending}", "")))
    return longest


def _duration(text: str) -> float:
    """Seconds of `1h2m3.5s`, `20ms`, `7`, or until a moment given as a number of seconds or milliseconds. Raises ValueError."""
    text = text.strip()
    match = _DURATION.fullmatch(text)
    if match and match.group():
        return sum(float(part) * unit for part, unit in zip(match.groups(), (86400, 3600, 60, 1, 0.001), strict=True) if part)
    number = float(text)
    if number > 1e11:
        number /= 1000
    return max(0.0, number - time.time() if number > 1e9 else number)
