"""`[defaults.KIND]`: what the stages of a kind share is said once, and each of them has it."""

from pathlib import Path

import pytest

from flows.recipe.recipe_toml import recipe_toml
from flows.recipe.resolve import resolve
from schemas.base import InputError
from schemas.recipe import parse_recipe

EVALS = """
[defaults.reasoning_eval]
prompt_length = 64
response_length = 32
sampling = { samples = 4, temperature = 0.5 }
suites = [{ name = "procedural", per_domain = 20 }, { name = "procedural", label = "again" }]

[stages.first]
kind = "reasoning_eval"

[stages.second]
kind = "reasoning_eval"
[stages.second.config]
response_length = 48
sampling = { samples = 2 }
suites = [{ name = "procedural", per_domain = 5 }]
"""


@pytest.fixture
def recipe(tiny_recipe: Path) -> Path:
    tiny_recipe.write_text(tiny_recipe.read_text() + EVALS)
    return tiny_recipe


def test_a_stages_own_config_counts_more_key_by_key(recipe: Path) -> None:
    resolved = resolve(str(recipe))
    first, second = (resolved.stage(name).config_json for name in ("first", "second"))
    for one, response_length, samples, suites in ((first, 32, 4, 2), (second, 48, 2, 1)):
        assert (one["prompt_length"], one["response_length"]) == (64, response_length)
        assert one["sampling"] == {"samples": samples, "temperature": 0.5}
        assert len(one["suites"]) == suites, "a list replaces"


def test_defaults_are_the_same_stages_as_the_config_written_out(recipe: Path) -> None:
    """So no stage key, record or report can tell; a record's recipe runs again without them."""
    resolved = resolve(str(recipe))
    written = parse_recipe(recipe_toml(resolved.recipe), "written.toml")
    assert written == resolved.recipe
    assert written.stage("second").config["prompt_length"] == 64


def test_set_reaches_what_the_defaults_say(recipe: Path) -> None:
    """Of all stages that leave it open, or of one; the latter counts, whichever is named first."""
    overrides = [
        "stages.first.config.batch_size=8",
        " defaults.reasoning_eval.batch_size = 16",
        "stages.first.config.suites.0.per_domain=7",
    ]
    resolved = resolve(str(recipe), overrides)
    first, second = (resolved.stage(name).config_json for name in ("first", "second"))
    assert (first["batch_size"], second["batch_size"]) == (8, 16)
    assert first["suites"][0]["per_domain"] == 7


HEAD, BEGINS = "[defaults.reasoning_eval]", r"\(begins with defaults.reasoning_eval\)"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (HEAD, HEAD.replace("v", ""), "_eal: no stage is of that kind. Did you mean 'reasoning_e"),
        (HEAD, f"[defaults]\ngrpo = {{}}\n{HEAD}", "defaults.grpo: no stage is of that kind"),
        (HEAD, "[default.x]", "unknown key 'default'. Did you mean 'defaults'"),
        (HEAD, "[defaults]\nreasoning_eval = 3\n[gate]", "reasoning_eval = 3 must be a table"),
        ("h = 64", "h = 'x'", rf"stages.first.config {BEGINS}: prompt_length = 'x'"),
        ("length = 64", "lenth = 64", rf"{BEGINS}: required key 'prompt_length' is missing"),
        ('label = "again"', 'label = "B"', rf"stages.first {BEGINS}: suites.1"),
    ],
)
def test_what_is_wrong_with_defaults_is_said_where_it_is_written(recipe, old, new, message):
    recipe.write_text(recipe.read_text().replace(old, new))
    with pytest.raises(InputError, match=message):
        resolve(str(recipe))


def test_defaults_that_are_no_table_are_refused(tiny_recipe: Path) -> None:
    tiny_recipe.write_text("defaults = 3\n" + tiny_recipe.read_text())
    with pytest.raises(InputError, match=r"defaults = 3 must be tables such as \[defaults.sft\]"):
        resolve(str(tiny_recipe))
