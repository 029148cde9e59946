"""Recipes become validated stages, and every mistake is one message that names the value and the
valid choices."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from flows.recipe.overrides import TINY as TINY_SIZES
from flows.recipe.resolve import resolve
from flows.recipe.shipped import shipped_recipes
from schemas.base import InputError
from tests.fakes.recipe import EVALUATED, READS, REWARDED, TINY, TRAINED
from tests.tasks.models.small_model import write_small_model

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"


def test_a_stage_gets_model_and_seed_of_its_recipe_unless_it_sets_them(tiny_recipe: Path) -> None:
    tiny_recipe.write_text("seed = 7\n" + tiny_recipe.read_text(encoding="utf-8"))
    assert [stage.config_json["seed"] for stage in resolve(str(tiny_recipe)).stages] == [7, 7]
    own = resolve(str(tiny_recipe), ["stages.distill.config.seed=3"])
    assert [stage.config_json["seed"] for stage in own.stages] == [3, 7]


@pytest.mark.skipif(not DATA.is_dir(), reason="the recipe reads files that are not here")
def test_a_recipe_with_its_data_resolves() -> None:
    """Without its data every shipped recipe does: test_tiny.py."""
    assert resolve("open_data", data=DATA).stages


def test_an_override_of_a_wrong_type_names_the_override_and_the_field(tiny_recipe: Path) -> None:
    override = "stages.rebalance.config.heldout_fraction=many"
    wrong = f"--set {override}.*heldout_fraction = 'many' is not valid"
    with pytest.raises(InputError, match=wrong):
        resolve(str(tiny_recipe), [override])


@pytest.mark.parametrize(
    ("model", "most"), [("gemma2-2b-it", 8192), ("hf://google/gemma-2-9b", 8192), ("made", 32_768)]
)
def test_a_text_longer_than_its_model_was_made_for_is_refused(tiny_recipe, model, most):
    """A policy's model is the one that its chain began with."""
    tiny_recipe.write_text(tiny_recipe.read_text(encoding="utf-8") + TRAINED + EVALUATED)
    if model == "made":
        model = str(write_small_model(tiny_recipe.parent / model))
    given = [f"model={model}", f"stages.sft.config.sequence_length={most}"]
    assert resolve(str(tiny_recipe), given)
    wrong = f"sft_eval: prompt_length {most} . response_length 64: .* of at most {most} tokens"
    with pytest.raises(InputError, match=wrong):
        resolve(str(tiny_recipe), [*given, f"stages.sft_eval.config.prompt_length={most}"])


def test_an_input_of_the_wrong_kind_is_refused(tiny_recipe: Path) -> None:
    again = '\n[stages.again]\nkind = "rebalance"\ninputs = { examples = "rebalance" }\n'
    tiny_recipe.write_text(tiny_recipe.read_text(encoding="utf-8") + again)
    wrong = "stages.again: inputs.examples = 'rebalance' is of kind .* this input takes distill"
    with pytest.raises(InputError, match=wrong):
        resolve(str(tiny_recipe))


def test_data_files_are_identified_by_content_not_by_place(tmp_path: Path) -> None:
    """The same rows under two directories give the same key; one other byte gives another."""
    recipe = tmp_path / "data.toml"
    recipe.write_text(READS, encoding="utf-8")
    keys = []
    for place, row in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "rows.jsonl").write_text(f'{{"q": "How many?", "a": "{row}"}}\n')
        keys.append(resolve(str(recipe), data=tmp_path / place).stages[0].key({}))
    assert keys[0] == keys[1] != keys[2]


def test_a_recipe_says_how_it_runs_on_a_laptop(tiny_recipe: Path, tmp_path: Path) -> None:
    """`tiny` makes each stage small, then counts [tiny]; what is set beside it counts more,
    wherever it stands."""
    text = tiny_recipe.read_text()
    path = tmp_path / "with_tiny.toml"
    fraction = '"stages.rebalance.config.heldout_fraction" = 0.25'
    path.write_text(f"{text}\n[tiny]\nseed = 5\n{fraction}\n")
    full = resolve(str(path))
    assert full.recipe == resolve(str(tiny_recipe)).recipe
    small = resolve(str(path), ["stages.rebalance.config.heldout_fraction=0.3", "tiny"])
    assert small.recipe.seed == 5
    assert small.stage("rebalance").config_json["heldout_fraction"] == 0.3
    assert resolve(str(path), ["tiny"]).stage("rebalance").config_json["heldout_fraction"] == 0.25
    path.write_text(text + '\n[tiny]\n"stages.nowhere.config.steps" = 5\n')
    wrong = r"stages.nowhere.config.steps \(of \[tiny\]\)': stages has no key 'nowhere'"
    with pytest.raises(InputError, match=wrong):
        resolve(str(path), ["tiny"])


JUDGE = """
[stages.judge]
kind = "reward_model"
inputs = { prompts = "rebalance" }
[stages.judge.config]
steps = 1
batch_size = 4
damaged = 100
prompt_length = 32
response_length = 64
optimizer.learning_rate = 1e-3
"""
JUDGED = 'name = "rubric_judge", judge = { name = "endpoint", provider = "openai", model = "m" }'
CRITERIA = 'criteria = [{ title = "unit", text = "Names the unit." }]'
LEARNED = ', reward_model = "judge"'


@pytest.mark.parametrize(
    ("reward", "inputs", "response", "problem"),
    [
        (JUDGED, "", 64, r"stages\.grpo\.config: reward rubric_judge has no criteria"),
        (f"{JUDGED}, {CRITERIA}", "", 64, None),
        ('name = "reward_model"', "", 64, "needs the input reward_model"),
        ('name = "reward_model"', LEARNED, 65, "at most 64 tokens, and here they have up to 65"),
        ('name = "reward_model"', LEARNED, 64, None),
        ('name = "overlong", cache = 64', "", 64, "cache = 64 tokens must be below"),
    ],
)
def test_a_reward_that_lacks_what_it_needs_is_refused_before_anything_runs(
    tiny_recipe: Path, reward: str, inputs: str, response: int, problem: str | None
) -> None:
    """Not by the stage itself, when all models before it are trained."""
    grpo = REWARDED.format(reward=reward, inputs=inputs, response=response)
    tiny_recipe.write_text(TINY + JUDGE + TRAINED + grpo, encoding="utf-8")
    found = resolve(str(tiny_recipe))
    with pytest.raises(InputError, match=problem) if problem else nullcontext():
        found.foresee(None)


TAUGHT = """
[stages.taught]
kind = "on_policy_distill"
inputs = { policy = "sft", prompts = "rebalance" }
[stages.taught.config]
steps = 1
batch_size = 4
prompt_length = 32
response_length = 64
optimizer.learning_rate = 1e-3
"""


@pytest.mark.parametrize(
    ("more", "change", "problem"),
    [
        (EVALUATED, "", None),  # two rows are held out
        (EVALUATED, "stages.sft_eval.config.min_items=3", r"sft_eval\.config: there are 2 prompts"),
        (EVALUATED, "stages.sft_eval.inputs={ policy = 'sft' }", "there is nothing to ask"),
        (EVALUATED, "stages.sft_eval.kind=safety_eval", r"0 prompts to ask \(0 grounded ones"),
        (TAUGHT, "", "there is no teacher"),
    ],
)
def test_a_stage_that_is_bound_to_fail_is_refused_before_anything_runs(
    tiny_recipe: Path, more: str, change: str, problem: str | None
) -> None:
    """Not by the stage itself, when all models before it are trained."""
    tiny_recipe.write_text(TINY + TRAINED + more, encoding="utf-8")
    found = resolve(str(tiny_recipe), [change] if change else [])
    with pytest.raises(InputError, match=problem) if problem else nullcontext():
        found.foresee(None)


@pytest.mark.parametrize("recipe", shipped_recipes())
def test_no_shipped_recipe_is_bound_to_fail(recipe: str) -> None:
    for overrides in ([], [TINY_SIZES]):
        resolve(recipe, overrides, need_data=False).foresee(None)
