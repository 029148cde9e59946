"""One attempt at one request, by aiohttp; batch files go through the `openai` client, whose own
retries are off: ours are in one place (`tasks.chat.engine`).

That client builds, checks and wraps what aiohttp sends and gets, at three times aiohttp's own
processor time (1.4 to 0.35 ms a request here), which gains nothing here: we have the body already
and store the answer as it came.

The meaning of statuses:

2xx                     an answer, whatever it holds (`tasks.chat.reply`)
401                     the key is wrong: InputError. 402, or 429 with `insufficient_quota`: nothing
                        is left to pay with: StageFailed
403, 404                no access, no such model or URL: InputError, unless the endpoint has
                        answered before: then this request is bad
408, 409, 425, 429, 5xx later again, after Retry-After if it is given (RFC 9110: seconds or a date;
`retry-after-ms`)
other 4xx               this request is bad; or, in words of a content filter, was refused (Azure's
                        and OpenAI's 400, OpenRouter's 403)
"""

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from schemas.base import InputError, StageFailed
from tasks.chat.provider import Endpoint

if TYPE_CHECKING:
    from openai import AsyncOpenAI

T = TypeVar("T")
CONNECT_SECONDS = 15.0
_LATER = {408, 409, 425, 429}
_FILTERED = re.compile(
    r"content_filter|content_policy_violation|\b(?:prompt|input|request|response|content) (?:was|is"
    r"|has been) (?:flagged|filtered|blocked)\b"
)
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)s)?(?:([\d.]+)ms)?")

FailureKind = Literal[
    "rate_limited", "server_error", "timeout", "connection", "malformed", "rejected", "filtered"
]


@dataclass(frozen=True)
class Answer:
    """A body with status 200. `pause`: seconds until the endpoint renews its rate limit, if that is
    used up."""

    body: bytes
    pause: float = 0.0


@dataclass(frozen=True)
class Failure:
    """No answer. `wait`: seconds that the endpoint asks for. `perhaps_paid`: the provider may have
    made an answer that did not arrive."""

    kind: FailureKind
    detail: str
    wait: float | None = None
    perhaps_paid: bool = False


class Transport:
    """Sends requests to an endpoint; create and use it in one event loop.

    Args:
        slots: the most connections.
        seconds: time limit of one request.
    """

    def __init__(self, endpoint: Endpoint, slots: int, seconds: float) -> None:
        import aiohttp
        import httpx2

        self._endpoint, self._seconds = endpoint, seconds
        place = urlsplit(endpoint.url)
        # Looked up here once; aiohttp's own `trust_env` reads the whole environment for every
        # request, and .netrc.
        proxy = None if proxy_bypass(place.hostname or "") else getproxies().get(place.scheme)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=slots + 8, ssl=httpx2.create_ssl_context()),
            headers={"Authorization": f"Bearer {endpoint.key}", "Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=min(CONNECT_SECONDS, seconds)),
            cookie_jar=aiohttp.DummyCookieJar(),
            proxy=proxy if proxy is None or "://" in proxy else f"http://{proxy}",
        )

    @cached_property
    def client(self) -> "AsyncOpenAI":
        """The transport of batch files."""
        import openai

        return openai.AsyncOpenAI(
            base_url=self._endpoint.url,
            api_key=self._endpoint.key,
            max_retries=0,
            timeout=self._seconds,
        )

    async def close(self) -> None:
        await self._session.close()
        if "client" in self.__dict__:
            await self.client.close()

    async def send(
        self, body: bytes, path: str, idempotency_key: str, *, answered: bool
    ) -> Answer | Failure:
        """Send a request, given as JSON, to the endpoint.

        Args:
            path: below the endpoint's URL.
            idempotency_key: the same for every attempt at the same answer: a provider that honours
                it bills it once.
            answered: whether the endpoint has answered any request before.

        Raises:
            InputError, StageFailed: no request will be answered; what to do is in the message.
        """
        import aiohttp

        url, headers = f"{self._endpoint.url}{path}", {"Idempotency-Key": idempotency_key}
        try:
            async with (
                asyncio.timeout(self._seconds),
                self._session.post(url, data=body, headers=headers) as response,
            ):
                content = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            return self._late() if type(error) is TimeoutError else self._lost(error)
        if response.method != "POST":
            raise InputError(
                f"{self._endpoint.place} redirects ({response.history[-1].status}) to"
                f" {self._endpoint.scrub(str(response.url))}, where no question arrives: set"
                f" {self._endpoint.variable('URL')} to its new address."
            )
        if not 200 <= response.status < 300:
            return self.refused(response.status, response.headers, content, answered)
        return Answer(self._endpoint.hide(content), renewal_seconds(response.headers))

    async def attempt(self, call: Callable[[], Awaitable[T]], *, answered: bool) -> T | Failure:
        """The result of a call of `client`, or its failure. Raises as `send` does."""
        import openai

        try:
            # the client's own time-out begins anew with every byte
            async with asyncio.timeout(self._seconds):
                return await call()
        except TimeoutError:
            return self._late()
        except openai.APIConnectionError as error:
            return self._lost(error)
        except openai.APIStatusError as error:
            return self.refused(
                error.status_code, error.response.headers, error.response.content, answered
            )

    def _late(self) -> Failure:
        return Failure("timeout", f"no answer in {self._seconds:g} s", perhaps_paid=True)

    def _lost(self, error: BaseException) -> Failure:
        """The failure when no answer came. The `openai` client wraps the cause."""
        import aiohttp

        while not isinstance(error, aiohttp.ClientError) and error.__cause__ is not None:
            error = error.__cause__
        unsent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
        detail = self._endpoint.scrub(f"{type(error).__name__}: {error}")
        kind: FailureKind = "timeout" if isinstance(error, TimeoutError) else "connection"
        return Failure(kind, detail, perhaps_paid=not unsent)

    def refused(
        self, status: int, headers: Mapping[str, str], body: bytes, answered: bool
    ) -> Failure:
        """The failure of a status other than 2xx. Raises InputError or StageFailed if no later
        attempt can succeed."""
        words, place = self._endpoint.scrub(f"{status} {_words(body)}"), self._endpoint.place
        if status == 401 or "api key not valid" in words.lower():  # Gemini says so with status 400
            raise InputError(
                f"{place} refuses the key ({words}). Set {self._endpoint.variable('KEY')} to one"
                " that is valid."
            )
        if status == 402 or "insufficient_quota" in words:
            raise StageFailed(
                f"{place}: the account has no funds left ({words}). Top it up; answers that arrived"
                " are kept."
            )
        if status in (400, 403) and is_filtered(words):
            return Failure("filtered", words)
        if status == 403 and not answered:
            raise InputError(
                f"{place} denies access ({words}). Give the key of {self._endpoint.variable('KEY')}"
                " access to this model."
            )
        if status == 404 and not answered:
            raise InputError(
                f"{place}: no such model or URL ({words}). Correct the model (GET"
                f" {self._endpoint.url}/models lists them), or {self._endpoint.variable('URL')},"
                " which ends before /chat/completions."
            )
        if status not in _LATER and status < 500:
            return Failure("rejected", words)
        kind: FailureKind = "rate_limited" if status == 429 else "server_error"
        return Failure(kind, words, retry_after_seconds(headers))


def is_filtered(words: str) -> bool:
    """Whether a server's refusal is that of a content filter."""
    return _FILTERED.search(words) is not None


def _words(body: bytes) -> str:
    """A server's refusal in one line: the message of OpenAI's error object with its code, or the
    body's beginning."""
    text = body.decode("utf-8", "replace")
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        if isinstance(value, dict):
            value = value["error"] if isinstance(value.get("error"), dict) else value
            said = " ".join(str(value[name]) for name in ("message", "code") if value.get(name))
            return said[:500] or str(value)[:300]
    return " ".join(text.split())[:300]


def retry_after_seconds(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """The wait that an answer asks for, in seconds; None without a readable one."""
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
    """Seconds until a used-up rate limit is renewed; 0 if every limit has a rest, or none is
    stated.

    OpenAI's headers (also those of Azure, Groq, vLLM's routers): `x-ratelimit-remaining-requests:
    0`, `x-ratelimit-reset-requests: 6m0s`, the same with `-tokens`; without an ending, as
    OpenRouter has it, the reset is a moment in seconds or milliseconds since the epoch.
    """
    longest = 0.0
    for ending in ("-requests", "-tokens", ""):
        with suppress(ValueError):
            if float(headers.get(f"x-ratelimit-remaining{ending}", "1")) < 1:
                longest = max(longest, _duration(headers.get(f"x-ratelimit-reset{ending}", "")))
    return longest


def _duration(text: str) -> float:
    """Seconds of `1h2m3.5s`, `20ms`, `7`, or until a moment given as a number of seconds or
    milliseconds. Raises ValueError."""
    text = text.strip()
    match = _DURATION.fullmatch(text)
    if match and match.group():
        parts = zip(match.groups(default="0"), (86400, 3600, 60, 1, 0.001), strict=True)
        return sum(float(part) * unit for part, unit in parts)
    number = float(text)
    if number > 1e11:
        number /= 1000
    return max(0.0, number - time.time() if number > 1e9 else number)
