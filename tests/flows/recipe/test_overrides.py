"""`--set` changes one value of a recipe, or says what is wrong."""

import copy
from typing import Any

import pytest

from flows.recipe.overrides import apply_override
from schemas.base import InputError


@pytest.fixture
def table() -> dict[str, Any]:
    distill = {"kind": "distill", "config": {"teachers": [{"name": "procedural"}]}}
    return {"name": "tiny", "stages": {"distill": distill, "rebalance": {"kind": "rebalance"}}}


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("seed=5", 5),
        ("model=gemma3-tiny", "gemma3-tiny"),
        ("stages.rebalance.config.heldout_fraction=0.25", 0.25),
        ("stages.rebalance.config.quotas.math.train = 4", 4),
        ("stages.distill.config.teachers.0.rows={ math = 5 }", {"math": 5}),
        ("stages.distill.config.teachers.0.name='a b'", "a b"),
        ("stages.rebalance.inputs.examples=other", "other"),
    ],
)
def test_overrides_change_one_value(table: dict[str, Any], override: str, value: object) -> None:
    """`--set` values are TOML; bare words are strings."""
    apply_override(table, override, table["stages"])
    found: Any = table
    for part in override.partition("=")[0].strip().split("."):
        found = found[int(part) if part.isdecimal() else part]
    assert found == value


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stages.rebalance.kind=a=b", "is no TOML value"),
        ("seed", "is not of the form path=value"),
        ("=3", "is not of the form path=value"),
        ("stages..config=3", "is not of the form path=value"),
        (
            "sead=3",
            "recipe has no key 'sead'. Did you mean 'seed'? Valid: defaults, gate, model, name,"
            " seed, stages.",
        ),
        ("seed.low=3", "'seed' has no keys below it. Keys lie below stages, defaults and gate"),
        ("sedd.low=3", "recipe has no key 'sedd'"),
        ("stages.sft.config.steps=3", "stages has no key 'sft'. Valid: distill, rebalance."),
        ("stages.distill=3", "is a table; name a key in it"),
        ("stages.distill.confg.seed=3", "Did you mean 'config'? Valid: config, inputs, kind."),
        ("stages.distill.config.teachers.1.rows=3", "of 1; '1' is not an index below 1"),
        (f"stages.distill.config.teachers.{'9' * 4500}=3", "is not an index below 1"),
        ("stages.distill.config.teachers.name=3", "of 1; 'name' is not an index below 1"),
        ("stages.distill.kind.name=3", "= 'distill' is a value, it has no key 'name'"),
        ("seed=[1, 2", "is no TOML value"),
        ("seed=", "is no TOML value"),
        ("seed=1\nmodel='x'", "it has several lines; give each value a --set"),
        ("defaults.distil.seed=5", "no key 'distil'. Did you mean 'distill'? Valid: distill, reb"),
        ("defaults.distill=5", "is a table; name a key in it, e.g. defaults.sft.steps=20."),
        ("defaults.distill.teachers=5", "; set stages.distill.config.teachers."),
        ("defaults.distill.teachers.0.name=x", "every stage of kind distill says this itself"),
    ],
)
def test_an_override_that_leads_to_no_key_of_the_recipe_says_what_is_wrong(
    table: dict[str, Any], override: str, message: str
) -> None:
    with pytest.raises(InputError) as error:
        apply_override(table, override, table["stages"])
    assert repr(override)[1:-1][:99] in str(error.value)
    assert message in str(error.value)


def test_defaults_are_set_in_the_stages_that_leave_the_value_open() -> None:
    written = {
        "a": {"kind": "sft", "config": {"steps": 1, "optimizer": {"b1": 0.5}}},
        "b": {"kind": "sft"},
        "c": {"kind": "grpo"},
    }
    table: dict[str, Any] = {"stages": copy.deepcopy(written)}
    apply_override(table, "defaults.sft.steps=5", written)
    apply_override(table, "defaults.sft.optimizer.learning_rate=0.1", written)
    optimizer = {"b1": 0.5, "learning_rate": 0.1}
    assert table["stages"]["a"]["config"] == {"steps": 1, "optimizer": optimizer}
    assert table["stages"]["b"]["config"] == {"steps": 5, "optimizer": {"learning_rate": 0.1}}
    assert table["stages"]["c"] == {"kind": "grpo"}
