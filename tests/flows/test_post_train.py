"""The flow's own frame, without Prefect's engine."""

from contextvars import copy_context
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from prefect.exceptions import Pause
from prefect.logging import disable_run_logger
from prefect.states import Running

from flows import ending
from flows.chain import Chain
from flows.post_train import post_train
from flows.preamble import Parameters, handed, prepare
from flows.recipe.resolve import resolve
from flows.runs.record import RunLog, read_runs
from flows.trackers import followed
from infra.store.store import Store
from tasks.running.watch import WATCH, Watch
from tests.fakes.trackers import Trackio


def test_a_store_that_goes_away_before_the_run_begins_ends_it_with_a_message(
    store: Store, tiny_recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a page of Prefect's own code: what is planned asks the store what is there."""
    away = Mock(side_effect=ConnectionError("the store did not answer for 2 min."))
    prepared = prepare(Parameters(str(tiny_recipe), "local", store.uri))
    monkeypatch.setattr(type(store), "lookup", away)
    with disable_run_logger(), handed(prepared):
        state = post_train.fn()
    assert state.is_failed()
    assert state.message == "the store did not answer for 2 min."
    assert not store.list_runs()


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt, "cancelled"), (RuntimeError, "failed")]
)
def test_a_flow_that_is_broken_off_ends_its_run_at_its_trackers_too(
    store, tiny_recipe, monkeypatch, error, status
):
    """A second Ctrl-C was on record as failed; of a flow that crashed a tracker said that it runs
    for ever."""
    (fake := Trackio()).install(monkeypatch)

    def walk(chain: Chain, watch: Watch) -> None:
        if error is KeyboardInterrupt:
            watch.stop.set()
        raise error

    monkeypatch.setattr(Chain, "walk", walk)
    monkeypatch.setattr("flows.post_train.announce", lambda *given: None)
    prepared = prepare(Parameters(str(tiny_recipe), "local", store.uri))
    with disable_run_logger(), handed(prepared):
        context = copy_context()
        context.run(WATCH.set, followed(Watch()))
        with pytest.raises(error):
            context.run(post_train.fn)
    assert [record.status for record in read_runs(store)] == [status]
    assert (len(fake.runs), fake.finished) == (1, 1)


def test_a_run_that_prefect_suspends_is_paused(store, tiny_recipe, monkeypatch):
    """It was on record as failed, without a reason, and no machine was waited for."""
    stage = Mock(state=Running(), wait=Mock(side_effect=Pause))
    monkeypatch.setattr("flows.post_train.Chain", partial(Chain, submit=lambda job: stage))
    monkeypatch.setattr("flows.post_train.announce", lambda *given: None)
    prepared = prepare(Parameters(str(tiny_recipe), "local", store.uri))
    with disable_run_logger(), handed(prepared):
        context = copy_context()
        context.run(WATCH.set, Watch())
        assert context.run(post_train.fn).is_cancelled()
    assert [record.status for record in read_runs(store)] == ["paused"]


def test_a_report_that_crashes_leaves_no_tracker_open(store, tiny_recipe, monkeypatch):
    (fake := Trackio()).install(monkeypatch)
    run = RunLog(store, resolve(str(tiny_recipe)), "local", followed(Watch()).record)
    run.finish("succeeded")
    monkeypatch.setattr(ending, "read_results", Mock(side_effect=RuntimeError))
    with pytest.raises(RuntimeError):
        ending.report_run(store, run, lambda about, why: None)
    assert fake.finished == 1
