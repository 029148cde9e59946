"""SFT: the training-token proof holds for what is trained on and catches every way a mask goes
wrong."""

import numpy as np
import pytest

from schemas.base import InputError, StageFailed
from tasks.contract.job import Job, read_rows, write_jsonl
from tasks.data.packing import Packed
from tasks.models.tiny import tiny_tokenizer
from tasks.stages import sft
from tests.tasks.jobs import job_at
from tests.tasks.stages.bench import SFT, example

EXAMPLES = [example(number) for number in range(6)]


@pytest.fixture
def packed() -> Packed:
    packed, fitting = sft.tokenise(tiny_tokenizer(), EXAMPLES, 100)
    assert fitting == EXAMPLES
    assert packed.segments.max() > 1
    return packed


def prove(packed: Packed) -> dict:
    return sft.prove(tiny_tokenizer(), packed, EXAMPLES)


def test_the_proof_shows_the_supervised_spans(packed):
    proof = prove(packed)
    assert proof["examples"] == 6
    assert proof["samples"][0]["supervised"] in {
        f"{example.response()}<end_of_turn>" for example in EXAMPLES
    }
    assert (
        proof["supervised_tokens"] + proof["prompt_tokens"] + proof["padding_tokens"]
        == packed.tokens.size
    )


def test_the_proof_catches_an_empty_mask(packed):
    packed.mask[0][packed.segments[0] == 2] = False
    with pytest.raises(StageFailed, match="row 0, segment 2, is empty"):
        prove(packed)


def test_the_proof_catches_a_terminator_outside_the_mask(packed):
    packed.mask[0][np.flatnonzero(packed.segments[0] == 1)[-1]] = False
    with pytest.raises(StageFailed, match="row 0, segment 1, does not end with <end_of_turn>"):
        prove(packed)


@pytest.mark.parametrize("position", [0, 1, 5])
def test_the_proof_catches_supervised_prompt_tokens(packed, position):
    packed.mask[0][position] = True
    with pytest.raises(StageFailed, match="row 0, segment 1"):
        prove(packed)


def test_the_proof_catches_training_on_every_token(packed):
    packed.mask[:] = packed.segments > 0
    with pytest.raises(StageFailed, match="row 0, segment 1"):
        prove(packed)


def test_the_proof_catches_supervised_padding(packed):
    packed.mask[-1][-1] = True
    with pytest.raises(StageFailed, match="padding of row"):
        prove(packed)


def test_the_proof_catches_a_changed_token(packed):
    packed.tokens[0][np.flatnonzero(packed.mask[0])[2]] += 1
    with pytest.raises(StageFailed, match="is no training example"):
        prove(packed)


def config(**changes) -> sft.Config:
    return sft.Config.parse({**SFT, **changes})


def job(tmp_path, config: sft.Config) -> Job:
    data = tmp_path / "data"
    data.mkdir()
    write_jsonl(data / "train.jsonl", EXAMPLES)
    write_jsonl(data / "validation.jsonl", EXAMPLES[:3])
    return job_at(tmp_path, config, {"examples": data})


@pytest.mark.usefixtures("one_layer")
def test_the_stage_trains_and_writes_model_curve_and_proof(tmp_path):
    made = job(tmp_path, config())
    metrics = sft.run(made)
    assert (made.out / "proof.json").exists()
    rows = list(read_rows(made.out / "curves.jsonl"))
    assert rows[0]["step"] == 0
    assert rows[0]["validation_loss"] == pytest.approx(rows[1]["loss"], rel=0.05)
    assert metrics["examples"] == 6
    assert metrics["epochs"] == pytest.approx(24 / metrics["rows"])


def test_rows_that_do_not_fit_are_an_error_with_the_fix(tmp_path):
    with pytest.raises(
        InputError,
        match="6 of 6 train rows have more than sequence_length = 16 tokens; raise sequence_length",
    ):
        sft.run(job(tmp_path, config(sequence_length=16)))
