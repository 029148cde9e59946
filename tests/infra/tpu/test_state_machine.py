"""The state machine of a TPU job, exhaustively: every state, with everything that can be seen of
it, has one outcome and says so."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import pytest

from infra.backend import FINAL
from infra.settings import TpuSettings
from infra.tpu.api import GONE, Resource
from infra.tpu.problems import Kind, Problem
from infra.tpu.state_machine import BEFORE, Host, Seen, State, Step, Terms, duration, next_step
from schemas.artifact import ArtifactRef
from schemas.job import JobStatus

REQUESTS = (
    "", "CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE", "FAILED",
    "DELETING", "SUSPENDING", "SUSPENDED", GONE
)  # fmt: skip
NODES = (
    "", "CREATING", "READY", "RESTARTING", "REIMAGING", "DELETING", "REPAIRING", "STOPPED",
    "STOPPING", "STARTING", "PREEMPTED",
    "TERMINATED", "HIDING", "HIDDEN", "UNHIDING", "UNKNOWN", GONE,
)  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
NAME = "projects/p/locations/us-west4-a/queuedResources/lyceum-1"
TERMS = Terms("v5e-8 (spot)", "us-west4-a", TpuSettings(), "`lyceum gc`")
STATES: tuple[State, ...] = get_args(State)
LIVE = STATES[:5]
ENDED: tuple[State, ...] = STATES[5:8]
LEGAL: dict[State, set[State]] = {
    "requested": {"requested", "waiting", "provisioning", "booting", "running", *ENDED},
    "waiting": {"waiting", "provisioning", "booting", "running", "requested", *ENDED},
    "provisioning": {"waiting", "provisioning", "booting", "running", "requested", *ENDED},
    "booting": {"booting", "running", *ENDED},
    "running": {"booting", "running", *ENDED},
}


def status(state: str, **more: object) -> JobStatus:
    return JobStatus.parse({"state": state, "heartbeat": 1.0, **more})


def resource(request: str, node: str = "", kind: Kind | None = None) -> Resource:
    return Resource(NAME, request, node, Problem(kind, f"{kind} in us-west4-a") if kind else None)


def hosts_seen(silent: float) -> Iterator[tuple[Host, ...]]:
    heard = Host(status("running"), silent)
    yield (Host(None, silent),)
    yield (heard,)
    yield (heard, Host(None, silent))
    yield (Host(status("succeeded"), silent),)
    yield (Host(status("failed", error="broken", exit_code=1), silent),)
    yield (Host(status("cancelled"), silent), heard)
    yield (heard, Host(status("failed", error="broken", exit_code=1, lost=True), silent))


def everything(seconds: float) -> Iterator[tuple[State, Seen, Terms]]:
    """Each state with all that can be seen after it has lasted for so long, of a zone with and
    without others behind it."""
    failed = [("FAILED", node, kind) for node in ("", "READY") for kind in (*KINDS, None)]
    others = [(request, node) for request in REQUESTS for node in NODES if request != "FAILED"]
    looks = [None, *itertools.starmap(resource, failed), *itertools.starmap(resource, others)]
    problems = [None, *(Problem(kind, f"{kind} in us-west4-a") for kind in KINDS)]
    zones = [replace(TERMS, more_zones=more) for more in (False, True)]
    for state, look, hosts, terms in itertools.product(LIVE, looks, hosts_seen(seconds), zones):
        for problem in problems if look is None or look.request == GONE else (None,):
            yield state, Seen(seconds, seconds, seconds, look, problem, hosts), terms


@pytest.mark.parametrize("seconds", [0.0, 1e6])
def test_every_state_with_everything_that_can_be_seen_has_one_outcome(seconds: float) -> None:
    count = 0
    for state, seen, terms in everything(seconds):
        count += 1
        step = next_step(state, seen, terms)
        assert step.state in LEGAL[state], (state, seen, step)
        assert (step.status is not None) == (step.state in ENDED)
        assert (step.action == "delete") == (step.state in ENDED)
        moves = step.state == "requested" and step.problem is not None
        assert (step.action == "next_zone") == moves
        assert not moves or (terms.more_zones and state in BEFORE)
        if step.state in ("requested", "waiting", "provisioning", "booting"):
            assert "us-west4-a" in step.phase
        if (last := step.status) is not None:
            assert last.state in FINAL
            if last.state == "failed":
                assert (last.exit_code, last.lost) in ((1, False), (1, True), (2, False))
                assert "us-west4-a" in last.error or "broken" in last.error
        # nothing lasts for ever: a later state, whose time begins anew, another zone, or the end
        assert moves or not seconds or STATES.index(step.state) > STATES.index(state), (state, seen)
    assert count > 15_000


COURSE = [
    ("requested", resource(GONE, GONE), "requested"),
    ("requested", resource("CREATING"), "waiting"),
    ("waiting", resource("ACCEPTED"), "waiting"),
    ("waiting", resource("WAITING_FOR_RESOURCES"), "waiting"),
    ("waiting", resource("PROVISIONING", GONE), "provisioning"),
    ("provisioning", resource("WAITING_FOR_RESOURCES"), "waiting"),
    ("provisioning", resource("ACTIVE", "CREATING"), "provisioning"),
    ("provisioning", resource("ACTIVE", "READY"), "booting"),
    ("waiting", resource("ACTIVE", "READY"), "booting"),
    ("booting", resource("ACTIVE", "REPAIRING"), "booting"),
    ("booting", resource("WAITING_FOR_RESOURCES"), "booting"),  # misreported: it was there before
    ("booting", None, "booting"),
    ("waiting", None, "waiting"),
]


def test_the_usual_course() -> None:
    for state, look, following in COURSE:
        step = next_step(state, Seen(30, resource=look), TERMS)
        assert (step.state, step.status) == (following, None), (state, look)
        assert "v5e-8 (spot) in us-west4-a" in step.phase


@pytest.mark.parametrize("state", LIVE)
def test_what_a_worker_says_counts_before_everything_else(state: State) -> None:
    """It runs whatever the API reports. A TPU that was preempted, or has deleted itself, a moment
    after its job had succeeded is no failure."""
    heard = (Host(status("running")),)
    waiting, ready = resource("WAITING_FOR_RESOURCES"), resource("ACTIVE", "READY")
    for look in (None, waiting, resource("ACTIVE", "CREATING"), resource("ACTIVE", "REPAIRING")):
        assert next_step(state, Seen(0, resource=look, hosts=heard), TERMS) == Step("running")
    ref = ArtifactRef(kind="sft", key="ab" * 32, digest="cd" * 32)
    said = (Host(status("succeeded", artifact=ref.model_dump()), 1e6),)
    for look in (None, resource(GONE, GONE), resource("SUSPENDED", GONE), ready):
        step = next_step(state, Seen(1e6, resource=look, hosts=said), TERMS)
        assert (step.state, step.action, step.status.artifact) == ("done", "delete", ref)


@pytest.mark.parametrize(
    ("look", "following", "words"),
    [
        (resource("ACTIVE", "PREEMPTED"), "preempted", "was preempted"),
        (resource("SUSPENDING", "PREEMPTED"), "preempted", "was preempted"),
        (resource("SUSPENDED", GONE), "preempted", "request is SUSPENDED"),
        (resource("ACTIVE", "TERMINATED"), "preempted", "terminated for maintenance"),
        (resource("ACTIVE", "STOPPED"), "failed", "was stopped"),
        (resource("ACTIVE", "DELETING"), "failed", "being deleted by somebody"),
        (resource("DELETING", "READY"), "failed", "being deleted by somebody"),
        (resource("ACTIVE", GONE), "failed", "has vanished"),
        (resource(GONE, "READY"), "failed", "has vanished"),
        (resource("FAILED", "READY", "unknown"), "failed", "unknown in us-west4-a"),
    ],
)
def test_a_tpu_that_dies_is_lost_and_the_message_says_how(look, following, words):
    running = status("running", progress={"done": 7, "total": 9})
    for state, host in (("booting", Host()), ("running", Host(running))):
        step = next_step(state, Seen(60, 100, 2040, look, hosts=(host,)), TERMS)
        assert (step.state, step.action) == (following, "delete")
        assert_lost(step, words, "v5e-8 (spot) in us-west4-a after 34 min")
        assert step.status.progress.done == (7 if state == "running" else 0)


def assert_lost(step: Step, *words: str) -> None:
    """The job has ended so that another attempt may do better, and says why."""
    assert (step.status.state, step.status.lost, step.status.exit_code) == ("failed", True, 1)
    assert [one for one in words if one not in step.status.error] == []


def test_health_is_told() -> None:
    look = Resource(NAME, "ACTIVE", "TERMINATED", health="UNHEALTHY_MAINTENANCE host error")
    step = next_step("running", Seen(0, 0, 60, look, hosts=(Host(status("running")),)), TERMS)
    assert_lost(step, "(health: UNHEALTHY_MAINTENANCE host error)")


@pytest.mark.parametrize("kind", ["stockout", "quota", "transient", "unknown"])
def test_a_zone_that_refuses_gives_way_to_the_next(kind: Kind) -> None:
    seen = Seen(0, resource=resource("FAILED", kind=kind))
    full = (Problem("stockout", "full in us-central1-a"),)
    for state in BEFORE:
        step = next_step(state, seen, replace(TERMS, more_zones=True))
        assert (step.state, step.action, step.status) == ("requested", "next_zone", None)
        assert step.problem == Problem(kind, f"{kind} in us-west4-a")
        step = next_step(state, seen, replace(TERMS, refusals=full))
        assert_lost(
            step, f"full in us-central1-a\n{kind} in us-west4-a\nRun the same command later"
        )


def test_quotas_that_are_exhausted_everywhere_are_bad_input() -> None:
    """Another attempt would not find more; but where one zone was only full, it might."""
    terms = replace(TERMS, refusals=(Problem("quota", "none in us-central1-a"),))
    step = next_step("requested", Seen(0, problem=Problem("quota", "none in us-west4-a")), terms)
    assert (step.status.lost, step.status.exit_code) == (False, 2)
    assert step.status.error.endswith("`lyceum gc` lists them, and removes them with --delete.")


@pytest.mark.parametrize("kind", ["permission", "invalid", "disabled", "credentials"])
def test_what_only_a_person_can_put_right_is_bad_input_at_once(kind: Kind) -> None:
    """No other zone is tried, and no other attempt made."""
    problem = Problem(kind, f"{kind} in us-west4-a")
    refused = Seen(0, resource=resource("FAILED", kind=kind))
    for state, seen in (("requested", Seen(0, problem=problem)), ("waiting", refused)):
        step = next_step(state, seen, replace(TERMS, more_zones=True))
        last = step.status
        assert (step.state, step.action) == ("failed", "delete")
        assert (last.exit_code, last.lost, last.error) == (2, False, problem.text)


def test_an_api_that_does_not_answer_is_asked_again_for_a_long_time() -> None:
    problem = Problem("transient", "the Cloud TPU API does not answer (UNAVAILABLE)")
    step = next_step("requested", Seen(899, problem=problem), TERMS)
    assert (step.state, step.action) == ("requested", "create")
    assert problem.text in step.phase
    step = next_step("waiting", Seen(899, 899, problem=problem), TERMS)
    assert problem.text in step.phase
    assert "15 min" in step.phase
    assert next_step("requested", Seen(901, problem=problem), TERMS).status.lost
    heard = Seen(1e6, problem=problem, hosts=(Host(status("running")),))
    assert next_step("running", heard, TERMS) == Step("running")


@pytest.mark.parametrize(
    ("state", "look", "limit", "words"),
    [
        ("waiting", resource("WAITING_FOR_RESOURCES"), 3600, "was WAITING_FOR_RESOURCES for"),
        ("waiting", resource("CREATING"), 900, "its request was CREATING for"),
        ("provisioning", resource("PROVISIONING", "CREATING"), 900, "was PROVISIONING for"),
        ("provisioning", resource("ACTIVE", "CREATING"), 900, "its request was ACTIVE for"),
        ("requested", resource(GONE, GONE), 900, "did not appear"),
        ("booting", resource("ACTIVE", "READY"), 900, "no worker was heard of for 15 min"),
    ],
)
def test_what_takes_too_long_is_given_up(state, look, limit, words):
    def after(seconds: float) -> Step:
        unheard = (Host(None, seconds),)
        return next_step(state, Seen(seconds, seconds, resource=look, hosts=unheard), TERMS)

    assert after(limit - 1).status is None
    assert_lost(after(limit + 1), words)


def test_a_request_that_goes_back_and_forth_is_given_up_as_well() -> None:
    """Each time it waits anew, but it has been asked for all the while."""
    look = resource("WAITING_FOR_RESOURCES")
    assert next_step("provisioning", Seen(5, 3599, resource=look), TERMS).state == "waiting"
    assert_lost(next_step("provisioning", Seen(5, 3601, resource=look), TERMS), "for 60 min")


def test_every_host_counts() -> None:
    """One that falls silent is dead, and so is one that never comes up; one that has succeeded may
    be silent; the failure of any is the job's."""
    alive, look = Host(status("running"), 119), resource("ACTIVE", "READY")

    def after(seconds: float, *hosts: Host) -> Step:
        return next_step("running", Seen(seconds, resource=look, hosts=hosts), TERMS)

    assert after(800, alive, Host(), alive) == Step("running")
    silent = after(800, alive, alive, Host(status("running"), 121))
    assert_lost(silent, "host 2 of 3 was not heard of for 2 min")
    assert_lost(after(901, alive, Host(None, 901), alive), "host 1 of 3 never came up")
    assert after(800, alive, Host(status("succeeded"), 1e6)) == Step("running")
    full = after(0, alive, Host(status("failed", error="no space left", exit_code=2)))
    assert (full.state, full.status.exit_code) == ("done", 2)
    assert full.status.error == "host 1 of 2: no space left"
    its_own = status("failed", error="no such teacher", exit_code=2)
    assert after(0, Host(its_own)) == Step("done", "delete", status=its_own)


def test_hosts_that_could_not_be_heard_are_waited_for() -> None:
    """While the store is away no worker can be heard of: machines at work were deleted."""
    look, heard = resource("ACTIVE", "READY"), Host(status("running"))
    for state, hosts in (("booting", (Host(None, 30),)), ("running", (heard, Host(None, 30)))):
        step = next_step(state, Seen(1e6, resource=look, hosts=hosts), TERMS)
        assert (step.state, step.action) == (state, "none")


def test_durations_are_for_people() -> None:
    said = [duration(seconds) for seconds in (0.4, 119, 120, 2040, 7500)]
    assert said == ["0 s", "119 s", "2 min", "34 min", "2 h 5 min"]
