"""What GitHub and pre-commit read of this repository is what they accept."""

import tomllib

import pytest
import yaml

from infra.process import ROOT

FIELDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


def test_hooks_run_what_is_installed() -> None:
    """Local ones: they have the versions of CI, and pre-commit fetches nothing."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert {one["repo"] for one in hooks} == {"local"}
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    for hook in (hook for one in hooks for hook in one["hooks"]):
        assert hook["language"] == "system"
        assert hook["entry"].removeprefix("uv run --no-sync ").split()[0] in groups["ci"]


@pytest.mark.parametrize("name", ["bug", "idea"])
def test_an_issue_template_is_a_form(name: str) -> None:
    form = yaml.safe_load((ROOT / f".github/ISSUE_TEMPLATE/{name}.yml").read_text(encoding="utf-8"))
    assert {"name", "description", "body"} == set(form)
    for field in form["body"]:
        assert field["type"] in FIELDS
        assert field["attributes"].keys() & {"label", "value"}
    ids = [field["id"] for field in form["body"] if "id" in field]
    assert len(ids) == len(set(ids))


def test_the_site_builds_without_a_network() -> None:
    """No fonts of others, no plugin that fetches, no diagrams drawn by a script from elsewhere."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "font: false" in text
    assert "plugins: [search]" in text
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert [one.name for one in pages if "```mermaid" in one.read_text(encoding="utf-8")] == []
