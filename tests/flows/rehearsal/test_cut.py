"""A rehearsed recipe is the shipped one but for sizes, its model, and who answers."""

import re
from pathlib import Path
from typing import Any

import pytest

from flows.rehearsal.cut import Rehearsed, rehearsed
from infra.store.store import open_store
from tasks.rehearsal.stand_in import PREFIX
from tests.flows.rehearsal.recipes import RECIPE, write


def cut(directory: Path, recipe: str = RECIPE, rows: int = 20, *overrides: str) -> Rehearsed:
    path = write(directory, recipe)
    store = open_store(directory / "store", write=False)
    return rehearsed(str(path), overrides, directory / "data", (), rows, "gemma3-tiny", store)


def config(ready: Rehearsed, stage: str) -> dict[str, Any]:
    return ready.resolved.stage(stage).config_json


def test_sizes_are_cut_and_formats_checks_rewards_and_suites_stay(tmp_path: Path) -> None:
    ready = cut(tmp_path)
    (teacher,) = config(ready, "distill")["teachers"]
    (source,) = teacher["prompts"][0]["sources"]
    assert (source["first"], source["check"], teacher["samples"]) == (20, "numeric", 2)
    grpo = config(ready, "grpo")
    assert [one["name"] for one in grpo["rewards"]] == ["format", "exact_answer", "llm_judge"]
    assert [one["weight"] for one in grpo["rewards"]] == [0.3, 1.0, 1.0]
    assert grpo["rewards"][2]["aspects"] == {"accuracy": 0.5, "logic": 0.3, "coherence": 0.2}
    assert grpo["rewards"][2]["calibration"]["least_order"] == 0.8
    assert (grpo["group_size"], grpo["batch_size"], grpo["steps"]) == (2, 2, 2)
    assert (grpo["audit"]["ends"], grpo["audit"]["last"]) == (False, 300)
    (suite,) = config(ready, "grpo_eval")["suites"]
    assert (suite["label"], suite["first"], suite["check"]) == ("exam", 8, "numeric")
    assert ready.whole.model == "gemma3-1b-it"
    assert ready.resolved.recipe.name == "sums_rehearsal"
    assert [one.prompt.line for one in ready.rows.asked] == list(range(1, 21)), "no more is read"
    assert len(ready.asked["grpo_eval"]) == 8


def test_the_first_rows_of_every_source_are_asked(tmp_path: Path) -> None:
    """`first` counts prompts of a domain: cut to the rows of one source, it left the others out."""
    source = RECIPE[RECIPE.index("[[stages.distill.config.teachers.prompts.sources]]") :]
    source = source[: source.index("\n\n")]
    more = source.replace("sums.jsonl", "exam.jsonl")
    recipe = RECIPE.replace("samples = 4", "samples = 4\nfirst = { math = 3000 }", 1)
    ready = cut(tmp_path, recipe.replace(source, f"{source}\n{more}"), 15)
    files = [one.prompt.source for one in ready.rows.asked]
    assert (files.count("sums.jsonl"), files.count("exam.jsonl")) == (15, 15)


def test_endpoints_are_the_rehearsals_own_and_say_whose_they_stand_for(tmp_path: Path) -> None:
    """Another model's name: a real run never finds an answer of a stand-in among those it paid."""
    ready = cut(tmp_path)
    (teacher,) = config(ready, "distill")["teachers"]
    judge = config(ready, "grpo")["rewards"][2]["judge"]
    asked = {"provider": "rehearsal", "model": PREFIX + "vllm:openai/gpt-oss-120b"}
    assert teacher | asked == teacher
    assert (judge["provider"], judge["model"]) == ("rehearsal", PREFIX + "gemini:gemini-9")
    assert ready.endpoints == {"vllm:openai/gpt-oss-120b": ["distill"], "gemini:gemini-9": ["grpo"]}


def test_a_judge_that_would_load_weights_is_stood_in_for(tmp_path: Path) -> None:
    gemma = '{ name = "gemma", model = "gemma3-12b-it", prompt_length = 2048 }'
    endpoint = '{ name = "endpoint", provider = "gemini", model = "gemini-9" }'
    ready = cut(tmp_path, RECIPE.replace(endpoint, gemma))
    judge = config(ready, "grpo")["rewards"][2]["judge"]
    assert (judge["name"], judge["model"]) == ("endpoint", PREFIX + "gemma:gemma3-12b-it")


def test_lengths_are_what_the_rows_need_up_to_what_the_recipe_allows(tmp_path: Path) -> None:
    ready = cut(tmp_path)
    assert 48 < ready.sizes.prompt < 160
    assert config(ready, "grpo")["prompt_length"] == ready.sizes.prompt
    assert config(ready, "rebalance")["max_prompt_tokens"] == ready.sizes.prompt
    short = cut(tmp_path, RECIPE, 20, "stages.rebalance.config.max_prompt_tokens=20")
    assert config(short, "rebalance")["max_prompt_tokens"] == 45, "2.25 tiny tokens for one"


def test_few_bad_rows_pass_as_chance_has_them_and_many_do_not(tmp_path: Path) -> None:
    """One in a hundred is allowed: of 50 rows, two in 19 of 20 cases."""
    ready = cut(tmp_path, RECIPE, 50)
    (teacher,) = config(ready, "distill")["teachers"]
    assert teacher["prompts"][0]["sources"][0]["max_bad_fraction"] == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rows", "3"], r"--rows 3: .* 10 to 5000"),
        (["--set", "stages.distill.config.teachers.0.prompts.0.sources.0.prompt=qestion"],
         r"sums.jsonl, prompt: there is no column 'qestion'.*question"),
        (["--set", "stages.distill.config.teachers.0.prompts.0.sources.0.path=sum.jsonl"],
         r"has no file sum.jsonl.*sums.jsonl"),
        (["--set", "stages.distill.config.teachers.0.prompts.0.sources.0.answer=question"],
         r"sums.jsonl, line 1: not_numeric.* 50 rows \(of 50\)"),
        (["--model", "gemma9"], r"unknown model 'gemma9'"),
        (["--set", "stages.grpo.config.stepps=3"], r"unknown key 'stepps'"),
    ],
)  # fmt: skip
def test_nonsense_is_one_line_and_exit_code_2(tmp_path, lyceum, arguments, said):
    where = ["--data", tmp_path / "data", "--store", tmp_path / "store"]
    error = lyceum("rehearse", write(tmp_path), *where, *arguments, code=2).err
    assert error.startswith("lyceum: ")
    assert re.search(said, error), error
    assert not (tmp_path / "store").exists()
