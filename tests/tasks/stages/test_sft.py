"""SFT: the training-token proof holds for what is trained on and catches every way a mask goes
wrong."""

from collections.abc import Callable

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
    spans = {f"{example.response()}<end_of_turn>" for example in EXAMPLES}
    assert proof["samples"][0]["supervised"] in spans
    parts = [proof[f"{kind}_tokens"] for kind in ("supervised", "prompt", "padding")]
    assert sum(parts) == packed.tokens.size


def test_a_text_with_the_mark_of_a_blank_is_the_one_that_was_meant():
    marked = EXAMPLES[0].model_copy(update={"reasoning": "bars: ▁▂▃", "prompt": "What is ▁ for?"})
    packed, fitting = sft.tokenise(tiny_tokenizer(), [marked, *EXAMPLES], 100)
    assert sft.prove(tiny_tokenizer(), packed, fitting)["examples"] == 7


def no_mask(packed: Packed) -> None:
    packed.mask[0][packed.segments[0] == 2] = False


def no_terminator(packed: Packed) -> None:
    packed.mask[0][np.flatnonzero(packed.segments[0] == 1)[-1]] = False


def every_token(packed: Packed) -> None:
    packed.mask[:] = packed.segments > 0


def padding(packed: Packed) -> None:
    packed.mask[-1][-1] = True


def another_token(packed: Packed) -> None:
    packed.tokens[0][np.flatnonzero(packed.mask[0])[2]] += 1


def prompt_token(place: int) -> Callable[[Packed], None]:
    return lambda packed: packed.mask[0].__setitem__(place, True)


WRONG = (
    (no_mask, "row 0, segment 2, is empty"),
    (no_terminator, "row 0, segment 1, does not end with <end_of_turn>"),
    (every_token, "row 0, segment 1"),
    (padding, "padding of row"),
    (another_token, "is no training example"),
    *((prompt_token(place), "row 0, segment 1") for place in (0, 1, 5)),
)


@pytest.mark.parametrize(("spoil", "message"), WRONG)
def test_the_proof_catches_what_is_trained_on_wrongly(packed, spoil, message):
    spoil(packed)
    with pytest.raises(StageFailed, match=message):
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
    long = "6 of 6 train rows have more than sequence_length = 16 tokens; raise sequence_length"
    with pytest.raises(InputError, match=long):
        sft.run(job(tmp_path, config(sequence_length=16)))
