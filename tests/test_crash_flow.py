"""Kill the flow process, or the worker under it: the same command ends the work, in the same bytes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from infra.store import Store, open_store

ROOT = Path(__file__).resolve().parent.parent
CRASH = Path(__file__).parent / "crash"


class Command:
    """`lyceum run` in processes of its own, which can be crashed."""

    def __init__(self, recipe: Path, root: Path) -> None:
        self.recipe, self.root = recipe, root
        self.store_path = root / "store"

    @property
    def store(self) -> Store:
        return open_store(self.store_path, write=False)

    def run(self, *points: tuple[str, str, int, str, str], store: Path | None = None, **settings: str) -> subprocess.CompletedProcess[str]:
        """The points fire whenever they are reached, or once each when `LYCEUM_CRASH_SPENT` is set."""
        environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(CRASH)]), "LYCEUM_CRASH": json.dumps(points), **settings}
        return subprocess.run(
            [sys.executable, "-m", "flows.cli", "run", str(self.recipe), "--store", str(store or self.store_path), "--json"],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def digests(self, store: Path | None = None) -> dict[str, Any]:
        return {one.kind: one.files for one in open_store(store or self.store_path, write=False).artifacts()}


@pytest.fixture
def command(prefect_api: str, tiny_recipe: Path, tmp_path: Path) -> Command:
    return Command(tiny_recipe, tmp_path)


def test_a_killed_worker_is_started_again_and_a_killed_flow_is_continued(command: Command, tmp_path: Path) -> None:
    """Two workers die inside a commit; then the flow dies while the second stage works; the same command finishes."""
    spent = tmp_path / "spent"
    spent.mkdir()
    killed = command.run(
        ("distill", "os:link", 1, "before", "self"),
        ("distill", "infra.store:Store.commit", 1, "after", "self"),
        ("rebalance", "infra.store:Store.commit", 1, "before", "parent"),
        LYCEUM_CRASH_SPENT=str(spent),
    )
    assert killed.returncode == -9
    assert "started again" in killed.stderr
    assert len(list(spent.iterdir())) == 3

    done = command.run()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["stages"][0]["status"] == "cached"

    undisturbed = command.run(store=tmp_path / "undisturbed")
    assert undisturbed.returncode == 0, undisturbed.stderr
    assert command.digests() == command.digests(tmp_path / "undisturbed")


def test_a_worker_that_is_killed_every_time_fails_the_stage(command: Command) -> None:
    done = command.run(("distill", "infra.store:Store.commit", 1, "before", "self"), LYCEUM_RESTARTS="1")
    assert done.returncode == 1
    stage = json.loads(done.stdout)["stages"][0]
    assert stage["status"] == "failed"
    assert "killed by signal 9" in stage["error"]
    assert len(list(command.store.path(f"work/{stage['key']}").glob("*/job.json"))) == 2
