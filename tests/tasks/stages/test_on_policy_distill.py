"""On-policy distillation: what is trained on, and which teachers there may be."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from schemas.base import InputError
from tasks.contract.job import Job, write_jsonl
from tasks.data.packing import Text
from tasks.data.tokens import Tokenizer
from tasks.devices.hosts import make_mesh
from tasks.distillation.feedback import Feedback, TokenTeacher
from tasks.distillation.gemma_teacher import require_same_tokenizer
from tasks.distillation.student_samples import DistillBatches, Scored, gemma_teacher, make_batch
from tasks.models.loading import LoadedModel, save_model
from tasks.models.tiny import tiny_tokenizer
from tasks.planning.programs import abstract_model, compilations
from tasks.reinforcement.rollout import PolicyBatch, tokens_there
from tasks.stages import on_policy_distill
from tasks.stages.on_policy_distill import Config, extra_models, run
from tasks.training.packed_logps import token_logps_fn
from tests.tasks.jobs import job_at
from tests.tasks.stages.bench import STUDENT, TEACHER, example, model

pytestmark = pytest.mark.usefixtures("one_layer")


EXAMPLES = [example(number) for number in range(8)]
ENDPOINT = {"name": "endpoint", "provider": "vllm", "model": "m"}
PROMPTS = [row.as_prompt() for row in EXAMPLES]
GKD = {"name": "gkd", "beta": 0.5}
HALF = {"loss": {**GKD, "on_policy_fraction": 0.5}, "batch_size": 32, "response_length": 40}


def config(**changes: Any) -> Config:
    table = {
        "model": "gemma3-tiny", "steps": 4, "batch_size": 16, "prompt_length": 24,
        "response_length": 8, "optimizer": {"learning_rate": 1e-3},
    }  # fmt: skip
    return Config.parse({**table, **changes})


def stage(tmp_path: Path, config: Config, teacher: LoadedModel | None = None) -> Job[Config]:
    """A job whose student is the base, with a trained teacher if one is given."""
    inputs = {"prompts": tmp_path / "prompts"}
    inputs["prompts"].mkdir(exist_ok=True)
    write_jsonl(inputs["prompts"] / "prompts.jsonl", [row.as_prompt() for row in EXAMPLES])
    write_jsonl(inputs["prompts"] / "train.jsonl", EXAMPLES)
    if teacher:
        inputs["teacher"] = tmp_path / "teacher"
        inputs["teacher"].mkdir(exist_ok=True)
        save_model(teacher, inputs["teacher"])
    return job_at(tmp_path / "store", config, inputs)


def test_bad_configs_are_refused() -> None:
    for changes, message in (
        ({"group_size": 3}, "16 sampled responses per .* a positive multiple of group_size = 3"),
        ({"loss": {**GKD, "on_policy_fraction": 0.01}}, "0 sampled responses per update"),
        ({"teacher": ENDPOINT, "loss": GKD}, "gkd needs a teacher's whole distributions"),
        ({"teacher": ENDPOINT, "temperature": 0.7}, "only at temperature 1"),
        ({"teacher": ENDPOINT | {"max_usd": 1.0}}, "max_usd needs input_usd_per_million"),
        ({"teacher": {"name": "gpt-oss", "model": "m"}}, "gpt-oss"),
        ({"loss": {"name": "policy_gradient", "beta": 0.5}}, "beta"),
    ):
        with pytest.raises(ValueError, match=message):
            config(**changes)


def test_the_base_of_a_teacher_is_a_model_that_the_stage_reads() -> None:
    teacher = {"name": "gemma", "model": "gemma3-12b-it"}
    assert extra_models(config(teacher=teacher).model_dump(mode="json")) == ("gemma3-12b-it",)
    assert extra_models(config().model_dump(mode="json")) == ()
    assert extra_models(config(teacher=ENDPOINT).model_dump(mode="json")) == ()


def test_a_stage_has_one_teacher(tmp_path: Path) -> None:
    none = "there is no teacher: connect one as the input `teacher`, or set teacher = "
    with pytest.raises(InputError, match=none):
        run(stage(tmp_path, config()))
    both = config(teacher={"name": "gemma", "model": "gemma3-tiny"})
    with pytest.raises(InputError, match="there are two teachers"):
        run(stage(tmp_path, both, teacher=model(TEACHER, 1)))
    planned = abstract_model("gemma3-tiny", STUDENT, make_mesh())
    with pytest.raises(InputError, match="there is no teacher"):
        on_policy_distill.programs(config(), planned, {})


def test_a_teacher_with_other_pieces_is_refused() -> None:
    """The same pieces in another file are the same tokenizer; one other piece makes another."""
    from sentencepiece import sentencepiece_model_pb2 as proto

    ours = tiny_tokenizer()
    same, other = (proto.ModelProto.FromString(ours.model_proto) for _ in range(2))
    same.trainer_spec.model_prefix = "elsewhere"
    require_same_tokenizer(ours, Tokenizer(same.SerializeToString()), "m")
    other.pieces[1000].piece = "☃"
    other_one = r"teacher m has another tokenizer .*12B or 27B for Gemma 3 1B.*gpt-oss"
    with pytest.raises(InputError, match=other_one):
        require_same_tokenizer(ours, Tokenizer(other.SerializeToString()), "m")


class Silent(TokenTeacher):
    """A teacher that says -1 of every token, and nothing of the second response."""

    def score(self, texts: list[Text]) -> Feedback:
        logps = -tokens_there(texts, 8).astype(np.float32)
        logps[1] = np.nan
        return Feedback(logps)

    def __init__(self) -> None:
        self.paid = {"teacher_usd": 0.0}

    def costs(self) -> dict[str, float]:
        return self.paid

    def restore(self, costs: dict[str, float]) -> None:
        self.paid = costs


def student_logps(student: LoadedModel, batch: PolicyBatch) -> np.ndarray:
    program = token_logps_fn(student.model)
    return np.asarray(program(nnx.state(student.model), tuple(batch[:4]), np.float32(1)))


def test_a_token_has_the_advantage_that_the_teacher_likes_it_better() -> None:
    student = model(STUDENT, 0)
    batches = DistillBatches(config(group_size=2), student, Silent(), PROMPTS, [])
    batch = batches.batch_at(0)
    own = student_logps(student, batch)
    scored = batches._scored
    assert scored is not None
    real = tokens_there(scored.texts, 8)
    counted = real[np.arange(16) != 1].sum()
    there = batch.predicts
    assert there.sum() == counted
    np.testing.assert_allclose(batch.advantages[there], -1 - own[there], rtol=1e-5)
    assert not batch.advantages[~there].any()
    np.testing.assert_allclose(batch.weights[there], 1 / counted, rtol=1e-6)
    found = batches.metrics[1]
    assert found["unscored"] == 1 / 16
    assert found["teacher_logp"] == -1
    assert found["reverse_kl"] == pytest.approx(1 + own[there].mean(), rel=1e-4)
    first, second = batches.samples
    assert first["rewards"]["reverse_kl"] == pytest.approx(1 + scored.student[0][real[0]].mean())
    assert first["reward"] == first["advantage"] == -first["rewards"]["reverse_kl"]
    unscored = {"reward": None, "rewards": {"reverse_kl": None}, "advantage": 0.0}
    assert unscored.items() <= second.items()
    assert first["prompt"] == second["prompt"]


def test_micro_batches_that_the_responses_leave_empty_are_skipped() -> None:
    """16 responses of one token, in rows of 32 tokens: behind their prompts they fill a part of the
    16 rows."""
    student, table = model(STUDENT, 0), config(micro_batch_size=4)
    logps = np.full((16, 8), -1, np.float32)
    batch = make_batch(table, Scored([([7] * 8, [9])] * 16, logps, logps), None, student)
    trainer = on_policy_distill.trainer_of(table, student, None)
    micros = [jax.tree.map(lambda x, k=k: x[4 * k : 4 * k + 4], batch) for k in range(4)]
    assert trainer.is_wanted is not None
    assert [bool(trainer.is_wanted(micro)) for micro in micros] == [True, False, False, False]


@pytest.mark.parametrize("loss", [{"name": "policy_gradient"}, GKD], ids=["packed", "gkd"])
def test_the_padding_token_is_a_token_where_it_was_sampled(loss, monkeypatch):
    """All 16 responses of 4 tokens count, and the teacher gives the sampled one its probability."""
    table = config(loss=loss)
    teacher = gemma_teacher(table, model(STUDENT, 0))
    batches = DistillBatches(table, model(STUDENT, 0), teacher, PROMPTS, [])
    said = [[7, 0, 8, 9], *[[7, 8, 9, 5]] * 15]
    completions = [batches.sampler.completion_of(tokens) for tokens in said]
    monkeypatch.setattr(batches, "_sample", lambda index: (PROMPTS * 2, completions))
    batch = batches.batch_at(0)
    assert (batch.weights > 0).sum() == (16 if loss == GKD else 16 * 4)
    assert batches.metrics[1]["unscored"] == 0
    assert batches._scored.teacher[0, 1] < 0
    np.testing.assert_allclose(batches._scored.teacher, batches._scored.student, rtol=1e-4)


def test_a_rollout_is_a_function_of_weights_seed_and_step_and_is_reused() -> None:
    student = model(STUDENT, 0)
    batches = DistillBatches(config(num_iterations=2), student, Silent(), PROMPTS, [])
    first, again, second = (batches.batch_at(step) for step in range(3))
    assert again is first
    assert batches.metrics[2] == batches.metrics[1]
    own = student_logps(student, first)
    np.testing.assert_allclose(first.old_per_token_logps, own, rtol=1e-4, atol=1e-5)
    assert not np.array_equal(first.tokens, second.tokens)
    jax.tree.map(np.testing.assert_array_equal, batches.batch_at(0), first)


def test_what_the_teacher_cost_goes_on_from_a_checkpoint() -> None:
    student, before, now = model(STUDENT, 0), Silent(), Silent()
    before.paid = {"teacher_usd": 3.0}
    state = DistillBatches(config(), student, before, PROMPTS, []).state(4)
    DistillBatches(config(), student, now, PROMPTS, []).restore(4, *state)
    assert now.paid == before.paid


def test_a_share_of_gkd_is_traces_of_the_data() -> None:
    """Half is sampled; of the traces, which are other prompts' in their own order, every token
    counts, the terminator too."""
    table = config(**HALF)
    teacher = gemma_teacher(table, model(TEACHER, 1))
    batches = DistillBatches(table, model(STUDENT, 0), teacher, PROMPTS, EXAMPLES)
    batch = batches.batch_at(0)
    tokenizer = tiny_tokenizer()
    written = [tokenizer.decode(row) for row in batch.completion_ids[16:]]
    assert set(written) <= {row.response() for row in EXAMPLES}
    assert (batch.completion_ids[16:] == tokenizer.end_of_turn_id).sum(axis=1).tolist() == [1] * 16
    assert batch.completion_mask.tolist() == (batch.completion_ids != 0).tolist()
    assert batch.teacher_hidden.shape == (32, 40, TEACHER.embed_dim)
    sampled = (batch.completion_ids[:16] != 0).sum(axis=1).mean()
    assert batches.metrics[1]["completion_tokens"] == sampled
    short = config(**{**HALF, "response_length": 8})
    with pytest.raises(InputError, match="none of 8 training examples fits"):
        on_policy_distill.fitting_traces(short, EXAMPLES, tokenizer)


@pytest.mark.parametrize("loss", [{"name": "policy_gradient"}, GKD], ids=["packed", "gkd"])
def test_the_teacher_scores_the_tokens_as_its_logits_do(loss: dict[str, Any]) -> None:
    """In two micro-batches, at temperature .7, padding on both sides, against dense logits. Without
    hidden states a row has two responses where they fit."""
    teacher = model(TEACHER, 1)
    random = np.random.Generator(np.random.Philox(0))
    prompts, responses = (
        random.integers(6, 1000, (4, length)).astype(np.int32) for length in (24, 8)
    )
    prompts[2, :9] = 0
    responses[1, 2:] = 0
    table = config(batch_size=4, micro_batch_size=2, temperature=0.7, loss=loss)
    scorer = gemma_teacher(table, teacher)
    texts = [
        (one[one != 0].tolist(), other[other != 0].tolist())
        for one, other in zip(prompts, responses, strict=True)
    ]
    found = scorer.score(texts)
    assert compilations(scorer._program) == 1
    tokens = np.concatenate([prompts, responses], axis=1)
    real = tokens != 0
    places = np.maximum(np.cumsum(real, axis=1) - 1, 0)
    hidden, _ = jax.jit(teacher.model)(tokens, places, real.astype(np.int32))
    dense = jax.nn.log_softmax(teacher.model.unembed(hidden[:, 23:-1]) / 0.7)
    said = responses != 0
    wanted = np.take_along_axis(dense, responses[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(found.logps, np.where(said, wanted, 0), rtol=1e-4)
    if found.hidden is None:
        assert loss != GKD
        return
    own = hidden[:, 23:-1][said]
    np.testing.assert_allclose(found.hidden[said], own, rtol=1e-3, atol=1e-4)
