"""A store, a recipe, and commands in this process or their own: what tests of flows share."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from flows.cli.main import main
from infra.process import ROOT
from infra.store.store import Store, open_store
from schemas.artifact import Manifest

TEACHER = "{ name = 'procedural', rows = { summarization = 100000 }, grounded = {} }"
SLOW = f"stages.distill.config.teachers=[{', '.join(20 * [TEACHER])}]"
"""An override by which the first stage of the tiny recipe takes minutes."""


class Said(NamedTuple):
    """What a command printed."""

    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object of `--json`."""
        assert self.out.count("\n") == 1
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value


def say(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> Said:
    """Run a command line in this process. It must end with this code, and without a traceback."""
    ended = main([str(one) for one in arguments])
    said = Said(*capsys.readouterr())
    assert (ended, "Traceback" in said.err) == (code, False), said
    return said


class Lab:
    """A store, a recipe, and a way to run it in this process."""

    def __init__(self, root: Path, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.store_path, self.recipe, self._capsys = root / "store", recipe, capsys

    @property
    def store(self) -> Store:
        return open_store(self.store_path, write=False)

    def command(self, *arguments: str) -> list[str]:
        return ["run", str(self.recipe), "--store", str(self.store_path), "--json", *arguments]

    def run(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """What `lyceum run --json` prints."""
        return self.run_command(self.command(*arguments), code)

    def run_people(self, *arguments: str) -> int:
        """The exit code of `lyceum run` as people type it."""
        return main([one for one in self.command(*arguments) if one != "--json"])

    def run_command(self, arguments: list[str], code: int = 0) -> dict[str, Any]:
        """The one JSON object that a command prints; its messages are kept."""
        said = say(self._capsys, *arguments, code=code)
        self.messages = said.err
        return said.json

    def statuses(self, *arguments: str) -> dict[str, str]:
        return {stage["name"]: stage["status"] for stage in self.run(*arguments)["stages"]}

    def artifacts(self, kind: str) -> list[Manifest]:
        return list(self.store.artifacts(kind))


def tree(root: Path) -> dict[str, bytes | None]:
    """Everything below a directory, by relative path."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
    }


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


def start(arguments: list[str]) -> "subprocess.Popen[str]":
    """`lyceum` as a process of its own, in a process group of its own, as a shell would start
    it."""
    command = [sys.executable, "-m", "flows.cli.main", *arguments]
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, start_new_session=True, **piped)
