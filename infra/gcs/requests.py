"""Requests to one bucket: repeated while the service does not answer, explained when a person must
act.

The client library's own repetition is switched off wherever it is used (`retry=None`): it gives up
after two minutes at most, and does not repeat what ended in the middle of a body. Here every
request is repeated with exponential backoff and jitter for as long as the settings say, after 408,
409, 429, 5xx, broken or refused connections, time-outs and truncated or damaged bodies. An outage
of more than a second is logged once, and so is its end.
"""

import functools
import http.client
import json
import logging
import random
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, TypeVar

from infra.store.local_objects import causes
from schemas.base import InputError

log = logging.getLogger("lyceum.gcs")
T = TypeVar("T")
R = TypeVar("R")
Timeout = tuple[float, float]
"""Seconds to connect (and to send one piece of a body), and seconds to wait for the next bytes of
an answer."""

PARALLEL = 8
"""Requests of one transfer, or removal, that are under way at the same time."""
ATTEMPT_SECONDS = 60.0
FIRST_DELAY = 0.3  # seconds, doubled after each failure
LONGEST_DELAY = 30.0
OUTAGE_SECONDS = 1.0  # failures that pass within this time are not told
DAMAGED_UPLOAD = "doesn't match calculated"
"""Words in the service's refusal of bytes whose checksum is not the one that was announced."""
_TRANSIENT = {408, 409, 429, 500, 502, 503, 504}
_DENIED = re.compile(r"(\S+) does not have (storage\.[\w.]+) access")
_POLICY = re.compile(r"retention.?policy|ActiveHold|organization's policy", re.I)


class Missing(Exception):
    """There is no such object (404), or no longer (410). Never raised for a bucket that does not
    exist: that is an InputError."""


class Changed(Exception):
    """The precondition of a request did not hold (412): somebody else, or a repetition of this very
    request, was first."""


class Unusable(ConnectionError):
    """An answer that makes no sense, such as a body that is not what its checksum says: asked
    again."""


@dataclass(frozen=True)
class Stored:
    """The service's record of an object: size in bytes, crc32c as in FileEntry, generation."""

    size: int
    crc32c: str
    generation: int


class Requests:
    """Asks one bucket.

    Args:
        uri: the store, for messages.
        seconds: how long a request is repeated.
        account: returns who asks, for messages, or "" if that is not known.
    """

    def __init__(self, uri: str, bucket: str, seconds: float, account: Callable[[], str]) -> None:
        self.uri = uri
        self._bucket = bucket
        self._seconds = seconds
        self._account = account
        self._lock = threading.Lock()
        self._silent_since: float | None = None
        self._answered = False

    def ask(
        self,
        call: Callable[[Timeout], T],
        *,
        seconds: float | None = None,
        stop: threading.Event | None = None,
        of_bucket: bool = False,
    ) -> T:
        """Return what `call` returns, which makes one request within the time-out that it is given
        and may be repeated.

        Args:
            seconds: give up after so long; None for as long as the settings say.
            stop: when it is set, nothing more is asked.
            of_bucket: the request is about the bucket or makes an object: "not found" can only mean
                the bucket.

        Raises:
            Missing, Changed: for the caller to interpret.
            ConnectionError: the service did not answer for so long; trying again later is all one
                can do.
            InputError: a person must do something first: what, and how, is in the message.
        """
        patience = self._seconds if seconds is None else seconds
        deadline = time.monotonic() + patience
        failures, since = 0, 0.0
        while stop is None or not stop.is_set():
            began = time.monotonic()
            most = min(ATTEMPT_SECONDS, max(deadline - began, 0.1))
            try:
                result = call((most, most))
            except _failures() as error:
                reason = self._reason_to_repeat(error, of_bucket)
                # what took longer than it may was no silence of the service: bytes came, or this
                # process stood still, as after Ctrl-Z
                deadline += max(0.0, time.monotonic() - began - most)
                failures, since = failures + 1, since or time.monotonic()
                delay = max(
                    min(LONGEST_DELAY, FIRST_DELAY * 2 ** (failures - 1))
                    * random.uniform(0.5, 1.0),
                    _wish_of_service(error),
                )
                if time.monotonic() + delay > deadline:
                    raise ConnectionError(
                        f"{self.uri} did not answer for {_duration(patience)} ({reason})."
                    ) from error
                if time.monotonic() - since >= OUTAGE_SECONDS:
                    self._log_outage(reason, patience, since)
                (stop or threading.Event()).wait(delay)
            else:
                if failures:
                    self._log_recovery()
                self._answered = True
                return result
        raise ConnectionError(
            f"{self.uri}: given up, because another part of the same transfer failed."
        )

    def _reason_to_repeat(self, error: Exception, of_bucket: bool) -> str:
        """Why this failure may pass, in a few words. Raises what it means if it will not."""
        from google.api_core.exceptions import GoogleAPICallError
        from google.auth.exceptions import GoogleAuthError, TransportError
        from requests.exceptions import InvalidSchema, InvalidURL, MissingSchema

        if isinstance(error, GoogleAPICallError):
            code, words = int(error.code or 0), _words_of_service(error)
            if code in (404, 410) and not of_bucket and "bucket does not exist" not in words:
                raise Missing(words) from error
            if code == 412:
                raise Changed(words) from error
            reason = _reason_of_service(error)
            if (
                code in _TRANSIENT
                or "ratelimit" in f"{reason} {words}".lower().replace("rate limit", "ratelimit")
                or DAMAGED_UPLOAD in words
            ):
                return f"{code} {http.client.responses.get(code, 'error')}"
            raise self._explained(code, words, reason) from error
        unreachable = isinstance(error, TransportError) or isinstance(
            error.__cause__, TransportError
        )
        if isinstance(error, GoogleAuthError) and not unreachable and not error.retryable:
            raise self._credentials(
                str(error.args[0]) if error.args else type(error).__name__
            ) from error
        if isinstance(error, (MissingSchema, InvalidSchema, InvalidURL)):
            raise InputError(
                "STORAGE_EMULATOR_HOST is not a URL. Write it with its scheme, e.g."
                " http://127.0.0.1:9000."
            ) from error
        if type(error).__module__ == "builtins" and not isinstance(
            error, (ConnectionError, TimeoutError)
        ):
            raise error  # this machine's own trouble, such as a file that cannot be read
        reason = _reason_of_connection(error)
        distrusted = any(isinstance(one, ssl.SSLCertVerificationError) for one in causes(error))
        if distrusted and not self._answered:  # else a network that wants one to log in first
            raise InputError(
                f"store {self.uri}: this machine does not trust who answers ({reason}). Is its"
                " clock right? A proxy with certificates of its own needs REQUESTS_CA_BUNDLE=FILE."
            ) from error
        return reason

    def _explained(self, code: int, words: str, reason: str) -> InputError:
        """A refusal, as what a person can do about it. It quotes the service, never the request,
        whose URL may hold a session's secret."""
        store, bucket = f"store {self.uri}", self._bucket
        if code == 404:
            return InputError(
                f"{store}: there is no bucket {bucket}. Create it near the machines: gcloud storage"
                f" buckets create gs://{bucket} --location=REGION, or give --store another one."
            )
        if "requester pays" in words.lower():
            return InputError(
                f"{store}: readers of bucket {bucket} pay for their requests (requester pays). Name"
                " the project that pays: LYCEUM_BILLING_PROJECT=PROJECT."
            )
        if "user project" in words.lower() or "serviceusage.services.use" in words:
            return InputError(
                f"{store}: the project that LYCEUM_BILLING_PROJECT names cannot be billed"
                f" ({words}). Name one that exists and in which you have the role"
                " roles/serviceusage.serviceUsageConsumer."
            )
        if code == 401:
            return self._credentials(words)
        if code == 507 or "quota" in f"{reason} {words}".lower():
            return InputError(
                f"{store}: the store is full or over its quota ({words}). Free some space (lyceum"
                " gc), or raise the quota."
            )
        if "billing" in f"{reason} {words}".lower() or reason == "accountDisabled":
            return InputError(
                f"{store}: billing is disabled for the project of bucket {bucket} ({words}). Enable"
                " it in the Cloud console."
            )
        if code == 403 and "scope" in words.lower():
            return InputError(
                f"{store}: this machine's credentials do not cover Cloud Storage ({words}). Create"
                " the machine with --scopes=cloud-platform."
            )
        if code == 403 and _POLICY.search(f"{reason} {words}"):
            return InputError(
                f"{store}: a policy forbids this, and no role helps ({words}). A store replaces and"
                " deletes objects: take a bucket without retention or holds, on a network that the"
                " organisation allows."
            )
        if code == 403:
            return self._denied(words)
        return InputError(f"{store}: the service refuses the request ({code}: {words}).")

    def _denied(self, words: str) -> InputError:
        found = _DENIED.search(words)
        who = found[1] if found and "@" in found[1] else self._account()
        permission = f"the permission {found[2]}" if found else "a permission"
        role = (
            "roles/storage.bucketViewer"
            if found and found[2].startswith("storage.buckets.")
            else "roles/storage.objectAdmin"
        )
        kind = "serviceAccount" if who.endswith("gserviceaccount.com") else "user"
        return InputError(
            f"store {self.uri}: {who or 'the account in use'} lacks {permission} ({words}). Grant"
            f" it: gcloud storage buckets add-iam-policy-binding gs://{self._bucket}"
            f" --member={kind}:{who or 'ACCOUNT'} --role={role}"
        )

    def _credentials(self, words: str) -> InputError:
        return InputError(
            f"store {self.uri}: there are no valid Google Cloud credentials ({words}). Log in:"
            " gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS to a"
            " key file."
        )

    def _log_outage(self, reason: str, patience: float, since: float) -> None:
        with self._lock:
            if self._silent_since is not None:
                return
            self._silent_since = since
        log.warning(
            "%s does not answer (%s); trying again for up to %s",
            self.uri,
            reason,
            _duration(patience),
        )

    def _log_recovery(self) -> None:
        with self._lock:
            since, self._silent_since = self._silent_since, None
        if since is not None:
            log.warning("%s answers again after %s", self.uri, _duration(time.monotonic() - since))


def in_parallel(
    call: Callable[[T], R], items: Iterable[T], stop: threading.Event | None = None
) -> list[R]:
    """`call(item)` for each item, a few at a time, in the order of items. The first exception sets
    `stop` and ends the rest."""
    with ThreadPoolExecutor(PARALLEL) as pool:
        futures = [pool.submit(call, item) for item in items]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            if stop is not None:
                stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in futures]


def raise_for(answer: Any) -> None:
    """Raise what the client library would raise for an answer that is no success."""
    from google.api_core.exceptions import from_http_response

    if answer.status_code >= 300:
        raise from_http_response(answer)


@functools.cache
def _failures() -> tuple[type[Exception], ...]:
    """The exceptions that a request may raise."""
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import GoogleAuthError
    from requests.exceptions import RequestException
    from urllib3.exceptions import HTTPError

    named = GoogleAPICallError, GoogleAuthError, RequestException, HTTPError
    return (*named, http.client.HTTPException, OSError)


def _words_of_service(error: Any) -> str:
    """The message that the service gave with its refusal, on one line."""
    if error.response is None:
        return "no reason given"
    text = error.response.text
    try:
        text = json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        text = text or "no reason given"
    return " ".join(str(text).split())[:400]


def _reason_of_service(error: Any) -> str:
    """The API's one-word reason, such as `rateLimitExceeded`, or ""."""
    try:
        return str(json.loads(error.response.text)["error"]["errors"][0]["reason"])
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return ""


def _wish_of_service(error: Any) -> float:
    """Seconds that the service asks to be left alone, 0 if it says nothing of the kind."""
    headers = getattr(getattr(error, "response", None), "headers", {})
    seconds = headers.get("Retry-After", "")
    return float(seconds) if seconds.isdecimal() else 0.0


def _reason_of_connection(error: BaseException) -> str:
    """The operating system's words, which lie at the end of a chain of wrappers, or else what kind
    of failure it was."""
    for link in causes(error):
        if isinstance(link, Unusable):
            return str(link)
        if isinstance(link, TimeoutError) or "Timeout" in type(link).__name__:
            return "no answer in time"
        if isinstance(link, OSError) and link.errno is not None and link.strerror:
            return link.strerror
    return "the connection broke"


def _duration(seconds: float) -> str:
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
