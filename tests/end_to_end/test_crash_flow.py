"""Kill the flow process, or the worker under it: the same command ends the work, in the same
bytes."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from infra.process import ROOT
from infra.store.store import open_store
from tests.fakes.process import run_python

pytestmark = pytest.mark.usefixtures("prefect_api")

CRASH = Path(__file__).parent / "crash"
Point = tuple[str, str, int, str, str]


def crashing(*points: Point, **settings: str) -> dict[str, str]:
    """An environment. The points fire whenever they are reached, or once each when
    `LYCEUM_CRASH_SPENT` is set."""
    places = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(CRASH)])}
    return {**places, "LYCEUM_CRASH": json.dumps(points), **settings}


def digests(store: Path) -> dict[str, Any]:
    return {one.kind: one.files for one in open_store(store, write=False).artifacts()}


def test_a_killed_worker_is_started_again_and_a_killed_flow_is_continued(lab, finished, tmp_path):
    """Two workers die inside a commit; then the flow dies while the second stage works; the same
    command finishes."""
    spent = tmp_path / "spent"
    spent.mkdir()
    environment = crashing(
        ("distill", "os:link", 1, "before", "self"),
        ("distill", "infra.store.store:Store.commit", 1, "after", "self"),
        ("rebalance", "infra.store.store:Store.commit", 1, "before", "parent"),
        LYCEUM_CRASH_SPENT=str(spent),
    )
    command = ("-m", "flows.cli.main", *lab.command())
    killed = run_python(*command, env=os.environ | environment, timeout=120)
    assert killed.returncode == -9
    assert "started again" in killed.stderr
    assert len(list(spent.iterdir())) == 3

    assert lab.run()["stages"][0]["status"] == "cached"
    assert digests(lab.store_path) == digests(finished[0])


def test_a_worker_that_is_killed_every_time_fails_the_stage(lab, monkeypatch):
    point = ("distill", "infra.store.store:Store.commit", 1, "before", "self")
    for name, value in crashing(point, LYCEUM_RESTARTS="1").items():
        monkeypatch.setenv(name, value)
    stage = lab.run(code=1)["stages"][0]
    assert stage["status"] == "failed"
    assert "killed by signal 9" in stage["error"]
    assert len(list(lab.store.path(f"work/{stage['key']}").glob("*/job.json"))) == 2
