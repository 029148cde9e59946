"""The state machine of a TPU job: what is seen of it, and what follows. Pure: no clock, no network,
no store.

    requested -> waiting -> provisioning -> booting -> running -> done / failed / preempted ->
    deleted

    requested     the request is being sent; nobody has seen it accepted
    waiting       the request is in the queue of a zone
    provisioning  the cloud is making the TPU
    booting       the VMs are there (and paid for), no worker was heard of
    running       a worker was heard of
    done          the worker said its last word: succeeded, failed or cancelled
    failed        nothing will come of it: refused, lost, or never came up
    preempted     the cloud took the TPU back
    deleted       nothing of it is left

What is said by the job itself counts first: a final status ends it, and one that moves shows that
it runs, whatever the API reports. Then the API: a TPU that it says is gone is gone. Then time: no
state lasts for ever. A zone that has no TPU or no quota, or keeps a request waiting for too long,
gives way to the next one as long as no VM has started. A job is lost, so that another attempt may
do better, unless only a person can put right what is wrong. From `done`, `failed` and `preempted`
on everything there is gets deleted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from infra.backend import FINAL
from infra.tpu.api import GONE, QUEUED, Resource
from infra.tpu.problems import FOR_PEOPLE, Problem
from schemas.job import JobStatus

State = Literal[
    "requested",
    "waiting",
    "provisioning",
    "booting",
    "running",
    "done",
    "failed",
    "preempted",
    "deleted",
]
STATES: tuple[State, ...] = get_args(State)
BEFORE: tuple[State, ...] = ("requested", "waiting", "provisioning")
"""No VM has started yet, so another zone is as good."""
ENDED: tuple[State, ...] = ("done", "failed", "preempted")

TAKEN = {
    "PREEMPTED": "was preempted",
    "TERMINATED": "was terminated for maintenance",
    "SUSPENDING": "was preempted (its request is SUSPENDING)",
    "SUSPENDED": "was preempted (its request is SUSPENDED)",
}
"""States of a request or node that the cloud has taken back."""

DEAD = {
    "STOPPING": "was stopped by somebody",
    "STOPPED": "was stopped by somebody",
    "HIDING": "was hidden by the cloud",
    "HIDDEN": "was hidden by the cloud",
    "DELETING": "is being deleted by somebody",
    GONE: "has vanished: somebody deleted it, or the cloud did",
}
"""States of a request or node that come to no good end."""

Action = Literal["none", "create", "next_zone", "delete"]


@dataclass(frozen=True)
class Host:
    """What is known of one VM: its last status, None when there was none, and for how many seconds
    that has not changed."""

    status: JobStatus | None = None
    silent: float = 0.0


@dataclass(frozen=True)
class Terms:
    """What holds for a job in one zone.

    Attributes:
        what: for people, e.g. `v5e-8 (spot)`.
        zone: where it was asked for.
        more_zones: there is another zone to try.
        refusals: what became of the zones before.
        queue_seconds, boot_seconds, silence_seconds: see TpuSettings.
    """

    what: str
    zone: str
    more_zones: bool = False
    refusals: tuple[Problem, ...] = ()
    queue_seconds: float = 3600.0
    boot_seconds: float = 900.0
    silence_seconds: float = 120.0


@dataclass(frozen=True)
class Seen:
    """What is seen of a job at one moment.

    Attributes:
        seconds: for how long it has been in its state.
        asked_seconds: for how long it has been asked for in this zone: requests go back and forth
            between waiting and provisioning.
        active_seconds: for how long its VMs have been there.
        resource: what the API says; None when it did not say anything, or there was no time to ask.
        problem: why the request could not be made, or why the API said nothing.
        hosts: one for each VM.
    """

    seconds: float
    asked_seconds: float = 0.0
    active_seconds: float = 0.0
    resource: Resource | None = None
    problem: Problem | None = None
    hosts: Sequence[Host] = (Host(),)


@dataclass(frozen=True)
class Step:
    """What follows.

    Attributes:
        state: the next state.
        action: what to do: `create` sends the request (again); `next_zone` deletes this one and
            goes on in the next zone; `delete` deletes.
        phase: what people are told while the job is queued.
        status: the job's final status, in the moment in which it ends.
        problem: why a zone is given up.
    """

    state: State
    action: Action = "none"
    phase: str = ""
    status: JobStatus | None = None
    problem: Problem | None = None


def next_step(state: State, seen: Seen, terms: Terms) -> Step:
    """The transition out of `state`, which may lead back to it."""
    if state in ENDED:
        left = seen.resource is None or (seen.resource.request, seen.resource.node) != (GONE, GONE)
        return Step(state, "delete") if left else Step("deleted")
    if state == "deleted":
        return Step(state)
    if (last := _last_word(seen.hosts)) is not None:
        return Step("preempted" if last.lost else "done", "delete", status=last)
    if (end := _end_by_cloud(state, seen, terms)) is not None:
        return end
    if seen.hosts[0].status is not None:
        return _running(state, seen, terms)
    return _before(state, seen, terms) if state in BEFORE else _booting(state, seen, terms)


def _last_word(hosts: Sequence[Host]) -> JobStatus | None:
    """The final status of the job: host 0's, or that of another host that failed."""
    for index, host in enumerate(hosts):
        if (
            host.status is not None
            and host.status.state in FINAL
            and (index == 0 or host.status.state != "succeeded")
        ):
            error = host.status.error
            return (
                host.status
                if index == 0
                else host.status.model_copy(
                    update={"error": f"host {index} of {len(hosts)}: {error}"}
                )
            )
    return None


def _end_by_cloud(state: State, seen: Seen, terms: Terms) -> Step | None:
    """The end of a job whose request or node is dead by what the API says; None if it is not."""
    resource = seen.resource
    if resource is None or (resource.request == GONE and state == "requested"):
        return None
    if resource.request == "FAILED":
        problem = resource.problem or Problem(
            "unknown", f"the request for {terms.what} in {terms.zone} failed without a reason"
        )
        return (
            _refused(problem, terms)
            if state in BEFORE
            else _lost("failed", problem.text, seen, terms)
        )
    states = (
        (resource.request,)
        if resource.request in QUEUED or resource.request == "PROVISIONING"
        else (resource.node, resource.request)
    )
    if taken := [TAKEN[one] for one in states if one in TAKEN]:
        return _lost("preempted", f"the TPU {taken[0]}", seen, terms)
    if dead := [DEAD[one] for one in states if one in DEAD]:
        return _lost("failed", f"the TPU {dead[0]}", seen, terms)
    return None


def _before(state: State, seen: Seen, terms: Terms) -> Step:
    """No VM yet, as far as was known, and nothing dead."""
    resource, problem = seen.resource, seen.problem
    if state == "requested" and (resource is None or resource.request == GONE):
        if problem is not None and problem.kind != "transient":
            return _refused(problem, terms)
        if seen.seconds > terms.boot_seconds:
            never = (
                f"{terms.what} in {terms.zone}: the request was accepted, but did not appear for"
                f" {duration(seen.seconds)}"
            )
            return _refused(problem or Problem("unknown", never), terms)
        return Step(
            "requested",
            "create",
            f"asking for {terms.what} in {terms.zone}{_silence_of_api(problem)}",
        )
    if resource is None:
        following: State = state
    elif resource.request in QUEUED:
        following = "waiting"
    elif resource.request == "PROVISIONING" or resource.node in ("", "CREATING"):
        following = "provisioning"
    else:
        return Step("booting", phase=f"booting {terms.what} in {terms.zone}")
    creating = resource is not None and resource.request == "CREATING"
    lasted = (
        seen.asked_seconds
        if following == "waiting"
        else seen.seconds
        if following == state
        else 0.0
    )
    if lasted > (
        terms.queue_seconds if following == "waiting" and not creating else terms.boot_seconds
    ):
        how = (
            f"its request was {resource.request if resource and resource.request else state} for"
            f" {duration(lasted)}"
        )
        return _refused(
            Problem("stockout", f"{terms.what} in {terms.zone}: {how}{_silence_of_api(problem)}"),
            terms,
        )
    doing = "provisioning" if following == "provisioning" else "waiting for"
    return Step(
        following,
        phase=(
            f"{doing} {terms.what} in {terms.zone},"
            f" {duration(seen.asked_seconds)}{_silence_of_api(problem)}"
        ),
    )


def _booting(state: State, seen: Seen, terms: Terms) -> Step:
    """The VMs are there, or were heard of, and host 0 says nothing."""
    if seen.seconds > terms.boot_seconds:
        return _lost(
            "failed",
            f"no worker was heard of for {duration(seen.seconds)} after the VM had started. If that"
            " happens again: may its service account write to the store, and has its network a way"
            " out? See LYCEUM_TPU_SERVICE_ACCOUNT, LYCEUM_TPU_EXTERNAL_IPS",
            seen,
            terms,
        )
    return Step(
        "booting",
        phase=(
            f"booting {terms.what} in {terms.zone},"
            f" {duration(seen.seconds)}{_silence_of_api(seen.problem)}"
        ),
    )


def _running(state: State, seen: Seen, terms: Terms) -> Step:
    """Host 0 was heard of, and has not said its last word."""
    for index, host in enumerate(seen.hosts):
        who = f"host {index} of {len(seen.hosts)}" if len(seen.hosts) > 1 else "the VM"
        if (
            host.status is not None
            and host.status.state not in FINAL
            and host.silent > terms.silence_seconds
        ):
            return _lost(
                "failed", f"{who} was not heard of for {duration(host.silent)}", seen, terms
            )
        if host.status is None and state == "running" and seen.seconds > terms.boot_seconds:
            return _lost(
                "failed",
                f"{who} never came up, {duration(seen.seconds)} after host 0 had",
                seen,
                terms,
            )
    return Step("running")


def _refused(problem: Problem, terms: Terms) -> Step:
    """The zone gives no TPU: on to the next, or the end."""
    if problem.kind in FOR_PEOPLE and problem.kind != "quota":
        return Step("failed", "delete", status=_failure(problem.text, exit_code=2), problem=problem)
    if terms.more_zones:
        return Step(
            "requested", "next_zone", f"{problem.text}; trying the next zone", problem=problem
        )
    refusals = (*terms.refusals, problem)
    text = (
        refusals[0].text
        if len(refusals) == 1
        else "\n".join(["no zone has a TPU for this job:", *(one.text for one in refusals)])
    )
    if all(one.kind == "quota" for one in refusals):
        return Step("failed", "delete", status=_failure(text, exit_code=2), problem=problem)
    return Step("failed", "delete", status=_failure(text, lost=True), problem=problem)


def _lost(state: State, how: str, seen: Seen, terms: Terms) -> Step:
    after = f" after {duration(seen.active_seconds)}" if seen.active_seconds else ""
    ill = (
        f" (health: {seen.resource.health})"
        if seen.resource is not None and seen.resource.health
        else ""
    )
    text = f"{terms.what} in {terms.zone}{after}: {how}{ill}; what is left of it is being deleted"
    last = seen.hosts[0].status
    status = _failure(text, lost=True)
    return Step(
        state,
        "delete",
        status=(
            status.model_copy(update={"progress": last.progress}) if last is not None else status
        ),
    )


def _failure(error: str, exit_code: int = 1, lost: bool = False) -> JobStatus:
    return JobStatus(state="failed", heartbeat=0.0, error=error, exit_code=exit_code, lost=lost)


def _silence_of_api(problem: Problem | None) -> str:
    return f"; {problem.text}" if problem is not None and problem.kind == "transient" else ""


def duration(seconds: float) -> str:
    """`40 s`, `34 min`, `2 h 5 min`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
