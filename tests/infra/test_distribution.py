"""Lyceum is installed by a name of its own, which stands in one place beside pyproject.toml."""

import importlib.metadata
import re
import tomllib

from infra.distribution import DISTRIBUTION, install
from infra.process import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_name_is_that_of_the_project() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert importlib.metadata.version(DISTRIBUTION) == PROJECT["version"]


def test_the_command_keeps_its_own_name() -> None:
    assert PROJECT["scripts"] == {"lyceum": "flows.cli.main:main"}


def test_an_extra_that_is_named_exists() -> None:
    said = install("tpu")
    assert f"pip install '{DISTRIBUTION}[tpu]'" in said
    assert "tpu" in PROJECT["optional-dependencies"]


def test_nobody_is_sent_to_the_package_of_another() -> None:
    """`pip install lyceum` installs exercises of a French lycée."""
    sources = [ROOT / "README.md"]
    for room in ("schemas", "infra", "tasks", "flows", "docs"):
        sources += [
            one for one in (ROOT / room).rglob("*") if one.suffix in (".py", ".md", ".ipynb")
        ]
    wrong = re.compile(r"pip install [\"']?lyceum(?!-post)\b")
    assert [str(one) for one in sources if wrong.search(one.read_text(encoding="utf-8"))] == []


def test_nobody_asks_for_the_metadata_of_another() -> None:
    asked = re.compile(r"\b(?:requires|version|distribution|metadata|machine)\([\"']lyceum[\"']")
    rooms = ("schemas", "infra", "tasks", "flows", "benchmarks", "tests", "docs")
    files = [file for room in rooms for file in (ROOT / room).rglob("*.py")]
    assert [str(one) for one in files if asked.search(one.read_text(encoding="utf-8"))] == []


def test_the_newest_version_of_the_change_log_is_the_projects() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", text, re.M)
    assert versions[0] == PROJECT["version"]
