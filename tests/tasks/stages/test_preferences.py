"""The stages SimPO, DPO and ORPO: pairs in fixed shapes, exactly what was sampled, a margin that
grows, and a reference that stays."""

from pathlib import Path
from types import ModuleType, SimpleNamespace

import jax
import numpy as np
import pytest

from schemas.base import InputError, StageFailed
from schemas.examples import PreferencePair
from tasks.contract.job import read_jsonl, read_rows, write_jsonl
from tasks.data.packing import Shape
from tasks.devices.hosts import make_mesh
from tasks.models import decoder
from tasks.models.loading import base_model, load_model, save_model
from tasks.models.tiny import tiny_tokenizer
from tasks.planning import programs
from tasks.planning.programs import abstract_model
from tasks.sampling import sampler as sampling
from tasks.stages import dpo, orpo, simpo
from tasks.training import packed_logps, preference_kind
from tasks.training.pair_batches import pair_batch, response_logps
from tests.tasks.jobs import job_at
from tests.tasks.reward_models.step_traces import preference
from tests.tasks.stages.bench import DPO, PREFERENCES, UPSTREAM, example, lowered

TOKENIZER = tiny_tokenizer()


def config(kind: ModuleType = simpo, /, **changes) -> preference_kind.PreferenceConfig:
    return kind.Config.parse({**(DPO if kind is dpo else PREFERENCES), **changes})


@pytest.fixture
def job(one_layer: None, tmp_path: Path):
    """Makes jobs on a randomly initialised one-layer model, whose samples are all rejected."""
    for name in ("policy", "prompts"):
        (tmp_path / name).mkdir()
    save_model(base_model("gemma3-tiny", 0), tmp_path / "policy")
    write_jsonl(tmp_path / "prompts" / "train.jsonl", [example(number) for number in range(8)])
    write_jsonl(tmp_path / "prompts" / "pairs.jsonl", [])
    inputs = {"policy": tmp_path / "policy", "prompts": tmp_path / "prompts"}
    return lambda kind=simpo, **changes: job_at(tmp_path, config(kind, **changes), inputs)


def test_a_truncated_response_is_trained_on_without_a_terminator_it_never_had():
    cut_off = preference("4", "5 5 5 5 5 5 5 5 5 5 5 5", "truncated")
    tokens = preference_kind.rejected_tokens(TOKENIZER, cut_off, response_length=8)
    assert len(tokens) == 8
    assert TOKENIZER.end_of_turn_id not in tokens
    assert preference_kind.pair_fits(TOKENIZER, cut_off, config(response_length=8))
    assert not preference_kind.pair_fits(
        TOKENIZER, preference("4", cut_off.rejected), config(response_length=8)
    )
    silent = preference("4", "", "truncated")
    assert not preference_kind.pair_fits(TOKENIZER, silent, config(response_length=8))


@pytest.mark.parametrize("kind", [simpo, orpo])
def test_a_stage_mines_pairs_trains_on_them_and_the_margin_grows(kind, job, tmp_path):
    metrics = kind.KIND.run(job(kind))
    pairs = read_jsonl(tmp_path / "out0" / "pairs.jsonl", PreferencePair)
    assert len(pairs) == metrics["pairs"] == metrics["prompts_by_outcome"]["paired"] == 6
    assert metrics["chosen_from"] == {"teacher": 6}  # a random model is never right
    curve = list(read_rows(tmp_path / "out0" / "curves.jsonl"))
    assert {"loss", "rewards/margin", "log_probs/chosen", "grad_norm"} <= set(curve[0])
    assert ("log_odds_ratio" in curve[0]) == (kind is orpo)
    assert curve[-1]["loss"] < 0.7 * curve[0]["loss"]
    assert metrics["margin_last"] > metrics["margin_first"] + {simpo: 1, orpo: 0.1}[kind]
    assert metrics["accuracy_last"] == 1.0


def test_dpo_begins_at_its_reference(job, tmp_path: Path):
    """Policy and reference are one at the first step: margin 0, loss log 2; with LoRA, whose
    adapters come after the reference, too."""
    write_jsonl(tmp_path / "prompts" / "pairs.jsonl", [data_pair(number) for number in range(5)])
    dpo.KIND.run(job(dpo, prompts=0, data_pairs=5, log_every=1))
    curve = list(read_rows(tmp_path / "out0" / "curves.jsonl"))
    assert curve[0]["loss"] == pytest.approx(np.log(2), abs=1e-3)
    assert curve[0]["rewards/margin"] == pytest.approx(0, abs=1e-3)
    assert curve[0]["log_probs/chosen"] < -10  # of whole responses
    assert curve[-1]["rewards/margin"] > curve[0]["rewards/margin"] + 1
    assert curve[-1]["loss"] < 0.7 * curve[0]["loss"]


def test_a_loss_without_metrics_trains_to_the_end(job, tmp_path: Path):
    """A loss of your own may report nothing; the stage's metrics leave out what it has not said."""

    def loss(model, pairs):
        logps, lengths = response_logps(model, pairs)
        return -(logps / lengths)[0], {}

    write_jsonl(tmp_path / "prompts" / "pairs.jsonl", [data_pair(number) for number in range(5)])
    metrics = preference_kind.run(job(prompts=0, data_pairs=5, steps=2), loss)
    assert metrics["pairs"] == 5
    assert not {"margin_first", "margin_last", "accuracy_first", "accuracy_last"} & set(metrics)
    assert (tmp_path / "out0" / "model.safetensors").exists()


def test_the_reference_is_computed_once(job, monkeypatch):
    """Ten responses fill more than three rows, which are computed at a time; a later attempt takes
    them from the journal."""
    rows = [data_pair(number) for number in range(5)]
    attempt = job(dpo, prompts=0, data_pairs=5, micro_batch_size=None)
    loaded = load_model(attempt.inputs["policy"], make_mesh())
    texts = preference_kind.pair_texts(TOKENIZER, rows, attempt.config)
    shape = Shape(3, 50)
    found = preference_kind.reference_logps(attempt, loaded, texts, shape)
    assert found.shape == (5, 2)
    monkeypatch.setattr(packed_logps, "token_logps_fn", None)
    again = preference_kind.reference_logps(attempt, loaded, texts, shape)
    np.testing.assert_array_equal(again, found)


def test_rows_are_as_short_and_few_as_the_pairs_allow_and_the_program_is_the_one_planned(job):
    """Of 40 + 90 tokens a row at most are planned; the pairs are of fewer, known before anything
    compiles, and the step is the planned function at their shape, to the same text."""
    lengths = {"prompt_length": 40, "response_length": 90, "micro_batch_size": None}
    attempt = job(prompts=0, data_pairs=8, steps=2, **lengths)
    rows = [data_pair(number) for number in range(8)]
    write_jsonl(attempt.inputs["prompts"] / "pairs.jsonl", rows)
    with lowered({"train_step": ""}) as ran:
        metrics = simpo.KIND.run(attempt)
    shape = Shape(metrics["micro_batch_rows"], metrics["row_length"])
    assert shape.rows * shape.length < 8 * 130 / 2
    assert metrics["padding"] < 0.4
    mesh = make_mesh()
    model = abstract_model("gemma3-tiny", decoder.SIZES["gemma3-tiny"], mesh)
    (planned,) = simpo.KIND.programs(attempt.config, model, {"prompts": UPSTREAM})
    assert planned.args[3].tokens.shape == (8, 130)
    texts = preference_kind.pair_texts(TOKENIZER, rows[:4], attempt.config)
    batch = programs.rows(pair_batch([texts], shape, 90, TOKENIZER.pad_id), mesh)
    with jax.set_mesh(mesh):
        text = planned.function.lower(*planned.args[:3], batch).as_text()
    assert ran == {"train_step": {text}}


def test_a_prompt_is_read_once_for_all_its_samples():
    """8 samples at a time, 2 of a prompt."""
    model = abstract_model("gemma3-tiny", decoder.SIZES["gemma3-tiny"], make_mesh())
    generate, _ = simpo.KIND.programs(config(), model, {"prompts": UPSTREAM})
    assert generate.args[1].shape == (4, 19)


def data_pair(number: int) -> PreferencePair:
    row = example(number)
    return preference(row.response(), f"it is {number}").model_copy(
        update={"id": row.id, "prompt": row.prompt}
    )


def test_pairs_of_the_data_train_without_a_sample_of_the_policy(job, tmp_path: Path):
    long = data_pair(9).model_copy(update={"rejected": "no " * 99})
    write_jsonl(tmp_path / "prompts" / "pairs.jsonl", [long, *map(data_pair, range(8))])
    metrics = simpo.KIND.run(job(prompts=0, data_pairs=6))
    assert (metrics["pairs"], metrics["data_pairs"], metrics["data_pairs_too_long"]) == (6, 6, 1)
    trained = read_jsonl(tmp_path / "out0" / "pairs.jsonl", PreferencePair)
    assert [row.prompt for row in trained] == [example(n).prompt for n in range(6)]


def test_a_recipe_may_ask_for_format_pairs_alone(job, tmp_path: Path):
    """Of the data's pairs and of the policy's samples: a random model's are all cut off or
    malformed."""
    rejections = ["wrong", "malformed", "wrong", "truncated", "malformed"]
    rows = [
        data_pair(number).model_copy(update={"rejected_because": because})
        for number, because in enumerate(rejections)
    ]
    write_jsonl(tmp_path / "prompts" / "pairs.jsonl", rows)
    reasons = ["malformed", "truncated"]
    metrics = simpo.KIND.run(job(prompts=2, data_pairs=9, rejected_because=reasons))
    wanted = {"pairs": 5, "data_pairs": 3, "data_pairs_other_reasons": 2}
    assert wanted.items() <= metrics.items()
    assert set(metrics["rejected_because"]) <= set(reasons)
    few = (
        r"the data has 2 preference pairs that can be used \(0 are too long, 3 rejected for other"
        r" reasons than rejected_because\), fewer than min_pairs = 4; raise data_pairs"
    )
    with pytest.raises(StageFailed, match=few):
        simpo.KIND.run(job(prompts=0, data_pairs=9, rejected_because=["wrong"]))
    with pytest.raises(ValueError, match="give no pairs"):
        config(prompts=0)


def test_too_few_pairs_fail_the_stage_before_it_trains(job, tmp_path, monkeypatch):
    no = SimpleNamespace(text="no", terminated=True)
    never_right = SimpleNamespace(generate=lambda prompts, **_: [no] * len(prompts), compiles=1)
    monkeypatch.setattr(sampling, "Sampler", lambda *_, **__: never_right)
    none = r"6 prompts gave 0 preference pairs.*none_verified: 6.*no sample was right"
    with pytest.raises(StageFailed, match=none):
        simpo.KIND.run(job(teacher_when_none_verified=False))
    assert list((tmp_path / "out0").iterdir()) == []


def test_prompts_that_do_not_fit_are_an_error_with_the_fix(job):
    long = "8 of 8 training prompts have more than prompt_length = 8 tokens; raise prompt_length"
    with pytest.raises(InputError, match=long):
        simpo.KIND.run(job(prompt_length=8))
