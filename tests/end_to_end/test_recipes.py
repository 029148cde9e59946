"""The shipped recipes: each says where it comes from and what is ours, and runs end to end on a
laptop with --tiny.

One runs here; the others in `tests/campaign/test_recipes.py`. Their stages
run in CI, too, rehearsed (`flows/test_rehearse.py`).
"""

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.nightly import nightly
from flows.recipe.resolve import resolve
from flows.recipe.shipped import shipped_recipes
from infra.process import ROOT
from tasks.rehearsal.environment import XLA_FLAGS
from tests.flows.lab import Lab

RECIPES = sorted(shipped_recipes().keys() - {"quickstart", "open_data"})
OF_SEEDS = {
    *(
        "g_rar",
        "pinocchio",
        "idea_e",
        "on_policy_distillation",
        "gemma2_deep",
        "dipg_safety",
        "scaling_logical_inference",
    ),
    *("medical", "chemistry", "legal", "robotics"),
}


def test_every_system_of_the_seeds_is_a_recipe() -> None:
    assert set(RECIPES) - {"evaluate", "default", "gemma_270m"} == OF_SEEDS


def test_what_nightly_trains_is_the_whole_chain_and_asks_no_api() -> None:
    told = inspect.signature(nightly.fn).parameters["recipe"].default
    recipe = resolve(told, need_data=False)
    chain = [one.kind for one in recipe.stages if not one.kind.endswith("_eval")]
    assert chain == ["distill", "rebalance", "sft", "simpo", "grpo", "export"]
    asked = {one.kind: one.inputs.get("policy") for one in recipe.stages if "_eval" in one.kind}
    assert asked == {"reasoning_eval": "grpo", "safety_eval": "grpo"}
    assert recipe.recipe.gate is not None
    assert not [one.name for one in recipe.stages if '"provider"' in json.dumps(one.config_json)]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_says_what_was_reported_what_is_ours_and_what_was_measured(name: str) -> None:
    text = (ROOT / "flows" / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
    header = text.partition("\nname = ")[0]
    for word in ("Source", "Reported", "Ours", "Deviations", "Measured"):
        assert re.search(rf"^# {word}[:,].*\S", header, re.MULTILINE), (
            f"{name}.toml has no line '# {word}: ...'"
        )
    for command in (rf"lyceum plan {name} --target v\S+ --hours 9", rf"lyceum run {name} --tiny"):
        assert re.search(rf"^#   {command}$", header, re.MULTILINE), (
            f"{name}.toml does not say: {command}"
        )


def paths(value: Any) -> Iterator[str]:
    """Every data file that a config reads; the suite `injection` draws its contexts."""
    if isinstance(value, dict) and value.get("contexts") != "procedural":
        yield from (one for name, one in value.items() if name == "path" and one)
        for one in value.values():
            yield from paths(one)
    elif isinstance(value, list):
        for one in value:
            yield from paths(one)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_reads_public_data_alone_and_names_it_with_its_licence(name: str) -> None:
    text = (ROOT / "flows" / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
    header = " ".join(text.partition("\nname = ")[0].replace("#", " ").split())
    stages = resolve(name, need_data=False).stages
    for path in {path for stage in stages for path in paths(stage.config_json)}:
        found = re.match(r"hf://datasets/([^/@]+/[^/@]+)(?:@[^/]+)?/", path)
        assert found, f"{name} reads {path}"
        told = header.partition(found[1])[2][:420]
        assert re.search(r"MIT|Apache-2\.0|CC-BY|licence is not stated|its 100 test rows", told), (
            f"{name}.toml does not say the licence of {found[1]}"
        )


@pytest.mark.parametrize("name", RECIPES)
def test_the_small_variant_has_the_same_stages_and_rewards_and_needs_nobody_else(name: str) -> None:
    full, tiny = resolve(name, need_data=False), resolve(name, ["tiny"])

    def outline(stages: Any) -> list[Any]:
        return [
            (
                one.name,
                one.kind,
                one.inputs,
                [reward["name"] for reward in one.config_json.get("rewards", ())],
            )
            for one in stages
        ]

    assert outline(tiny.stages) == outline(full.stages)
    assert {one.config_json.get("model") for one in tiny.stages} <= {None, "gemma3-tiny"}
    assert not [
        one.name
        for one in tiny.stages
        if one.kind != "rubrics" and '"provider"' in json.dumps(one.config_json)
    ]


RUN_HERE = "dipg_safety"


def test_a_recipe_runs_on_a_laptop(tmp_path, prefect_api, capsys, monkeypatch):
    runs_on_a_laptop(RUN_HERE, tmp_path, capsys, monkeypatch)


def runs_on_a_laptop(
    name: str, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="an export is proven in transformers")
    monkeypatch.setenv("XLA_FLAGS", XLA_FLAGS)
    sft = [one.name for one in resolve(name, need_data=False).stages if one.kind == "sft"]
    fewer = [word for one in sft for word in ("--set", f"stages.{one}.config.steps=40")]
    run = Lab(root, Path(name), capsys).run("--tiny", *fewer)
    assert run["status"] == "succeeded"
    metrics = {stage["kind"]: stage["metrics"] for stage in run["stages"]}
    if name in OF_SEEDS:
        assert metrics["export"]["max_logit_difference"] < 1e-4
    if "grpo" in metrics:
        assert metrics["grpo"]["rollouts"] == 5
    assert Path(run["report"]).is_file()
