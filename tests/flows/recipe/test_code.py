"""Code that a recipe names: found beside it or in the data directory, part of the stage key, and
run for nobody who did not name it, too."""

from dataclasses import replace
from pathlib import Path

import pytest

from flows.post_train import post_train
from flows.preamble import Parameters, prepare
from flows.recipe.resolve import resolve
from schemas.base import InputError
from tests.fakes.recipe import REWARDED, TINY, TRAINED

OWN = 'name = "function", path = "mine.py:reward_fn"'
RECIPE = TINY + TRAINED + REWARDED.format(inputs="", response=64, reward=OWN)
MEASURED = """
[stages.grpo_eval]
kind = "reasoning_eval"
inputs = { policy = "grpo", prompts = "rebalance" }
[stages.grpo_eval.config]
prompt_length = 64
response_length = 64
min_items = 2
metrics = [{ name = "function", path = "metrics.py:brevity" }]
[[gate.must_win]]
metric = "%s"
"""
BREVITY = "def brevity(completions, **_):\n    return [-len(one) for one in completions]\n"
MINE = "def reward_fn(completions, **columns):\n    return [float(len(x)) for x in completions]\n"
PATH = 'stages.grpo.config.rewards=[{ name = "function", path = "%s" }]'


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.py").write_text(MINE, encoding="utf-8")
    (tmp_path / "own" / "own.toml").write_text(RECIPE, encoding="utf-8")
    return tmp_path / "own" / "own.toml"


def key(recipe: Path) -> str:
    return resolve(str(recipe)).stage("grpo").key({"policy": "1", "prompts": "2"})


def test_the_files_text_is_part_of_the_key_and_its_place_is_not(recipe, tmp_path):
    resolved = resolve(str(recipe))
    table = resolved.stage("grpo").config_json["rewards"][0]
    assert (table["path"], table["source"]) == ("mine.py:reward_fn", MINE)
    written = resolved.recipe.stage("grpo").config["rewards"][0]
    assert "source" not in written  # what the run record has is the recipe as it was written
    before = key(recipe)
    moved = recipe.parent.rename(tmp_path / "elsewhere")
    assert key(moved / "own.toml") == before
    (moved / "mine.py").write_text(MINE + "\n", encoding="utf-8")
    assert key(moved / "own.toml") != before


def test_small_runs_have_the_same_code_and_it_may_lie_in_the_data_directory(recipe, tmp_path):
    small = resolve(str(recipe), ["tiny"]).stage("grpo").config_json
    assert small["rewards"][0]["source"] == MINE
    data = tmp_path / "data"
    (data / "rewards").mkdir(parents=True)
    (data / "rewards" / "mine.py").write_text(MINE, encoding="utf-8")
    override = PATH % "rewards/mine.py:reward_fn"
    config = resolve(str(recipe), [override], data).stage("grpo").config_json
    assert config["rewards"][0]["source"] == MINE
    with pytest.raises(InputError, match=r"there is no file rewards/mine.py in .*own"):
        resolve(str(recipe), [override])


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("../mine.py:reward_fn", "stays beside the recipe or below --data"),
        ("/etc/mine.py:reward_fn", "stays beside the recipe or below --data"),
        ("own.toml:reward_fn", r'not of the form "FILE.py:FUNCTION"'),
        ("link.py:reward_fn", "a link that leads out of"),
        ("gone.py:reward_fn", "there is no file gone.py"),
        ("empty.py:reward_fn", "is empty"),
        ("loop.py:reward_fn", "there is no file loop.py"),
        (f"{'x' * 300}.py:reward_fn", "there is no file x"),
        ("mine.py:other", "has no function 'other' at its top level; it has: reward_fn"),
    ],
)
def test_no_path_leads_elsewhere(recipe: Path, tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    (recipe.parent / "link.py").symlink_to(tmp_path / "mine.py")
    (recipe.parent / "loop.py").symlink_to("loop.py")
    (recipe.parent / "empty.py").write_text("\n", encoding="utf-8")
    with pytest.raises(InputError, match=message):
        resolve(str(recipe), [PATH % path])


def test_a_recipe_holds_no_code_itself(recipe: Path) -> None:
    table = '[{ name = "function", path = "mine.py:reward_fn", source = "def reward_fn(): ..." }]'
    with pytest.raises(InputError, match="source: code is a file of its own"):
        resolve(str(recipe), [f"stages.grpo.config.rewards={table}"])


def test_a_metric_is_found_hashed_and_asked_consent_for_as_a_reward_is(recipe, tmp_path, lyceum):
    recipe.write_text(RECIPE + MEASURED % "brevity", encoding="utf-8")
    with pytest.raises(InputError, match=r"config.metrics.0.path: there is no file metrics.py"):
        resolve(str(recipe))
    (recipe.parent / "metrics.py").write_text(BREVITY, encoding="utf-8")
    wrong = recipe.with_name("wrong.toml")
    wrong.write_text(RECIPE + MEASURED % "brevty")
    with pytest.raises(InputError, match=r"'brevty' is nothing that a gate .* 'brevity'"):
        resolve(str(wrong))
    stage = resolve(str(recipe)).stage("grpo_eval")
    assert stage.config_json["metrics"][0]["source"] == BREVITY
    before = stage.key({"policy": "1", "prompts": "2"})
    (recipe.parent / "metrics.py").write_text(BREVITY + "\n", encoding="utf-8")
    assert resolve(str(recipe)).stage("grpo_eval").key({"policy": "1", "prompts": "2"}) != before
    named = ["--code", recipe.parent / "mine.py", "--store", tmp_path / "store"]
    said = lyceum("run", recipe, *named, code=2).err
    assert "stages.grpo_eval runs code with all your rights" in said
    for more in (', source = ""', ""):
        table = f'{{ path = "metrics.py:brevity"{more} }}'
        with pytest.raises(InputError, match=r"metrics\.0\.name"):
            resolve(str(recipe), [f"stages.grpo_eval.config.metrics=[{table}]"])


def test_a_run_begins_only_when_its_file_is_named(recipe, tmp_path, lyceum, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other, where = recipe.parent / "other.py", [recipe, "--store", tmp_path / "store"]
    other.write_text(MINE, encoding="utf-8")
    for named in ([], ["--code", other]):
        told = lyceum("run", *where, *named, code=2).err
        assert f"stages.grpo runs code with all your rights: {recipe.parent / 'mine.py'}" in told
        assert "--code own/mine.py allows it" in told, "as it is typed from here"
    both = ["--code", recipe.parent / "mine.py", "--code", other]
    assert f"--code {other}: no stage runs it" in lyceum("run", *where, *both, code=2).err
    (tmp_path / "loop.py").symlink_to("loop.py")
    for none in ("loop.py", "x" * 300):
        told = lyceum("run", *where, *both[:2], "--code", none, code=2).err
        assert "there is no such file" in told
    assert not (tmp_path / "store").exists()
    lyceum("plan", *where)  # runs nothing


def test_what_nobody_watches_runs_no_code(recipe: Path, tmp_path: Path) -> None:
    """A flow of a deployment, whatever its form says."""
    asked = Parameters(str(recipe), "local", str(tmp_path / "store"))
    with pytest.raises(InputError, match="no deployment, no schedule"):
        prepare(asked)
    shipped = PATH % "mine.py:reward_fn"
    data = str(recipe.parent)
    with pytest.raises(InputError, match="no deployment, no schedule"):
        prepare(replace(asked, recipe="quickstart", overrides=(shipped,), data=data))
    assert "code" not in post_train.parameters.properties
    prepare(asked, [recipe.parent / "mine.py"])
