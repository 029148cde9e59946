"""The one compiled training step: accumulation, adapters, schedules and which rows make a batch."""

import json
import logging
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from infra.store.store import open_store
from infra.store.workspace import Workspace
from schemas.base import StageFailed
from schemas.trainer_config import LoraConfig, OptimizerConfig, TrainerConfig
from tasks.contract.job import Job
from tasks.losses.cross_entropy import cross_entropy
from tasks.models.decoder import SIZES
from tasks.models.loading import LoadedModel, base_model
from tasks.models.lora import merge_lora
from tasks.training.loop import fit, rows_of_step
from tasks.training.optimizers import learning_rate_schedule, make_optimizer
from tasks.training.trainer import make_trainer
from tests.tasks.models.small_model import weights_of

pytestmark = pytest.mark.usefixtures("one_layer")
BATCH, LENGTH = 4, 12


def batch(seed: int = 0, batch_size: int = BATCH, length: int = LENGTH) -> dict[str, np.ndarray]:
    generator = np.random.Generator(np.random.Philox(seed))
    tokens = generator.integers(4, 1000, (batch_size, length), np.int32)
    mask = generator.random((batch_size, length)) < 0.5
    return {"tokens": tokens, "weights": mask.astype(np.float32)}


def model_input(batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    rows, length = next(iter(batch.values())).shape
    return {
        **batch,
        "positions": jnp.broadcast_to(jnp.arange(length), (rows, length)),
        "segments": jnp.ones((rows, length), jnp.int32),
    }


def train(
    tmp_path, batch_at, pausing=lambda: False, after=None, keeps=None, loss=cross_entropy, **config
) -> tuple[LoadedModel, list[dict[str, float]]]:
    config = TrainerConfig(optimizer=OptimizerConfig(learning_rate=1e-2), **config)
    loaded = base_model("gemma3-tiny", seed=0)
    trainer = make_trainer(loaded, config, seed=0)
    trainer.with_loss_fn(loss).with_gen_model_input_fn(model_input)
    tmp_path.mkdir(exist_ok=True)
    work = Workspace(open_store(tmp_path / "store"), "key", "1")
    job = Job(config, {}, tmp_path, work, pausing=pausing, log=logging.getLogger("test"))
    return loaded, fit(trainer, batch_at, config, job, after=after, keeps=keeps)


def test_accumulating_micro_batches_equals_the_whole_batch(tmp_path):
    def scaled(accumulation: int):
        def batch_at(step: int) -> dict[str, np.ndarray]:
            rows = batch(step)
            weights = rows["weights"] * accumulation / rows["weights"][:, 1:].sum()
            return {**rows, "weights": weights}

        return batch_at

    whole, curve = train(tmp_path / "a", scaled(1), steps=3, batch_size=BATCH)
    sizes = {"steps": 3, "batch_size": BATCH, "micro_batch_size": 2}
    parts, curve_of_parts = train(tmp_path / "b", scaled(2), **sizes)
    for name, rounding in (("loss", 1e-5), ("grad_norm", 1e-4)):
        one, other = ([row[name] for row in rows] for rows in (curve, curve_of_parts))
        assert one == pytest.approx(other, rel=rounding)
    rows = [json.loads(line) for line in (tmp_path / "a" / "curves.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 3]
    assert weights_of(whole).keys() == weights_of(parts).keys()


def test_adapters_train_alone_and_merge_into_the_same_function(tmp_path):
    lora = LoraConfig(rank=4, alpha=8.0)
    loaded, _ = train(tmp_path, batch, lora=lora, steps=3, batch_size=BATCH)
    before = weights_of(base_model("gemma3-tiny", seed=0))
    inputs = model_input({"tokens": jnp.asarray(batch()["tokens"])})
    forward = nnx.jit(lambda model: model(**inputs)[0])
    hidden = forward(loaded.model)
    merge_lora(loaded.model)
    np.testing.assert_allclose(forward(loaded.model), hidden, atol=2e-4)
    after = weights_of(loaded)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed
    assert all("proj" in name for name in changed)


def test_a_second_shape_fails_the_stage(tmp_path):
    longer = lambda step: batch(step, length=LENGTH + (step > 1))  # noqa: E731
    with pytest.raises(StageFailed, match="compiled 2 times"):
        train(tmp_path, longer, steps=3, batch_size=BATCH)


def test_a_loss_that_is_not_finite_fails_the_stage(tmp_path):
    def batch_at(step: int) -> dict[str, np.ndarray]:
        rows = batch(step)
        return {**rows, "weights": rows["weights"] * (np.nan if step == 1 else 1)}

    with pytest.raises(StageFailed, match="loss is nan at step 2"):
        train(tmp_path, batch_at, steps=3, batch_size=BATCH)


def test_gradients_that_are_not_finite_fail_the_stage_even_at_its_last_step(tmp_path):
    """The loss is finite, and its update makes every weight NaN: the slope of sqrt(0 x loss) is
    infinite times 0."""

    def endless(*args, **named):
        return (one := cross_entropy(*args, **named)) + jnp.sqrt(0 * one)

    with pytest.raises(StageFailed, match="grad_norm is nan at step 1"):
        train(tmp_path, batch, loss=endless, steps=1, batch_size=BATCH)


class Kept:
    def state(self, step: int):
        return {}, {}

    def restore(self, step: int, arrays, values) -> None:
        pytest.fail("nothing fits")


def test_a_rollback_is_saved_at_once_and_what_other_code_kept_goes_with_its_checkpoints(tmp_path):
    """None is due; a successor that went on from before it would need what it went back to. Weights
    and rollouts of other code's run are not those of this one."""
    after = lambda row: {"rolled_back_to": 1.0} if row["step"] == 2 else {}  # noqa: E731
    train(tmp_path, batch, after=after, steps=3, batch_size=BATCH)
    work = Workspace(open_store(tmp_path / "store"), "key", "1")
    assert list(work.children("checkpoints")) == ["00000002-1"]
    for name in ("best/00000002-0/a", "journal/rollouts/000000.sampled"):
        work.write(name, b"")
    train(
        tmp_path, batch, keeps=Kept(), steps=3, batch_size=BATCH, lora=LoraConfig(rank=2, alpha=2.0)
    )
    assert not any(work.children(name) for name in ("checkpoints", "best", "journal"))


def test_batches_cover_each_epoch_once_and_depend_only_on_seed_and_step():
    steps = [rows_of_step(3, step, 4, 10) for step in range(5)]
    assert sorted(np.concatenate(steps)[:10]) == list(range(10))
    assert sorted(np.concatenate(steps)[10:20]) == list(range(10))
    np.testing.assert_array_equal(rows_of_step(3, 4, 4, 10), steps[4])
    assert not np.array_equal(rows_of_step(4, 0, 4, 10), steps[0])


def test_the_learning_rate_warms_up_and_decays():
    config = OptimizerConfig(learning_rate=1.0, warmup_fraction=0.1, final_fraction=0.1)
    schedule = learning_rate_schedule(config, 100)
    rates = [float(schedule(step)) for step in range(101)]
    assert 0 < rates[0] < 0.2
    assert max(rates) == rates[10] == 1.0
    assert rates[100] == pytest.approx(0.1)


@pytest.mark.parametrize("muon", [None, 0.02])
def test_weight_decay_shrinks_every_weight_by_its_own_rate(muon: float | None) -> None:
    """Without a gradient a step takes rate x weight_decay of each weight, and without weight decay
    nothing."""
    weights = {"q_proj": jnp.full((1, 8, 2, 4), 2.0), "norm": jnp.full((8,), 3.0)}
    still = jax.tree.map(jnp.zeros_like, weights)
    for decay in (0.0, 0.1):
        rates = {"learning_rate": 1e-3, "muon_learning_rate": muon, "warmup_fraction": 0.0}
        config = OptimizerConfig(**rates, weight_decay=decay)
        optimizer, rate = make_optimizer(config, 9), float(learning_rate_schedule(config, 9)(0))
        update, _ = optimizer.update(still, optimizer.init(weights), weights)
        of_matrices = rate if muon is None else rate * muon / 1e-3
        np.testing.assert_allclose(update["q_proj"], -of_matrices * decay * 2.0, rtol=1e-5)
        np.testing.assert_allclose(update["norm"], -rate * decay * 3.0, rtol=1e-5)


def test_muon_moves_matrices_by_orthogonal_steps_and_leaves_the_rest_to_adamw(monkeypatch):
    """Muon's first step has nearly equal singular values; AdamW's has equal magnitudes, like the
    sign of the gradient."""
    monkeypatch.setitem(SIZES, "gemma3-tiny", replace(SIZES["gemma3-tiny"], num_layers=2))
    before = weights_of(base_model("gemma3-tiny", seed=0))
    rates = {"learning_rate": 1e-3, "muon_learning_rate": 0.02, "warmup_fraction": 0.0}
    optimizer = make_optimizer(OptimizerConfig(**rates), steps=1)
    loaded = base_model("gemma3-tiny", seed=0)
    state = nnx.Optimizer(loaded.model, optimizer, wrt=nnx.Param)
    generator = np.random.Generator(np.random.Philox(0))
    weights = nnx.state(loaded.model, nnx.Param)
    drawn = lambda x: jnp.asarray(generator.normal(size=x.shape), x.dtype)  # noqa: E731
    step = nnx.jit(lambda model, state, gradients: state.update(model, gradients))
    step(loaded.model, state, jax.tree.map(drawn, weights))
    change = {path: value - before[path] for path, value in weights_of(loaded).items()}
    for path, step in change.items():
        magnitudes = np.abs(step)
        if "proj" in path:
            assert magnitudes.max() > 2 * np.median(magnitudes), path
        else:
            assert magnitudes.max() < 1.1 * np.median(magnitudes), path
    for name in ("q_proj", "o_proj", "up_proj"):
        # one for each layer
        matrices = next(step for path, step in change.items() if name in path).reshape(2, -1, 128)
        singular = np.linalg.svd(matrices, compute_uv=False)
        assert (singular.max(-1) < 2 * np.median(singular, -1)).all(), name
