"""The state machine of a TPU job: from observations to the next step. Pure: no clock, no network,
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

The job's own reports count first: a final status ends it, and a changing one shows that it runs,
whatever the API reports. Then the API: a TPU that it reports gone is gone. Then time: no state
lasts for ever. A host counts as silent only while the store answers: else it could not be heard.
A zone without a TPU or quota, or one that keeps a request waiting too long, gives
way to the next as long as no VM has started. A failed job counts as lost, so that another attempt
may succeed, unless a person must solve the problem. After `done`, `failed` and `preempted` comes
the deletion (`infra.tpu.job`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from infra.backend import FINAL
from infra.settings import TpuSettings
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
BEFORE: tuple[State, ...] = ("requested", "waiting", "provisioning")
"""States before any VM has started, in which another zone is as good."""

TAKEN = {
    "PREEMPTED": "was preempted",
    "TERMINATED": "was terminated for maintenance",
    "SUSPENDING": "was preempted (its request is SUSPENDING)",
    "SUSPENDED": "was preempted (its request is SUSPENDED)",
}
"""States of a request or node that the cloud took back."""

DEAD = {
    "STOPPING": "was stopped by somebody",
    "STOPPED": "was stopped by somebody",
    "HIDING": "was hidden by the cloud",
    "HIDDEN": "was hidden by the cloud",
    "DELETING": "is being deleted by somebody",
    GONE: "has vanished: somebody deleted it, or the cloud did",
}
"""States of a request or node that cannot succeed."""

Action = Literal["none", "create", "next_zone", "delete"]


@dataclass(frozen=True)
class Host:
    """One VM: its last status, None without one, and for how many seconds looks that the store
    answered have found no other."""

    status: JobStatus | None = None
    silent: float = 0.0


@dataclass(frozen=True)
class Terms:
    """The terms of a job in one zone.

    Attributes:
        what: for people, e.g. `v5e-8 (spot)`.
        zone: of the request.
        tpu: settings with the limits of time.
        gc: the command that finds what is left of earlier machines.
        more_zones: whether there is another zone to try.
        refusals: why earlier zones failed.
    """

    what: str
    zone: str
    tpu: TpuSettings
    gc: str
    more_zones: bool = False
    refusals: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Seen:
    """Observations of a job at one moment.

    Attributes:
        seconds: since it entered its state.
        asked_seconds: since its request in this zone, which may go back and forth between waiting
            and provisioning.
        active_seconds: since its VMs came up.
        resource: the API's answer; None without one, or without time to ask.
        problem: why the request failed, or why the API did not answer.
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
    """The next step.

    Attributes:
        state: the next state.
        action: what to do: `create` sends the request (again); `next_zone` deletes this one and
            goes on in the next zone; `delete` deletes.
        phase: a text for people while the job is queued.
        status: the job's final status, in the step that ends it.
        problem: why a zone is given up.
    """

    state: State
    action: Action = "none"
    phase: str = ""
    status: JobStatus | None = None
    problem: Problem | None = None


def next_step(state: State, seen: Seen, terms: Terms) -> Step:
    """The transition from a `state` in which the job has not ended; it may stay there."""
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
        last = host.status
        if last is not None and last.state in FINAL:
            if index == 0:
                return last
            if last.state != "succeeded":
                error = f"host {index} of {len(hosts)}: {last.error}"
                return last.model_copy(update={"error": error})
    return None


def _end_by_cloud(state: State, seen: Seen, terms: Terms) -> Step | None:
    """The end of a job whose request or node the API reports dead; None if it is not."""
    resource = seen.resource
    if resource is None or (resource.request == GONE and state == "requested"):
        return None
    if resource.request == "FAILED":
        unsaid = f"the request for {terms.what} in {terms.zone} failed without a reason"
        problem = resource.problem or Problem("unknown", unsaid)
        if state in BEFORE:
            return _refused(problem, terms)
        return _lost("failed", problem.text, seen, terms)
    has_node = resource.request not in (*QUEUED, "PROVISIONING")
    states = (resource.node, resource.request) if has_node else (resource.request,)
    if taken := [TAKEN[one] for one in states if one in TAKEN]:
        return _lost("preempted", f"the TPU {taken[0]}", seen, terms)
    if dead := [DEAD[one] for one in states if one in DEAD]:
        return _lost("failed", f"the TPU {dead[0]}", seen, terms)
    return None


def _before(state: State, seen: Seen, terms: Terms) -> Step:
    """The step before any known VM, with nothing dead."""
    resource, problem, what = seen.resource, seen.problem, f"{terms.what} in {terms.zone}"
    unheard = _silence_of_api(problem)
    if state == "requested" and (resource is None or resource.request == GONE):
        if problem is not None and problem.kind != "transient":
            return _refused(problem, terms)
        if seen.seconds > terms.tpu.boot_seconds:
            never = f"the request was accepted, but did not appear for {duration(seen.seconds)}"
            return _refused(problem or Problem("unknown", f"{what}: {never}"), terms)
        return Step("requested", "create", f"asking for {what}{unheard}")
    following, limit = state, terms.tpu.boot_seconds
    if resource is not None and resource.request in QUEUED:
        following = "waiting"
    elif resource is not None:
        if resource.request != "PROVISIONING" and resource.node not in ("", "CREATING"):
            return Step("booting", phase=f"booting {what}")
        following = "provisioning"
    lasted = seen.seconds if following == state else 0.0
    if following == "waiting":
        lasted = seen.asked_seconds
        if resource is None or resource.request != "CREATING":
            limit = terms.tpu.queue_seconds
    if lasted > limit:
        where = resource.request if resource and resource.request else state
        how = f"its request was {where} for {duration(lasted)}"
        return _refused(Problem("stockout", f"{what}: {how}{unheard}"), terms)
    doing = "provisioning" if following == "provisioning" else "waiting for"
    return Step(following, phase=f"{doing} {what}, {duration(seen.asked_seconds)}{unheard}")


def _booting(state: State, seen: Seen, terms: Terms) -> Step:
    """The step while VMs exist, or have reported, and host 0 has not."""
    unheard = min(seen.seconds, seen.hosts[0].silent)
    if unheard > terms.tpu.boot_seconds:
        return _lost(
            "failed",
            f"no worker was heard of for {duration(unheard)} after the VM had started. If that"
            " happens again: may its service account write to the store, and has its network a way"
            " out? See LYCEUM_TPU_SERVICE_ACCOUNT, LYCEUM_TPU_EXTERNAL_IPS",
            seen,
            terms,
        )
    what = f"booting {terms.what} in {terms.zone}"
    return Step("booting", phase=f"{what}, {duration(seen.seconds)}{_silence_of_api(seen.problem)}")


def _running(state: State, seen: Seen, terms: Terms) -> Step:
    """The step while host 0 has reported, and not its end."""
    for index, host in enumerate(seen.hosts):
        who = f"host {index} of {len(seen.hosts)}" if len(seen.hosts) > 1 else "the VM"
        if host.status is None:
            unheard = min(seen.seconds, host.silent)
            if state == "running" and unheard > terms.tpu.boot_seconds:
                late = f"{who} never came up, {duration(unheard)} after host 0 had"
                return _lost("failed", late, seen, terms)
        elif host.status.state not in FINAL and host.silent > terms.tpu.silence_seconds:
            silent = f"{who} was not heard of for {duration(host.silent)}"
            return _lost("failed", silent, seen, terms)
    return Step("running")


def _refused(problem: Problem, terms: Terms) -> Step:
    """The step after a zone's refusal: the next zone, or the end."""
    if problem.kind in FOR_PEOPLE and problem.kind != "quota":
        return Step("failed", "delete", status=failure(problem.text, exit_code=2), problem=problem)
    if terms.more_zones:
        return Step(
            "requested", "next_zone", f"{problem.text}; trying the next zone", problem=problem
        )
    refusals = (*terms.refusals, problem)
    text = "\n".join(one.text for one in refusals)
    if len(refusals) > 1:
        text = f"no zone has a TPU for this job:\n{text}"
    if any(one.kind == "stockout" for one in refusals):
        text += (
            "\nRun the same command later, or name other zones (LYCEUM_ZONES) or another tier"
            " (LYCEUM_TPU_TIER)."
        )
    if any(one.kind == "quota" for one in refusals):
        text += (
            f"\nMachines of earlier runs hold quota, too: {terms.gc} lists them, and removes them"
            " with --delete."
        )
    hopeless = all(one.kind == "quota" for one in refusals)
    last = failure(text, exit_code=2) if hopeless else failure(text, lost=True)
    return Step("failed", "delete", status=last, problem=problem)


def _lost(state: State, how: str, seen: Seen, terms: Terms) -> Step:
    after = f" after {duration(seen.active_seconds)}" if seen.active_seconds else ""
    health = seen.resource.health if seen.resource is not None else ""
    ill = f" (health: {health})" if health else ""
    text = f"{terms.what} in {terms.zone}{after}: {how}{ill}; what is left of it is being deleted"
    status = failure(text, lost=True)
    if (last := seen.hosts[0].status) is not None:
        status = status.model_copy(update={"progress": last.progress})
    return Step(state, "delete", status=status)


def failure(error: str, exit_code: int = 1, lost: bool = False) -> JobStatus:
    """The final status of a job without a final report of its worker."""
    return JobStatus(state="failed", heartbeat=0.0, error=error, exit_code=exit_code, lost=lost)


def _silence_of_api(problem: Problem | None) -> str:
    silent = problem is not None and problem.kind in ("transient", "credentials")
    return f"; {problem.text}" if problem is not None and silent else ""


def duration(seconds: float) -> str:
    """`40 s`, `34 min`, `2 h 5 min`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
