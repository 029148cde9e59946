"""Lyceum is installed by a name of its own, which stands in one place beside pyproject.toml."""

import importlib.metadata
import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

from infra.distribution import DISTRIBUTION, EXTRAS, absent, install
from infra.process import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_name_and_version_are_those_of_the_project_and_the_command_keeps_its_own() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert importlib.metadata.version(DISTRIBUTION) == PROJECT["version"]
    assert PROJECT["scripts"] == {"lyceum": "flows.cli:lyceum"}
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[(\d+\.\d+\.\d+)\]", changes, re.M)[0] == PROJECT["version"]


WHEEL = "file:///dist/lyceum_post_training-0.1.0-py3-none-any.whl"
GIT = {"url": "https://u:secret@git.example/l.git", "vcs_info": {"vcs": "git", "commit_id": "c0de"}}


@pytest.mark.parametrize(
    ("recorded", "said"),
    [
        ({"url": WHEEL, "archive_info": {}}, f"pip install '{DISTRIBUTION}[tpu] @ {WHEEL}'"),
        (GIT, f"pip install '{DISTRIBUTION}[tpu] @ git+https://***@git.example/l.git@c0de'"),
        (None, f"pip install '{DISTRIBUTION}[tpu]'"),
    ],
)
def test_an_extra_comes_from_where_lyceum_came(recorded, said, tmp_path, monkeypatch) -> None:
    """The name is not reserved on the index: whoever owned it there would run code here."""
    assert install("tpu") == "`uv sync --extra tpu`"  # these tests run in a checkout
    monkeypatch.setattr("infra.distribution.__file__", str(tmp_path / "infra" / "distribution.py"))
    found = SimpleNamespace(read_text=lambda _: recorded and json.dumps(recorded))
    monkeypatch.setattr("infra.distribution.distribution", lambda _: found)
    assert install("tpu") == f"`{said}`"


def test_what_an_extra_has_is_named_when_an_import_of_it_fails() -> None:
    """Each package of the table comes with its extra and without it not at all."""
    found = importlib.metadata.packages_distributions()
    for extra, modules in EXTRAS.items():
        packages = {Requirement(one).name for one in PROJECT["optional-dependencies"][extra]}
        assert not packages & {Requirement(one).name for one in PROJECT["dependencies"]}
        for module in modules:
            assert module not in found or packages & {*found[module]}, (extra, module)
            error = ModuleNotFoundError(f"No module named {module}", name=f"{module}.part")
            assert f"{module}.part is not installed" in absent(error)
            assert install(extra) in absent(error)
    assert absent(ModuleNotFoundError("No module named 'ours'", name="ours")) == ""


def test_nobody_is_sent_to_the_package_of_another_nor_asks_for_its_metadata() -> None:
    """`pip install lyceum` installs exercises of a French lycée."""
    rooms = ("README.md", "schemas", "infra", "tasks", "flows", "benchmarks", "tests", "docs")
    places = [place for room in rooms for place in ((ROOT / room), *(ROOT / room).rglob("*"))]
    sent = re.compile(r"pip install [\"']?lyceum(?!-post)\b")
    asked = re.compile(r"\b(?:requires|version|distribution|metadata|machine)\([\"']lyceum[\"']")
    for place in places:
        if place.suffix in (".py", ".md", ".ipynb") and place != Path(__file__):
            text = place.read_text(encoding="utf-8")
            assert [*sent.findall(text), *asked.findall(text)] == [], place
