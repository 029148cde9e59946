"""Histories that broke a law of the simulation's which was wrong itself; it is mended, and they
hold."""

from dataclasses import replace
from typing import Any

from tests.simulation.plan import Event, Fault
from tests.simulation.test_found import holds


def test_who_asks_for_a_machine_and_dies_after_the_end_leaves_it_to_gc() -> None:
    """The flow stood still within its request until another had made
    the stage, seen to the end of its job and noted that it ended."""
    pause = Fault("pause", "flow", "ask create", 1, "before", 200.0)
    faults = pause, Fault("kill", "flow", "ask create", 1, "after")
    more: dict[str, Any] = {"stages": 4, "region": "US-WEST4+US-SOUTH1"}
    holds("bucket", "v5e-16", seed=117063418, flows=(0.0, 0.0), faults=faults, **more)


def test_a_request_that_stood_still_on_its_way_may_come_after_the_end() -> None:
    """Another flow took the stage over meanwhile and made it. Nothing
    can be looked at between; the flow deletes the machine when it has heard of it."""
    pause, away = Fault("pause", "flow", "ask create", 1, "before", 200.0), Event("away", 62.4)
    more: dict[str, Any] = {"region": "US", "data": True, "events": (replace(away, seconds=45.0),)}
    holds("bucket", "v5e-8", seed=112028242, flows=(0.0, 59.8), faults=(pause,), **more)


def test_a_deletion_that_stood_still_on_its_way_may_meet_who_took_over() -> None:
    """The flow was stopped, saw that it held the lease, and stood
    still within the request for the deletion of its machine."""
    killed = Fault("kill", "worker", "write journal", 3, "after")
    faults = killed, Fault("pause", "flow", "ask delete", 2, "before", 15.0)
    more: dict[str, Any] = {"flows": (0.0, 0.0), "region": "EUROPE-WEST4", "budget": 0.03}
    events = (Event("cancel", 32.6, "flow 2"),)
    holds("bucket", "v5e-8", seed=118003109, stages=4, faults=faults, events=events, **more)


def test_a_frozen_machine_may_be_deleted_by_whoever_follows_it() -> None:
    """A flow stood still, another took the stage over and followed
    the same machine, which froze until both took it for dead; the first was a moment earlier."""
    plans = (("read lease", 2, 4.5), ("ask get", 1, 10.0), ("write tpu", 2, 10.0))
    for what, count, at in plans:
        pause = Fault("pause", "flow 1", what, count, "after", 15.0)
        frozen = Event("mute", at, "machine 1")
        seed, flows = 112006171, (0.0, 0.0)
        holds("bucket", "v5e-8", seed=seed, flows=flows, faults=(pause,), events=(frozen,))


def test_who_is_stopped_leaves_its_machine_to_who_took_over_and_stands_still() -> None:
    """Its lease ran out while it stood still; the other one looked
    for that machine, and stood still in turn."""
    late = Fault("pause", "flow 2", "ask get", 2, "before", 200.0)
    faults = Fault("pause", "flow", "ask get", 3, "after", 15.0), late
    more: dict[str, Any] = {"region": "NAM4", "data": True, "budget": 0.01}
    events = (Event("cancel", 31.1, "flow 1"),)
    holds(
        "bucket", "v5e-8", seed=120005795, flows=(0.0, 11.2), faults=faults, events=events, **more
    )


def test_who_gave_its_own_job_up_does_not_follow_a_later_one() -> None:
    """A flow that stood still had been passed, gave its own machine
    up and waited; gc took the other's machine, whose flow stood still now, for nobody's."""
    late = Fault("pause", "flow 1", "any", 58, "before", 40.0)
    faults = late, Fault("pause", "flow", "create job", 1, "before", 15.0)
    events = Event("gc", 27.5, amount=1.0), Event("storm", 0.3, seconds=2.0)
    more: dict[str, Any] = {"region": "US-CENTRAL1", "data": True, "events": events}
    holds("bucket", "v5e-8", seed=120092537, flows=(0.0, 0.0), faults=faults, **more)


def test_who_woke_while_the_store_was_away_asks_beside_a_machine_that_it_could_not_see() -> None:
    """It stood still before its request, and until that could be
    sent another one had taken the stage over and was killed; its machine was at work."""
    late = Fault("pause", "flow 1", "create job", 1, "after", 40.0)
    faults = late, Fault("kill", "flow", "write tpu", 3, "after")
    more: dict[str, Any] = {"stages": 3, "region": "NAM4", "cold": True, "flows": (0.0, 0.0)}
    storm = Event("storm", 33.5, seconds=45.0)
    holds("bucket", "v5e-16", seed=120048378, faults=faults, events=(storm,), **more)


def test_gc_knows_no_run_that_listings_do_not_show_yet() -> None:
    """The older run that named the same artifact was dropped."""
    gcs = (Event("gc", at, amount=1.0) for at in (74.5, 57.3))
    events = Event("stale", 18.4, seconds=150.0), *gcs
    more: dict[str, Any] = {"region": "US", "data": True, "stages": 2, "events": events}
    holds("bucket", "local", seed=120039958, flows=(0.0, 49.2), **more)


def test_what_a_plan_has_for_later_does_not_happen_in_the_undisturbed_last_run() -> None:
    """Seed 101005950: the flow ended early, over its budget, and an
    artifact rotted behind the back of the last run, which had verified it."""
    holds(
        "bucket",
        "v5e-16",
        seed=101005950,
        stages=4,
        faults=(Fault("pause", "flow 1", "write tpu", 1, "before", 200.0),),
        events=(Event("damage", 25.5, "artifact 1"),),
        budget=0.03,
    )


def test_what_comes_while_a_flow_stands_still_counts_from_its_next_look() -> None:
    """A machine came while the flow stood still within its request
    for the next one, which was on its way already."""
    pause = Fault("pause", "flow 3", "ask create", 2, "before", 40.0)
    more: dict[str, Any] = {"stages": 4, "flows": (0.0, 0.0, 34.3), "budget": 0.01}
    holds("bucket", "v5e-16", seed=113001053, faults=(pause,), region="US", **more)


def test_an_attempt_whose_worker_never_began_is_one_of_those_that_a_run_has() -> None:
    """Four attempts were lost, the last before its worker began."""
    faults = (
        Fault("kill", "worker", "write journal", 4, "after"),
        Fault("pause", "agent", "write status", 1, "after", 40.0),
        Fault("pause", "agent", "read job", 3, "before", 40.0),
    )
    preempted = Event("preempt", 14.2, "machine 2")
    more: dict[str, Any] = {"stages": 2, "region": "US-CENTRAL1"}
    holds("bucket", "v5e-8", seed=113012774, faults=faults, events=(preempted,), **more)


def test_a_run_that_is_stopped_does_not_make_again_what_is_gone() -> None:
    """Its artifact rotted and was set aside while it stood still."""
    pause = Fault("pause", "flow 1", "write lease", 3, "before", 40.0)
    events = Event("damage", 0.5, "artifact 1"), Event("cancel", 21.8, "flow 1")
    more: dict[str, Any] = {"flows": (0.0, 45.8), "data": True, "events": events}
    holds("bucket", "local", seed=116061865, stages=4, faults=(pause,), **more)


def test_a_flow_that_cannot_read_its_store_may_delete_what_it_follows() -> None:
    """Another flow had taken the job over. Both were refused, and
    each ended its job with what a person has to do."""
    pause = Fault("pause", "flow 2", "ask create", 1, "after", 15.0)
    refusal = Event("refusal", 23.4, "store", seconds=10.0, amount=24.0)
    more: dict[str, Any] = {"stages": 3, "flows": (0.0, 0.0), "region": "US"}
    holds("bucket", "v5e-8", seed=114006941, faults=(pause,), events=(refusal,), **more)


def test_a_file_that_is_being_written_is_as_old_as_its_history_at_most() -> None:
    """`gc` saw the time of the real disk, took the file for weeks old
    and removed it, while a flow stood still for minutes before it gave the file its name."""
    pause = Fault("pause", "flow", "create lease", 4, "after", 200.0)
    more: dict[str, Any] = {"stages": 4, "events": (Event("gc", 39.2, amount=1.0),)}
    holds("directory", "local", seed=115004472, faults=(pause,), **more)


def test_a_holder_may_wake_between_the_look_at_its_lease_and_what_follows() -> None:
    """It renewed its lease a hundredth of a second after another flow
    had seen it silent for long enough, and before that flow's own lease was there."""
    faults = (
        Fault("pause", "flow", "write tpu", 1, "before", 15.0),
        Fault("pause", "flow", "write lease", 2, "before", 15.0),
    )
    more: dict[str, Any] = {"flows": (0.0, 23.7), "region": "US-CENTRAL1", "data": True}
    holds("bucket", "v5e-8", seed=115070723, faults=faults, budget=0.03, **more)


def test_a_run_without_its_record_needs_nothing_though_its_stages_are_there() -> None:
    """`gc --drop-run` removed the record of a run and stood still
    before it removed those of its stages; another `gc` took what only that run had named."""
    pause = Fault("pause", "operator", "remove run", 1, "after", 200.0)
    events = Event("gc", 36.6, amount=1.0), Event("gc", 55.7, amount=1.0)
    more: dict[str, Any] = {"region": "NAM4", "data": True, "events": events}
    holds("bucket", "local", seed=119008511, stages=1, faults=(pause,), **more)


def test_a_run_named_what_it_made_though_that_record_rotted() -> None:
    """Another run made the artifact anew, by force, and the first
    ended meanwhile: its last record names all of its stages again."""
    events = Event("spoil", 27.1), Event("force", 31.7, "flow 1")
    holds("directory", "local", seed=119060969, stages=4, data=True, events=events)


def test_a_record_that_a_power_cut_took_needs_nothing() -> None:
    """`gc --drop-run` of another run, which had made the artifact
    after the cut, removed it."""
    pause = Fault("pause", "flow 2", "read lease", 2, "before", 15.0)
    events = Event("gc", 52.8, amount=1.0), Event("power", 3.8, "laptop")
    more: dict[str, Any] = {"flows": (0.0, 0.0), "data": True, "cold": True, "events": events}
    holds("directory", "local", seed=795822141, stages=2, faults=(pause,), **more)
