"""`--set` changes one value of a recipe, or says what is wrong."""

import copy
from typing import Any

import pytest

from flows.recipe.overrides import apply_override
from schemas.base import InputError


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("seed=5", ("seed",), 5),
        ("model=gemma3-tiny", ("model",), "gemma3-tiny"),
        (
            "stages.rebalance.config.heldout_fraction=0.25",
            ("stages", "rebalance", "config", "heldout_fraction"),
            0.25,
        ),
        (
            "stages.rebalance.config.quotas.math.train = 4",
            ("stages", "rebalance", "config", "quotas", "math", "train"),
            4,
        ),
        (
            "stages.distill.config.teachers.0.rows={ math = 5 }",
            ("stages", "distill", "config", "teachers", 0, "rows"),
            {"math": 5},
        ),
        (
            "stages.distill.config.teachers.0.name='a b'",
            ("stages", "distill", "config", "teachers", 0, "name"),
            "a b",
        ),
        (
            "stages.rebalance.inputs.examples=other",
            ("stages", "rebalance", "inputs", "examples"),
            "other",
        ),
        ("stages.rebalance.kind=a=b", None, "is no TOML value"),
        ("seed", None, "is not of the form path=value"),
        ("=3", None, "is not of the form path=value"),
        ("stages..config=3", None, "is not of the form path=value"),
        (
            "sead=3",
            None,
            (
                "recipe has no key 'sead'. Did you mean 'seed'? Valid: defaults, gate, model, name,"
                " seed, stages."
            ),
        ),
        ("seed.low=3", None, "'seed' has no keys below it"),
        ("stages.sft.config.steps=3", None, "stages has no key 'sft'. Valid: distill, rebalance."),
        ("stages.distill=3", None, "is a table; name a key in it"),
        (
            "stages.distill.confg.seed=3",
            None,
            (
                "stages.distill has no key 'confg'. Did you mean 'config'? Valid: config, inputs,"
                " kind."
            ),
        ),
        (
            "stages.distill.config.teachers.1.rows=3",
            None,
            "is a list of 1; '1' is not an index below 1",
        ),
        (
            "stages.distill.config.teachers.name=3",
            None,
            "is a list of 1; 'name' is not an index below 1",
        ),
        (
            "stages.distill.kind.name=3",
            None,
            "stages.distill.kind = 'distill' is a value, it has no key 'name'",
        ),
        ("seed=[1, 2", None, "is no TOML value"),
        ("seed=", None, "is no TOML value"),
    ],
)
def test_overrides_change_one_value_or_say_what_is_wrong(
    override: str, path: tuple[str | int, ...] | None, value: object
) -> None:
    """`--set` values are TOML; bare words are strings; the path must lead to a key of the
    recipe."""
    table: dict[str, object] = {
        "name": "tiny",
        "stages": {
            "distill": {"kind": "distill", "config": {"teachers": [{"name": "procedural"}]}},
            "rebalance": {"kind": "rebalance"},
        },
    }
    if path is None:
        with pytest.raises(InputError) as error:
            apply_override(table, override, table["stages"])
        assert override in str(error.value)
        assert str(value) in str(error.value)
        return
    apply_override(table, override, table["stages"])
    found: object = table
    for part in path:
        found = found[part]  # type: ignore[index]
    assert found == value


def test_defaults_are_set_in_the_stages_that_leave_the_value_open() -> None:
    written = {
        "a": {"kind": "sft", "config": {"steps": 1, "optimizer": {"b1": 0.5}}},
        "b": {"kind": "sft"},
        "c": {"kind": "grpo"},
    }
    table: dict[str, Any] = {"stages": copy.deepcopy(written)}
    apply_override(table, "defaults.sft.steps=5", written)
    apply_override(table, "defaults.sft.optimizer.learning_rate=0.1", written)
    assert table["stages"]["a"]["config"] == {
        "steps": 1,
        "optimizer": {"b1": 0.5, "learning_rate": 0.1},
    }
    assert table["stages"]["b"]["config"] == {"steps": 5, "optimizer": {"learning_rate": 0.1}}
    assert table["stages"]["c"] == {"kind": "grpo"}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "defaults.grop.steps=5",
            "defaults has no key 'grop'. Did you mean 'grpo'? Valid: grpo, sft.",
        ),
        (
            "defaults.sft=5",
            "defaults.sft is a table; name a key in it, e.g. defaults.sft.steps=20.",
        ),
        (
            "defaults.sft.steps=5",
            (
                "every stage of kind sft says this itself; set stages.a.config.steps,"
                " stages.b.config.steps."
            ),
        ),
        ("defaults.sft.rewards.0.name=x", "every stage of kind sft says this itself"),
    ],
)
def test_defaults_that_would_reach_no_stage_are_refused(override: str, message: str) -> None:
    written = {name: {"kind": "sft", "config": {"steps": 1, "rewards": [{}]}} for name in "ab"} | {
        "c": {"kind": "grpo"}
    }
    with pytest.raises(InputError) as error:
        apply_override({"stages": copy.deepcopy(written)}, override, written)
    assert message in str(error.value)
