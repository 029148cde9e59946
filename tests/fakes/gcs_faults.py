"""What can go wrong between a client and the fake of Cloud Storage: faults, the requests they
strike, and how often.

Several faults may strike one request: `slow`, then `status` or `reset_before` in place of an
execution, then what changes the execution (`stale`, `partial`, `duplicate`), then what befalls the
answer (`reset_after`, `flip`, `truncate`).
"""

import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.fakes.gcs_api import KINDS, Call, Request, Response, error_response
from tests.fakes.gcs_buckets import ApiError

PARAMETERS: dict[str, dict[str, Any]] = {
    "status": {"code": 503, "retry_after": None, "reason": None, "message": None},
    "reset_before": {},
    "reset_after": {},
    "slow": {"delay": 0.0, "rate": None},
    "stale": {"changes": 1},
    "partial": {"keep": None},
    "duplicate": {},
    "flip": {"offset": None},
    "truncate": {"keep": None},
}
"""Every fault's own parameters and their defaults; `tests.fakes.gcs_emulator.Faults.add` says what
they mean."""

STATUSES = {
    400: ("required", "Bucket is a requester pays bucket but no user project provided."),
    401: ("authError", "Invalid Credentials"),
    403: (
        "forbidden",
        (
            "anonymous caller does not have access. Permission denied on resource (or it may not"
            " exist)."
        ),
    ),
    404: ("notFound", "The specified bucket does not exist."),
    408: ("requestTimeout", "Request Timeout"),
    429: (
        "rateLimitExceeded",
        "The rate of requests to this bucket exceeded the limit. Please reduce your request rate.",
    ),
    500: ("internalError", "We encountered an internal error. Please try again."),
    502: ("badGateway", "Bad Gateway"),
    503: ("backendError", "We encountered an internal error. Please try again."),
    504: ("gatewayTimeout", "Gateway Timeout"),
    507: ("quotaExceeded", "The storage quota of this project is exhausted."),
}


@dataclass
class Fault:
    """One kind of trouble.

    Attributes:
        action: one of PARAMETERS.
        method: strikes requests of this HTTP method; None for any. Likewise `kind` (one of KINDS).
        name: strikes requests in whose `bucket/object` (for a listing `bucket/prefix`) this occurs;
            None for any.
        skip: how many such requests pass before the first is struck.
        times: strikes at most so often; None for always.
        probability: of striking each, decided by a generator with the seed `seed`.
        fired: how often it struck so far.
    """

    action: str
    method: str | None = None
    kind: str | None = None
    name: str | None = None
    skip: int = 0
    times: int | None = None
    probability: float = 1.0
    seed: int = 0
    parameters: dict[str, Any] = field(default_factory=dict)
    fired: int = 0

    def __post_init__(self) -> None:
        if self.action not in PARAMETERS:
            raise ApiError(
                400, "invalid", f"no fault {self.action!r}; there are {', '.join(PARAMETERS)}"
            )
        if self.kind not in (None, *KINDS):
            raise ApiError(
                400, "invalid", f"no kind of request {self.kind!r}; there are {', '.join(KINDS)}"
            )
        if unknown := set(self.parameters) - set(PARAMETERS[self.action]):
            raise ApiError(
                400,
                "invalid",
                f"{self.action} has no {', '.join(unknown)}; it has"
                f" {', '.join(PARAMETERS[self.action])}",
            )
        self.parameters = PARAMETERS[self.action] | self.parameters
        self._random = random.Random(self.seed)

    def strikes(self, call: Call, request: Request) -> bool:
        """Whether this request is struck; counts it."""
        if (
            self.method not in (None, request.method)
            or self.kind not in (None, call.kind)
            or not self._can_strike(call, request)
        ):
            return False
        if self.name is not None and self.name not in f"{call.bucket}/{call.name}":
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.fired == self.times or self._random.random() >= self.probability:
            return False
        self.fired += 1
        return True

    def _can_strike(self, call: Call, request: Request) -> bool:
        match self.action:
            case "flip" | "truncate":
                return call.kind == "download"
            case "stale":
                return call.kind == "list"
            case "partial":
                return "upload_id" in request.query and request.body.size > 0
        return True


class FaultList:
    """The faults of a server, by number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: dict[int, Fault] = {}
        self._last = 0

    def add(self, wish: Mapping[str, Any]) -> int:
        fault = Fault(**wish)
        with self._lock:
            self._last += 1
            self._faults[self._last] = fault
            return self._last

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()

    def fired(self, number: int) -> int:
        with self._lock:
            if number not in self._faults:
                raise ApiError(404, "notFound", f"no fault {number}")
            return self._faults[number].fired

    def striking(self, call: Call, request: Request) -> dict[str, dict[str, Any]]:
        """The faults that strike this request: action -> parameters. Of two with one action the
        older counts."""
        with self._lock:
            return {
                fault.action: fault.parameters
                for fault in [*self._faults.values()][::-1]
                if fault.strikes(call, request)
            }


def status_response(parameters: Mapping[str, Any], *, media: bool) -> Response:
    """The answer of a `status` fault."""
    reason, message = STATUSES.get(parameters["code"], ("backendError", "Error"))
    error = ApiError(
        parameters["code"], parameters["reason"] or reason, parameters["message"] or message
    )
    response = error_response(error, media=media)
    if parameters["retry_after"] is None:
        return response
    return replace(
        response, headers={**response.headers, "Retry-After": str(parameters["retry_after"])}
    )


def changed_request(request: Request, striking: Mapping[str, Mapping[str, Any]]) -> Request:
    """The request as `stale` and `partial` let it be executed."""
    if "stale" in striking:
        request = replace(request, changes_ago=striking["stale"]["changes"])
    if "partial" in striking:
        keep = striking["partial"]["keep"]
        request = replace(
            request, body=request.body.slice(0, request.body.size // 2 if keep is None else keep)
        )
    return request


def flipped_response(response: Response, parameters: Mapping[str, Any]) -> Response:
    """The answer with one bit changed on its way, if it has a body."""
    if not response.body.size:
        return response
    offset = parameters["offset"]
    return replace(
        response, body=response.body.flipped(response.body.size // 2 if offset is None else offset)
    )
