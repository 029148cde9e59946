"""Kill the flow process, or the worker under it: the same command ends the work, in the same
bytes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.cli.main import main
from infra.store.store import Store, open_store

ROOT = Path(__file__).resolve().parents[2]
CRASH = Path(__file__).parent / "crash"


class Command:
    """`lyceum run`, where it and its workers can be crashed."""

    def __init__(self, recipe: Path, root: Path) -> None:
        self.recipe, self.root = recipe, root
        self.store_path = root / "store"

    @property
    def store(self) -> Store:
        return open_store(self.store_path, write=False)

    @property
    def arguments(self) -> list[str]:
        return ["run", str(self.recipe), "--store", str(self.store_path), "--json"]

    def crashing(self, *points: tuple[str, str, int, str, str], **settings: str) -> dict[str, str]:
        """An environment. The points fire whenever they are reached, or once each when
        `LYCEUM_CRASH_SPENT` is set."""
        return {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(CRASH)]),
            "LYCEUM_CRASH": json.dumps(points),
            **settings,
        }

    def run(
        self, *points: tuple[str, str, int, str, str], **settings: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "flows.cli.main", *self.arguments],
            env={**os.environ, **self.crashing(*points, **settings)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def digests(self, store: Path | None = None) -> dict[str, Any]:
        return {
            one.kind: one.files
            for one in open_store(store or self.store_path, write=False).artifacts()
        }


@pytest.fixture
def command(prefect_api: str, tiny_recipe: Path, tmp_path: Path) -> Command:
    return Command(tiny_recipe, tmp_path)


def test_a_killed_worker_is_started_again_and_a_killed_flow_is_continued(
    command: Command,
    finished: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two workers die inside a commit; then the flow dies while the second stage works; the same
    command finishes."""
    spent = tmp_path / "spent"
    spent.mkdir()
    killed = command.run(
        ("distill", "os:link", 1, "before", "self"),
        ("distill", "infra.store.store:Store.commit", 1, "after", "self"),
        ("rebalance", "infra.store.store:Store.commit", 1, "before", "parent"),
        LYCEUM_CRASH_SPENT=str(spent),
    )
    assert killed.returncode == -9
    assert "started again" in killed.stderr
    assert len(list(spent.iterdir())) == 3

    assert main(command.arguments) == 0
    assert json.loads(capsys.readouterr().out)["stages"][0]["status"] == "cached"
    assert command.digests() == command.digests(finished[0])


def test_a_worker_that_is_killed_every_time_fails_the_stage(command, monkeypatch, capsys):
    for name, value in command.crashing(
        ("distill", "infra.store.store:Store.commit", 1, "before", "self"), LYCEUM_RESTARTS="1"
    ).items():
        monkeypatch.setenv(name, value)
    assert main(command.arguments) == 1
    stage = json.loads(capsys.readouterr().out)["stages"][0]
    assert stage["status"] == "failed"
    assert "killed by signal 9" in stage["error"]
    assert len(list(command.store.path(f"work/{stage['key']}").glob("*/job.json"))) == 2
