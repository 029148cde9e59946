"""`--tiny`: every recipe on a laptop, its stages as small as their kinds say, and nothing else of
them changed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.recipe.recipe_toml import recipe_toml
from flows.recipe.resolve import resolve
from flows.recipe.shipped import shipped_recipes, shipped_text
from schemas.base import InputError
from schemas.recipe import parse_recipe
from tasks.contract.kinds import stage_kind
from tasks.contract.small import LAPTOP

SIZES = """
steps batch_size micro_batch_size sampling_batch_size remat lora optimizer
prompt_length response_length sequence_length max_prompt_tokens max_response_tokens
prompts data_pairs damaged samples_per_prompt min_pairs min_items epochs shots sampling first
teachers quotas grounding_quotas suites
"""
RATES = ("learning_rate", "muon_learning_rate")
PROCEDURAL = [
    name for name in shipped_recipes() if "data" in parse_recipe(shipped_text(name), name).tiny
]


def numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], float]]:
    """Each number in a config, and where it is."""
    if isinstance(value, dict | list):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(item, (*path, name))
    elif isinstance(value, int | float):
        yield path, value


@pytest.mark.parametrize("name", shipped_recipes())
def test_small_cuts_sizes_of_every_shipped_stage_and_nothing_else(name: str) -> None:
    for stage in resolve(name, need_data=False).stages:
        check_small(stage.kind, stage.config)


def check_small(name: str, config: Any) -> None:
    kind = stage_kind(name)
    small = kind.small(config, LAPTOP)
    before, after = config.model_dump(mode="json"), small.model_dump(mode="json")
    assert kind.config.parse(after) == small, "it is a valid config, complete"
    assert kind.small(small, LAPTOP) == small
    changed = {field for field in {*before, *after} if before.get(field) != after.get(field)}
    assert changed <= set(SIZES.split())
    whole = dict(numbers(before))
    if before.get("epochs"):  # as steps
        del whole["steps",]
    for place, value in numbers(after):
        assert place[-1] in RATES or value <= whole.get(place, value), place


@pytest.mark.parametrize("name", sorted(shipped_recipes().keys() - {"open_data"}))
def test_every_recipe_is_small_without_data_and_reads_back(name: str) -> None:
    small = resolve(name, ["tiny"])
    models = {getattr(stage.config, "model", None) for stage in small.stages}
    assert models <= {None, "gemma3-tiny"}
    assert parse_recipe(recipe_toml(small.recipe), "written.toml") == small.recipe
    for stage in small.stages if name in PROCEDURAL else ():  # no hub, bucket or file
        teachers = stage.config_json.get("teachers", [{"name": "procedural"}])
        assert [teacher["name"] for teacher in teachers] == ["procedural"]
        assert not stage.config_json.get("near_duplicates")
        suites = {suite["name"] for suite in stage.config_json.get("suites", ())}
        assert suites <= {"injection", "procedural"}


def test_the_table_says_no_more_than_what_changed(tiny_recipe: Path) -> None:
    """A recipe without [tiny] runs small, too; what the file leaves at its default stays there."""
    text = tiny_recipe.read_text().replace("summarization = 60", "summarization = 6000")
    tiny_recipe.write_text(text.replace("train = 20", "train = 2000"))
    small = resolve(str(tiny_recipe), ["tiny"])
    assert small.recipe.stage("rebalance").config == {
        "near_duplicates": False,
        "quotas": {"summarization": {"train": 600, "validation": 1, "heldout": 2}},
    }
    distill = small.stage("distill").config_json["teachers"][0]
    assert distill["rows"] == {"summarization": 1200}


def test_what_is_wrong_is_said_at_its_place(tiny_recipe: Path) -> None:
    """A stage's config is read before it is made small; the message is the one without --tiny."""
    tiny_recipe.write_text(tiny_recipe.read_text().replace("near_duplicates =", "near_duplicate ="))
    said = []
    for overrides in ([], ["tiny"]):
        with pytest.raises(InputError) as error:
            resolve(str(tiny_recipe), overrides)
        said.append(str(error.value).partition("config: unknown key 'near_duplicate'")[2])
    assert said[0] == said[1] != ""


def test_other_data_than_procedural_is_no_word_of_tiny(tiny_recipe: Path) -> None:
    text = tiny_recipe.read_text(encoding="utf-8")
    tiny_recipe.write_text(f'{text}\n[tiny]\ndata = "gsm8k"\n', encoding="utf-8")
    with pytest.raises(InputError, match="data = 'gsm8k': the valid value is 'procedural'"):
        resolve(str(tiny_recipe), ["tiny"])
