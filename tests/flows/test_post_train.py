"""The flow's own frame, without Prefect's engine."""

from contextvars import copy_context
from pathlib import Path
from unittest.mock import Mock

import pytest
from prefect.logging import disable_run_logger

from flows.chain import Chain
from flows.post_train import post_train
from flows.preamble import Prepared, handed
from flows.recipe.resolve import resolve
from flows.runs.record import read_runs
from infra.store.store import Store
from tasks.running.watch import Watch


def test_a_store_that_goes_away_before_the_run_begins_ends_it_with_a_message(
    store: Store, tiny_recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a page of Prefect's own code: what is planned asks the store what is there."""
    away = Mock(side_effect=ConnectionError("the store did not answer for 2 min."))
    prepared = Prepared(resolve(str(tiny_recipe)), store, "local", None, ())
    monkeypatch.setattr(type(store), "lookup", away)
    with disable_run_logger(), handed(prepared):
        state = post_train.fn()
    assert state.is_failed()
    assert state.message == "the store did not answer for 2 min."
    assert not store.list_runs()


def test_a_second_ctrl_c_ends_a_run_that_was_stopped(store, tiny_recipe, monkeypatch):
    """It was on record as failed."""

    def walk(chain: Chain, watch: Watch) -> None:
        watch.stop.set()
        raise KeyboardInterrupt

    monkeypatch.setattr(Chain, "walk", walk)
    monkeypatch.setattr("flows.post_train.announce", lambda *given: None)
    prepared = Prepared(resolve(str(tiny_recipe)), store, "local", None, ())
    with disable_run_logger(), handed(prepared), pytest.raises(KeyboardInterrupt):
        copy_context().run(post_train.fn)  # which leaves its watch there
    assert [record.status for record in read_runs(store)] == ["cancelled"]
