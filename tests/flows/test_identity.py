"""Identity and execution: every field of every config is part of the stage key, and nothing about
where a run executes is."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from flows.recipe.resolve import ResolvedStage, resolve
from infra.settings import Settings
from schemas.artifact import stage_key
from schemas.base import StrictModel
from tasks.contract.kinds import stage_kind, stage_kinds

RECIPE = "quickstart"
OTHERS = ("g_rar", "gemma2_deep", "on_policy_distillation")


@cache
def stages() -> dict[str, ResolvedStage]:
    """One stage of each kind: of the shipped recipes, and of the kinds that no recipe has, one with
    SimPO's config as far as it goes."""
    recipes = [resolve(name, need_data=False) for name in (*OTHERS, RECIPE)]
    found = {stage.kind: stage for recipe in recipes for stage in recipe.stages}
    simpo = found["simpo"]
    for name in set(stage_kinds()) - set(found):
        kind = stage_kind(name)
        known = simpo.config_json.items()
        config = kind.config.parse({k: v for k, v in known if k in kind.config.model_fields})
        given = {"kind": name, "version": kind.version, "config": config}
        found[name] = replace(simpo, name=name, **given)
    return found


def mutations(config: StrictModel, path: str = "") -> Iterator[tuple[str, StrictModel]]:
    """The config with one field changed, once for each field of it and of the models inside it.

    The new value need not be valid: the law is about what is hashed, and a field that were left out
    of the hash would stay silent here.
    """
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        yield f"{path}{name}", config.model_copy(update={name: other_value(value)})
        if isinstance(value, StrictModel):
            for inner, changed in mutations(value, f"{path}{name}."):
                yield inner, config.model_copy(update={name: changed})
        assert not field.exclude, f"{path}{name} is left out when the config is written"


def other_value(value: Any) -> Any:
    """Some other JSON value."""
    if isinstance(value, StrictModel):
        return None
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, (tuple, list)):
        return [*value, "one more"]
    if isinstance(value, dict):
        return {**value, "one": "more"}
    return f"not {value}"


@pytest.mark.parametrize("kind", stage_kinds())
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_every_config_field_changes_the_key(kind: str) -> None:
    stage = stages()[kind]
    digests = dict.fromkeys(stage.inputs, "0" * 64)
    keys = {stage.key(digests)}
    changed = list(mutations(stage.config))
    assert {name.split(".")[0] for name, _ in changed} == set(stage_kind(kind).config.model_fields)
    for name, config in changed:
        key = stage_key(
            stage.kind, stage.version, stage.dependencies, config.model_dump(mode="json"), digests
        )
        assert key not in keys, f"{kind}: changing {name} leaves the key as it was"
        keys.add(key)


@pytest.mark.parametrize("kind", stage_kinds())
def test_version_dependencies_and_inputs_change_the_key(kind: str) -> None:
    stage = stages()[kind]
    digests = dict.fromkeys(stage.inputs, "0" * 64)
    more = {**stage.dependencies, "rewards.new": 1}
    keys = [
        stage.key(digests),
        stage_key(kind, stage.version + 1, stage.dependencies, stage.config_json, digests),
        stage_key(kind, stage.version, more, stage.config_json, digests),
        *(stage.key({**digests, name: "1" * 64}) for name in digests),
    ]
    assert len(set(keys)) == len(keys)


def test_a_stage_s_name_does_not_change_its_key() -> None:
    """Two recipes that call the same stage differently share its artifact."""
    stage = stages()["distill"]
    assert replace(stage, name="other").key({}) == stage.key({})


OTHER_SETTINGS = {
    "poll_seconds": "0.9",
    "lease_seconds": "99",
    "compile_cache": "",
    "cache": "/elsewhere",
    "zones": "europe-west4-a,us-west4-a",
    "local_kinds": "distill,rebalance",
    "tensor_parallel": "2",
    "whole_weights_gib": "1",
    "plan": "false",
}
"""Where neither `9`, `true` nor `elsewhere` is another valid value."""


def test_execution_settings_change_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every field of Settings, in the environment, to another value than its default."""

    def keys() -> list[str]:
        return [one.key(dict.fromkeys(one.inputs, "0" * 64)) for one in resolve(RECIPE).stages]

    before, default = keys(), Settings.from_environment({})
    usual = {bool: "true", int: "9", float: "9", type(None): "9"}
    for name in Settings.model_fields:
        other = usual.get(type(getattr(default, name)), "elsewhere")
        monkeypatch.setenv(f"LYCEUM_{name.upper()}", OTHER_SETTINGS.get(name, other))
    changed = Settings.from_environment()
    assert all(getattr(changed, name) != getattr(default, name) for name in Settings.model_fields)
    assert keys() == before


def test_store_and_data_directory_change_no_key(tmp_path, tiny_recipe, lyceum, monkeypatch):
    """The key as `lyceum why` shows it, under two stores, two unrelated data directories and two
    working directories."""
    shown = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "unused.txt").write_text(name, encoding="utf-8")
        monkeypatch.chdir(tmp_path / name)
        shown.add(lyceum("why", tiny_recipe, "distill", "--store", "store", "--data", ".").out)
    assert len(shown) == 1
