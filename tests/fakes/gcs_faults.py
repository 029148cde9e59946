"""What can go wrong between a client and the fake of Cloud Storage: faults, the requests they
strike, and how often.

Several faults may strike one request: `slow`, then `status` or `reset_before` in place of an
execution, then what changes the execution (`stale`, `partial`, `duplicate`), then what befalls the
answer (`reset_after`, `flip`, `truncate`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tests.fakes.faults import Fault, FaultList, WrongFault
from tests.fakes.gcs_api import KINDS, REQUESTER_PAYS, Call, Request, Response, error_response
from tests.fakes.gcs_buckets import ApiError

STATUSES = {
    400: REQUESTER_PAYS,
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
class GcsFault(Fault):
    """Strikes requests of an HTTP `method` and a `kind` (one of KINDS), None for any, and in whose
    `bucket/object` (for a listing `bucket/prefix`) the `name` occurs."""

    method: str | None = None
    kind: str | None = None

    KNOWN: ClassVar = {
        # answer so, not executed; `message` is by default the service's
        "status": {"code": 503, "retry_after": None, "message": None},
        "reset_before": {},  # connection reset, nothing executed
        "reset_after": {},  # executed, then reset: the acknowledgement is lost
        "slow": {"delay": 0.0},  # wait so many seconds before executing
        "stale": {"changes": 1},  # list the bucket as it was so many changes ago
        "partial": {"keep": None},  # take only the first (half) bytes of a resumable chunk
        "duplicate": {},  # execute twice and send the second answer
        "flip": {},  # flip a bit in the middle of a download; the stored object is sound
        "truncate": {"keep": None},  # end the connection after (half the) bytes of a download
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind not in (None, *KINDS):
            raise WrongFault(f"no kind of request {self.kind!r}; there are {', '.join(KINDS)}")

    def strikes(self, call: Call, request: Request) -> bool:
        """Whether this request is struck; counts it."""
        return (
            self.method in (None, request.method)
            and self.kind in (None, call.kind)
            and (self.name is None or self.name in f"{call.bucket}/{call.name}")
            and self._can_strike(call, request)
            and self.hits()
        )

    def _can_strike(self, call: Call, request: Request) -> bool:
        match self.action:
            case "flip" | "truncate":
                return call.kind == "download"
            case "stale":
                return call.kind == "list"
            case "partial":
                return "upload_id" in request.query and bool(request.body)
        return True


def striking(
    faults: FaultList[GcsFault], call: Call, request: Request
) -> dict[str, dict[str, Any]]:
    """The faults that strike a request: action -> parameters. Of two with one action the older
    counts."""
    with faults.lock:
        found = [fault for fault in faults if fault.strikes(call, request)]
    return {fault.action: fault.parameters for fault in found[::-1]}


def status_response(parameters: Mapping[str, Any], *, media: bool) -> Response:
    """The answer of a `status` fault."""
    code = parameters["code"]
    reason, message = STATUSES.get(code, ("backendError", "Error"))
    error = ApiError(code, reason, parameters["message"] or message)
    response = error_response(error, media=media)
    if parameters["retry_after"] is None:
        return response
    later = {"Retry-After": str(parameters["retry_after"])}
    return replace(response, headers={**response.headers, **later})


def changed_request(request: Request, striking: Mapping[str, Mapping[str, Any]]) -> Request:
    """The request as `stale` and `partial` let it be executed."""
    if "stale" in striking:
        request = replace(request, changes_ago=striking["stale"]["changes"])
    if "partial" in striking:
        keep = striking["partial"]["keep"]
        kept = len(request.body) // 2 if keep is None else keep
        request = replace(request, body=request.body[:kept])
    return request
