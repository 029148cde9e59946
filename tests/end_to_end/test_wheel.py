"""A release: what `uv build` makes of the last commit, installed with the versions that are pinned
into an empty environment, runs the quickstart in an empty directory (docs/releases.md)."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from infra.process import ROOT
from tasks.rehearsal.environment import XLA_FLAGS

ROOMS = ("schemas", "infra", "tasks", "flows")
NOT_INSTALLED = ("infra/README.md", "infra/terraform/")
"""What is used in a checkout only."""


def sh(*command: str | Path, cwd: Path, **variables: str) -> str:
    """What a command prints, in an environment without Python's and uv's own variables."""
    hidden = ("PYTHON", "VIRTUAL_ENV", "UV_NO_SYNC", "UV_PROJECT_ENVIRONMENT", "LYCEUM_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    ran = subprocess.run(
        list(map(str, command)), cwd=cwd, env=kept | variables, capture_output=True, text=True
    )
    assert ran.returncode == 0, (command, ran.stdout[-2000:], ran.stderr[-4000:])
    return ran.stdout


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a clone and what the commands of docs/releases.md make of it in dist/."""
    place = tmp_path_factory.mktemp("release")
    sh("git", "clone", "--quiet", ROOT, "clone", cwd=place)
    clone = place / "clone"
    if (ROOT / "uv.lock").exists():
        shutil.copy(ROOT / "uv.lock", clone)  # else the index is asked for the same
    steps = (ROOT / "docs" / "releases.md").read_text(encoding="utf-8").split("```")[1].splitlines()
    for step in filter(None, (line.partition("#")[0].strip() for line in steps)):
        sh("bash", "-c", step, cwd=clone)
    return clone / "dist"


def test_all_that_the_rooms_hold_is_in_the_wheel(release: Path) -> None:
    [wheel] = release.glob("*.whl")
    tracked = sh("git", "ls-files", *ROOMS, cwd=ROOT).splitlines()
    wanted = {one for one in tracked if not one.startswith(NOT_INSTALLED)}
    assert wanted - {*zipfile.ZipFile(wheel).namelist()} == set()


def test_the_wheel_runs_the_quickstart_in_an_empty_environment(release, tmp_path):
    [wheel] = release.glob("*.whl")
    pinned = release / "requirements.txt"
    sh("uv", "venv", "--quiet", "--python", sys.executable, "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    install = ("uv", "pip", "install", "--quiet", "--no-deps", "--python", python)
    sh(*install, "-r", pinned, wheel, cwd=tmp_path)

    empty, home = tmp_path / "empty", tmp_path / "home"
    empty.mkdir()
    home.mkdir()
    lyceum = tmp_path / "venv" / "bin" / "lyceum"
    variables = {"HOME": str(home), "PREFECT_HOME": str(home / "prefect")}
    variables |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": XLA_FLAGS}
    recipes = json.loads(sh(lyceum, "recipes", "--json", cwd=empty, **variables))["recipes"]
    shipped = {one.stem for one in (ROOT / "flows" / "recipes").glob("*.toml")}
    assert {one["name"] for one in recipes} == shipped

    steps = {"sft": 40, "simpo": 5, "grpo": 5}
    small = [
        word for one, n in steps.items() for word in ("--set", f"stages.{one}.config.steps={n}")
    ]
    run = (lyceum, "run", "quickstart", "--tiny", *small, "--json")
    ran = json.loads(sh(*run, cwd=empty, **variables))
    assert ran["status"] == "succeeded"
    assert {one["status"] for one in ran["stages"]} == {"ran"}
    assert Path(ran["report"]).read_text(encoding="utf-8").startswith("<!doctype html>")
    where = sh(python, "-c", "import flows; print(flows.__file__)", cwd=empty, **variables)
    assert Path(where.strip()).is_relative_to(tmp_path / "venv")
