"""Histories that broke a law once: what was wrong is mended, and they hold now. Plans are written
out, for seeds may come to mean others, and each is played in some courses, for one of them may come
to miss the moment."""

from dataclasses import replace
from typing import Any

from tests.simulation.history import play
from tests.simulation.plan import Event, Fault, Plan
from tests.simulation.shrink import told

COURSES = 4
"""Of each plan: so many seeds, from that of the history that was found."""


def holds(place: str, target: str, **more: Any) -> None:
    """The law does, in histories of one stage and one flow unless it is said otherwise."""
    given: dict[str, Any] = {"seed": 1, "stages": 1, "flows": (0.0,), **more}
    plan = Plan(place=place, target=target, **given)
    for course in range(COURSES):
        result = play(replace(plan, seed=plan.seed + course))
        assert not result.law, told(result)


def test_a_budget_counts_machines_that_nobody_looked_at() -> None:
    """Deletions are not accepted for 150 s, while the next request waits; a flow stands still while
    its machine works, or between a look and what follows from it: that counted for nothing."""
    cloud: dict[str, Any] = {"place": "bucket", "target": "v5e-8", "stages": 3}
    away = (Event("away", 54.0, seconds=150.0),)
    holds(**cloud, seed=400021, budget=0.06, events=away)
    for seed, what, count, seconds in (
        (400034, "write lease", 3, 200.0),
        (400173, "ask get", 1, 40.0),
    ):
        stood_still = Fault("pause", "flow 1", what, count, "after", seconds)
        holds(**cloud, seed=seed, budget=0.01, faults=(stood_still,))


def test_a_budget_counts_machines_of_a_job_that_was_taken_over() -> None:
    """A flow is killed while its request waits; the next one follows the job, asks in another zone,
    and pays for a machine: that counted for the run that was killed."""
    killed = (Fault("kill", "flow 2", "ask delete", 1),)
    stuck = (Event("stuck", 21.7, "machine 1"),)
    more: dict[str, Any] = {"stages": 3, "flows": (0.0, 0.0, 0.0), "budget": 0.01}
    holds("bucket", "v5e-8", seed=4, faults=killed, events=stuck, **more)


def test_a_budget_counts_machines_that_came_while_the_api_was_away() -> None:
    """Its request was given up after a minute of silence, and its machine was there for longer than
    the budget lasts when the API answered again."""
    away = (Event("away", 6.1, seconds=150.0), Event("unbootable", 12.9, "machine 1"))
    more: dict[str, Any] = {"stages": 2, "region": "EUROPE-WEST4", "budget": 0.03}
    holds("bucket", "v5e-8", seed=7009487, events=away, **more)


def test_a_job_that_ended_while_its_flow_stood_still_is_not_asked_for_again() -> None:
    """Within the request: the machine came, worked and went, and another one was asked for."""
    slept = (Fault("pause", "flow 1", "ask get", 1, "before", 200.0),)
    holds("bucket", "v5e-8", seed=40000059, stages=4, flows=(0.0, 35.0), faults=slept)


def test_a_request_is_not_sent_again_for_a_job_that_another_run_has_ended() -> None:
    """A flow stood still within its request; another one took the stage over, cleared what was left
    and began a job of its own; the first woke, and asked for a machine beside it."""
    slept = (Fault("pause", "flow 1", "ask create", 1, "after", 40.0),)
    out = (Event("stockout", 5.0, seconds=45.0),)
    for seed in range(COURSES):
        flows = (0.0, 2.0)
        result = play(Plan(seed, "bucket", "v5e-8", 1, flows, slept, out))
        assert not result.law, told(result)
        asked = [line for line in result.lines if "flow 1: ask create" in line]
        assert len(asked) == 1, told(result)


def test_a_zone_has_its_time_from_the_first_request_on() -> None:
    """A flow stood still after it had given a zone up: that counted for the next one, which was
    asked, and given up at once."""
    stood_still = (Fault("pause", "flow", "ask delete", 1, "after", 200.0),)
    stuck = (Event("stuck", 0.0, "machine 1"),)
    holds("bucket", "v5e-8", seed=500076, faults=stood_still, events=stuck)


def test_a_zone_is_not_given_up_as_soon_as_its_request_is_accepted() -> None:
    """A flow stood still within its request, or the API was away: that counted as the queue's."""
    slept = (Fault("pause", "flow", "ask create", 1, "before", 200.0),)
    holds("bucket", "v5e-8", seed=923193, stages=4, faults=slept)
    away = (Event("away", 42.4, seconds=150.0),)
    holds("bucket", "v5e-8", seed=921917, stages=4, events=away)


def test_a_store_that_is_away_when_a_run_begins_ends_it_with_a_message() -> None:
    """Whether a recipe fits this machine asks the store what is there: the flow raised."""
    storm = (Event("storm", 20.6, seconds=150.0),)
    holds("bucket", "local", seed=910037, flows=(0.0, 37.0), events=storm)


def test_a_run_that_lost_its_lease_and_is_stopped_leaves_the_machine_to_the_other() -> None:
    """A laptop's lid is shut for 15 s, another run takes the job over meanwhile, and Ctrl-C is
    pressed: the machine was deleted, and the other run began again from the last checkpoint."""
    slept = (Fault("pause", "flow 1", "ask get", 4, "after", 15.0),)
    pressed = (Event("cancel", 18.0, "flow 1"),)
    holds("bucket", "v5e-8", seed=3, flows=(0.0, 6.1), faults=slept, events=pressed)


def test_a_flow_that_follows_the_job_of_the_one_that_passed_it_leaves_it_there() -> None:
    """It stood still when it looked whether it held the lease, found the other's job as one that
    had outlived its flow, followed it, and gave it up as one of its own beside the other's."""
    pause = Fault("pause", "flow 1", "read lease", 2, "before", 40.0)
    more: dict[str, Any] = {"stages": 3, "flows": (0.0, 23.8), "region": "US-WEST4+US-SOUTH1"}
    holds("bucket", "v5e-8", seed=105053846, faults=(pause,), data=True, **more)


def test_a_job_that_outlived_its_flow_is_found_though_no_listing_has_it_yet() -> None:
    """Its attempt was a third of a second old: the next flow asked for a machine beside its."""
    killed = (Fault("kill", "flow", "ask create", 4, "after"),)
    events = Event("stale", 17.4, seconds=150.0), Event("night", 1.3, amount=1.0)
    more: dict[str, Any] = {"flows": (0.0, 51.4), "region": "US-WEST4+US-SOUTH1", "budget": 0.03}
    holds("bucket", "v5e-8", seed=110001323, stages=4, faults=killed, events=events, **more)


def test_gc_that_stood_still_reads_again_what_runs_need() -> None:
    """Between its look at the records and its first lease. A run began and ended meanwhile, which
    found a stage done whose artifact gc then removed."""
    pause = Fault("pause", "operator", "create lease", 1, "before", 200.0)
    events = Event("gc", 60.2, amount=1.0), Event("force", 82.7, "flow 1")
    holds("directory", "local", seed=114052066, stages=4, faults=(pause,), events=events)


def test_gc_gives_back_what_a_run_found_before_it_was_set_aside() -> None:
    """A run named an artifact right after gc's look at the records, found it, and had ended when gc
    removed it: the look was less than 3 s old."""
    dropped = Event("gc", 51.8, amount=1.0)
    flows = (0.0, 52.0)
    more: dict[str, Any] = {"flows": flows, "region": "US", "reports": True, "events": (dropped,)}
    holds("bucket", "local", seed=116038322, stages=3, **more)
    events = Event("spoil", 25.5), Event("gc", 49.8, amount=1.0), Event("night", 50.0, amount=2.0)
    killed = (Fault("kill", "flow", "any", 6),)
    more = {"flows": (0.0, 0.0, 0.0), "region": "NAM4", "faults": killed, "events": events}
    holds("bucket", "local", seed=116067310, stages=4, **more)


def test_a_run_that_gc_drops_before_its_entry_is_there_is_no_champion() -> None:
    """`promote` stood still after its last look for the run's record: the champion's run and model
    were gone."""
    still = (Fault("pause", "operator", "create champion", 1, "before", 15.0),)
    events = Event("promote", 60.0), Event("gc", 62.0, amount=1.0)
    for place in ("directory", "bucket"):
        holds(place, "local", stages=3, faults=still, events=events)


def test_a_machine_that_worked_and_went_while_its_flow_stood_still_is_not_asked_for_again() -> None:
    """What a look of before had found counted as its last word; where the store was away when the
    flow woke, none was waited for, and the machine was asked for once more, or in another zone."""
    within_a_look = Fault("pause", "flow 1", "read log", 4, "before", 200.0)
    within_its_request = Fault("pause", "flow 1", "ask get", 1, "before", 200.0)
    for fault, events in (
        (within_a_look, ()),
        (within_its_request, (Event("storm", 199.0, seconds=45.0),)),
        (within_its_request, (Event("storm", 199.0, seconds=10.0),)),
    ):
        for seed in (1, 4):
            result = play(Plan(seed, "bucket", "v5e-8", 1, (0.0,), (fault,), events))
            assert not result.law, told(result)
            assert sum("ask create" in line for line in result.lines) == 1, told(result)


def test_a_run_of_which_all_is_cached_is_on_record_before_it_looks() -> None:
    """Where no Prefect API runs it was when it had ended: gc, which dropped the run that had made
    the artifact, removed it after the other had found it."""
    pause = Fault("pause", "flow 2", "write run", 1, "before", 15.0)
    more: dict[str, Any] = {"events": (Event("gc", 22.0, amount=1.0),), "cold": True}
    holds("directory", "local", flows=(0.0, 20.0), faults=(pause,), **more)
