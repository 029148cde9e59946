"""README.md and the pages: what they link to exists, the commands they show are commands, and the
recipe and the reward that README has a reader write are a recipe and a reward."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from docs import reference
from flows.cli.main import COMMANDS
from flows.cli.options import options_by_name
from flows.recipe.overrides import TINY
from flows.recipe.resolve import resolve
from infra.process import ROOT

PAGES = [ROOT / f"{name}.md" for name in ("README", "infra/README", "benchmarks/README")]
PAGES += [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
PAGES += sorted((ROOT / "docs").glob("*.md"))
NOT_IN_THE_CHECKOUT = {"tasks/rewards/brief.py", "infra/terraform/terraform.tfstate"}
"""What a reader writes, and what Terraform does."""


def block(language: str) -> str:
    """The one fenced block of README in that language."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)
    return str(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_links_to_what_there_is(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if heading:
            titles = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.M)
            anchors = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
            assert heading in anchors, link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_are_commands(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    known = {command.__name__: names.split() for command, names in COMMANDS.items()}
    options = options_by_name()
    for line in re.findall(r"(?:^|`|run |export )lyceum ([a-z]+\b[^`#\n]*)", text, re.M):
        command, *given = re.findall(r"^\w+|--[a-z-]+", line)
        assert command in known, line
        flags = {options[one][0] for names in known[command] for one in names.split("|")}
        assert {*given} <= flags | {"--json", "--help"}, line


def test_pages_that_are_made_are_those_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LYCEUM_STORE", raising=False)
    fix = "run `uv run python -m docs.reference`"
    assert reference.page() == reference.PAGE.read_text(encoding="utf-8"), fix
    assert reference.recipes_page() == reference.RECIPES.read_text(encoding="utf-8"), fix


@pytest.mark.parametrize(
    ("page", "room"),
    [
        ("training", "tasks/stages/*.py"),
        ("rewards", "tasks/rewards/*.py"),
        ("evaluation", "tasks/suites/*.py"),
        ("data", "tasks/checks/*.py"),
        ("data", "tasks/teachers/*.py"),
        ("recipes", "flows/recipes/*.toml"),
        ("architecture", "tasks/*/__init__.py"),
        ("architecture", "flows/*/__init__.py"),
    ],
)
def test_a_page_names_all_that_there_is(page: str, room: str) -> None:
    """What is added is one file, so nobody would think of the page."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    listed = [one for one in ROOT.glob(room) if one.stem != "__init__" or page == "architecture"]
    names = {f"{one.parent.name}/" if one.stem == "__init__" else one.stem for one in listed}
    assert names
    assert sorted(name for name in names if not re.search(rf"[`/]{name}(?:\b|(?<=/))", text)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_paths_that_a_page_names_exist(page: Path) -> None:
    rooms = "schemas|infra|tasks|flows|tests|benchmarks|docs"
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(rf"(?<![\w/.:-])((?:{rooms})/[\w/.-]*\w)", text))
    wrong = [one for one in named - NOT_IN_THE_CHECKOUT if not (ROOT / one).exists()]
    assert [one for one in wrong if not re.search(r"\b[A-Z]+\b", one)] == []  # KIND.py: any of them


def test_the_tests_that_a_page_names_exist() -> None:
    tests = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    known = {*re.findall(r"^def (test_\w+)", "\n".join(tests), re.M)}
    pages = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = {*re.findall(r"`(test_\w+)(?:\[[^`]*\])?`", pages)}
    assert len(named) > 30
    assert sorted(named - known) == []


def test_each_planted_defect_is_named_in_the_test_that_the_page_says() -> None:
    page = (ROOT / "docs" / "rehearsal.md").read_text(encoding="utf-8")
    planted = page.partition("## Planted\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in planted.splitlines() if line.startswith("| ")]
    assert len(rows) > 25
    for what, named, by in rows[1:]:
        files = [path for name in code(by) for path in (ROOT / "tests").rglob(name)]
        assert len(files) >= len(code(by)) > 0, what
        tested = "".join(path.read_text(encoding="utf-8") for path in files)
        for finding in code(named):
            assert finding in tested, f"{what}: {by} says nothing of {finding}"


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_readme_is_read_in_ten_minutes() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 160


def test_the_recipe_of_readme_is_the_one_that_a_tutorial_runs(tmp_path: Path) -> None:
    """`tests/end_to_end/test_notebooks.py` executes that; its recipe has a metric more."""
    notebook = json.loads((ROOT / "docs" / "notebooks" / "own_data.ipynb").read_bytes())
    [cell] = ["".join(one["source"]) for one in notebook["cells"] if one["id"] == "recipe"]
    told = tomllib.loads(re.findall(r'"""(.*?)"""', cell, re.S)[-1])
    assert told["stages"]["sft_eval"]["config"].pop("metrics")
    assert tomllib.loads(block("toml")) == told

    (tmp_path / "mine.toml").write_text(block("toml"), encoding="utf-8")
    (tmp_path / "mine.csv").write_text("question,why,answer\n1+1?,one and one,2\n")
    for overrides in ([], [TINY]):
        assert resolve(str(tmp_path / "mine.toml"), overrides, data=tmp_path).stages
