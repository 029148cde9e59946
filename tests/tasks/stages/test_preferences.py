"""The stages SimPO, DPO and ORPO: pairs in fixed shapes, exactly what was sampled, a margin that
grows, and a reference that stays."""

from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from flax import nnx

from infra.store.store import open_store
from infra.store.workspace import Workspace
from schemas.base import InputError, StageFailed
from schemas.examples import Domain, PreferencePair
from tasks.contract.job import Job, read_jsonl, read_rows, write_jsonl
from tasks.data.tokens import prompt_tokens, response_tokens
from tasks.devices.hosts import make_mesh
from tasks.models import vocabulary
from tasks.models.loading import base_model, load_model, save_model
from tasks.models.tiny import tiny_tokenizer
from tasks.sampling import sampler as sampling
from tasks.stages import dpo, orpo, simpo
from tasks.training import preferences
from tests.tasks.stages.bench import DPO, PREFERENCES, example

TOKENIZER = tiny_tokenizer()


def config(kind: ModuleType = simpo, /, **changes) -> preferences.PreferenceConfig:
    return kind.Config.parse({**(DPO if kind is dpo else PREFERENCES), **changes})


@pytest.fixture
def job(one_layer: None, tmp_path: Path):
    """Makes jobs on a randomly initialised one-layer model, whose samples are all rejected."""
    for name in ("policy", "prompts", "out"):
        (tmp_path / name).mkdir()
    save_model(base_model("gemma3-tiny", 0), tmp_path / "policy")
    write_jsonl(tmp_path / "prompts" / "train.jsonl", [example(number) for number in range(8)])
    write_jsonl(tmp_path / "prompts" / "pairs.jsonl", [])
    inputs = {"policy": tmp_path / "policy", "prompts": tmp_path / "prompts"}
    workspace = Workspace(open_store(tmp_path / "store"), "key", "1")
    return lambda kind=simpo, **changes: Job(
        config(kind, **changes), inputs, tmp_path / "out", workspace
    )


def pair(chosen: str, rejected: str, because: str = "wrong") -> PreferencePair:
    return PreferencePair(
        id="0",
        prompt="2 + 2?",
        domain=Domain.MATH,
        chosen=chosen,
        rejected=rejected,
        chosen_from="policy",
        rejected_because=because,
    )


def test_prompts_are_padded_left_and_responses_right():
    arrays = preferences.pair_arrays(
        TOKENIZER, [pair("4", "5 or 6")], config(prompt_length=24, response_length=12)
    )
    assert {name: array.shape for name, array in arrays.items() if name.endswith("ids")} == {
        "prompt_ids": (1, 24),
        "chosen_ids": (1, 12),
        "rejected_ids": (1, 12),
    }
    assert arrays["prompt_ids"][0][arrays["prompt_mask"][0]].tolist() == prompt_tokens(
        TOKENIZER, "2 + 2?"
    )
    assert arrays["prompt_mask"][0, -1]
    assert arrays["chosen_ids"][0][arrays["chosen_mask"][0]].tolist() == response_tokens(
        TOKENIZER, "4"
    )
    assert arrays["rejected_ids"][0][arrays["rejected_mask"][0]].tolist() == response_tokens(
        TOKENIZER, "5 or 6"
    )
    assert arrays["chosen_mask"][0, 0]


def test_a_truncated_response_is_trained_on_without_a_terminator_it_never_had():
    cut_off = pair("4", "5 5 5 5 5 5 5 5 5 5 5 5", because="truncated")
    tokens = preferences.rejected_tokens(TOKENIZER, cut_off, response_length=8)
    assert len(tokens) == 8
    assert TOKENIZER.end_of_turn_id not in tokens
    assert preferences.pair_fits(TOKENIZER, cut_off, config(response_length=8))
    assert not preferences.pair_fits(
        TOKENIZER, pair("4", cut_off.rejected), config(response_length=8)
    )


@pytest.mark.parametrize("kind", [simpo, dpo, orpo])
def test_a_stage_mines_pairs_trains_on_them_and_the_margin_grows(
    kind: ModuleType, job, tmp_path: Path
):
    metrics = kind.KIND.run(job(kind))
    pairs = read_jsonl(tmp_path / "out" / "pairs.jsonl", PreferencePair)
    assert len(pairs) == metrics["pairs"] == metrics["prompts_by_outcome"]["paired"] == 6
    assert metrics["chosen_from"] == {"teacher": 6}  # a random model is never right
    curve = list(read_rows(tmp_path / "out" / "curves.jsonl"))
    assert {"loss", "rewards/margin", "log_probs/chosen", "grad_norm"} <= set(curve[0])
    assert ("log_odds_ratio" in curve[0]) == (kind is orpo)
    assert curve[-1]["loss"] < 0.7 * curve[0]["loss"]
    assert metrics["margin_last"] > metrics["margin_first"] + {simpo: 1, dpo: 1, orpo: 0.1}[kind]
    assert metrics["accuracy_last"] == 1.0


def test_dpo_begins_at_its_reference(job, tmp_path: Path):
    """Policy and reference are one at the first step: margin 0, loss log 2; with LoRA, whose
    adapters come after the reference, too."""
    write_jsonl(tmp_path / "prompts" / "pairs.jsonl", [data_pair(number) for number in range(5)])
    dpo.KIND.run(job(dpo, prompts=0, data_pairs=5, log_every=1))
    curve = list(read_rows(tmp_path / "out" / "curves.jsonl"))
    assert curve[0]["loss"] == pytest.approx(np.log(2), abs=1e-3)
    assert curve[0]["rewards/margin"] == pytest.approx(0, abs=1e-3)
    assert curve[0]["log_probs/chosen"] < -10  # of whole responses
    assert curve[1]["rewards/margin"] != curve[0]["rewards/margin"]


def test_the_reference_is_each_responses_log_probability_and_computed_once(
    job, monkeypatch: pytest.MonkeyPatch
):
    """Against one row at a time. Ten responses are two and a half batches of four; a later attempt
    takes them from the journal."""
    rows = [data_pair(number) for number in range(5)]
    attempt = job(dpo, prompts=0, data_pairs=5)
    loaded = load_model(attempt.inputs["policy"], make_mesh())
    arrays = preferences.pair_arrays(TOKENIZER, rows, attempt.config)
    found, compiles = preferences.reference_logps(attempt, loaded, arrays)
    assert compiles == 1
    token_logps = vocabulary.token_logps_fn(loaded.model, TOKENIZER.pad_id)
    for name in ("chosen", "rejected"):
        alone = [
            token_logps(
                nnx.state(loaded.model),
                arrays["prompt_ids"][[row]],
                arrays[f"{name}_ids"][[row]],
                np.float32(1),
            ).sum()
            for row in range(5)
        ]
        np.testing.assert_allclose(found[f"ref_{name}_logps"], alone, rtol=1e-5)
    monkeypatch.setattr(vocabulary, "token_logps_fn", None)
    again, compiles = preferences.reference_logps(attempt, loaded, arrays)
    assert compiles == 1
    for name, values in found.items():
        np.testing.assert_array_equal(again[name], values)


def data_pair(number: int) -> PreferencePair:
    row = example(number)
    return pair(row.response(), f"it is {number}").model_copy(
        update={"id": row.id, "prompt": row.prompt, "chosen_from": "teacher"}
    )


def test_pairs_of_the_data_train_without_a_sample_of_the_policy(job, tmp_path: Path):
    long = data_pair(9).model_copy(update={"rejected": "no " * 99})
    write_jsonl(
        tmp_path / "prompts" / "pairs.jsonl", [long, *(data_pair(number) for number in range(8))]
    )
    metrics = simpo.KIND.run(job(prompts=0, data_pairs=6))
    assert (metrics["pairs"], metrics["data_pairs"], metrics["data_pairs_too_long"]) == (6, 6, 1)
    assert metrics["compiles"] == {"train_step": 1}
    assert [row.prompt for row in read_jsonl(tmp_path / "out" / "pairs.jsonl", PreferencePair)] == [
        example(n).prompt for n in range(6)
    ]


def test_a_recipe_may_ask_for_format_pairs_alone(job, tmp_path: Path):
    """Of the data's pairs and of the policy's samples: a random model's are all cut off or
    malformed."""
    rejections = ["wrong", "malformed", "wrong", "truncated", "malformed"]
    rows = [
        data_pair(number).model_copy(update={"rejected_because": because})
        for number, because in enumerate(rejections)
    ]
    write_jsonl(tmp_path / "prompts" / "pairs.jsonl", rows)
    metrics = simpo.KIND.run(
        job(prompts=2, data_pairs=9, rejected_because=["malformed", "truncated"])
    )
    assert (metrics["pairs"], metrics["data_pairs"], metrics["data_pairs_other_reasons"]) == (
        5,
        3,
        2,
    )
    assert set(metrics["rejected_because"]) <= {"malformed", "truncated"}
    with pytest.raises(
        StageFailed,
        match=(
            r"2 preference pairs .*0 are too long, 3 rejected for other reasons than"
            r" rejected_because"
        ),
    ):
        simpo.KIND.run(job(prompts=0, data_pairs=9, rejected_because=["wrong"]))


def test_too_few_pairs_of_the_data_say_what_to_raise(job, tmp_path: Path):
    write_jsonl(tmp_path / "prompts" / "pairs.jsonl", [data_pair(1)])
    with pytest.raises(
        StageFailed,
        match=r"the data has 1 preference pairs that can be used .*, fewer than min_pairs = 4",
    ):
        simpo.KIND.run(job(prompts=0, data_pairs=6))


def test_no_source_of_pairs_is_refused():
    with pytest.raises(ValueError, match="give no pairs"):
        config(prompts=0)


def test_too_few_pairs_fail_the_stage_before_it_trains(
    job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    never_right = SimpleNamespace(
        generate=lambda prompts, **_: [SimpleNamespace(text="no", terminated=True)] * len(prompts)
    )
    monkeypatch.setattr(sampling, "Sampler", lambda *_, **__: never_right)
    with pytest.raises(
        StageFailed,
        match=r"6 prompts gave 0 preference pairs.*none_verified: 6.*no sample was right",
    ):
        simpo.KIND.run(job(teacher_when_none_verified=False))
    assert list((tmp_path / "out").iterdir()) == []


def test_prompts_that_do_not_fit_are_an_error_with_the_fix(job):
    with pytest.raises(
        InputError,
        match=(
            "8 of 8 training prompts have more than prompt_length = 8 tokens; raise prompt_length"
        ),
    ):
        simpo.KIND.run(job(prompt_length=8))
