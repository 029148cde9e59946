"""Training loops on Tunix's trainers: one compiled step, gradient accumulation inside it, batches by step number.

Tunix accumulates with `optax.MultiSteps`, one dispatch per micro-batch and a second copy of the gradients; here a `lax.scan` over
micro-batches is part of the one compiled step. Tunix resumes by iterating over the data again; here batch n is `batch_at(n)`, a function of
the step alone.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tunix.rl import trainer as policy_trainer
from tunix.sft import metrics_logger, peft_trainer
from tunix.sft.dpo import dpo_trainer

from schemas.base import StageFailed
from schemas.training import TrainerConfig
from tasks.job import Job
from tasks.optimizers import learning_rate_schedule


class OneProgramStep(peft_trainer.PeftTrainer):
    """A Tunix trainer whose step averages loss, metrics and gradients over `accumulation` micro-batches in one compiled program.

    Every array of the training input has the batch as its first axis, and micro-batch k holds rows k*B/A to (k+1)*B/A.
    """

    accumulation: int = 1

    @property
    def compiles(self) -> int:
        """How many programs the step has compiled: 1 after any number of steps of one shape."""
        return self.jit_train_and_eval_step(cache_nnx_graph=True)[0].func.jitted_fn._cache_size()

    def _train_step(self, model: nnx.Module, optimizer: nnx.Optimizer, inputs: Any) -> tuple[Any, Any, Any]:
        if self.accumulation == 1:
            return super()._train_step(model, optimizer, inputs)
        trained = nnx.LoRAParam if self._lora_enabled else nnx.Param
        graph, weights, rest = nnx.split(model, trained, ...)  # type: ignore[misc]

        def loss_of(weights: nnx.State, micro: Any) -> tuple[jax.Array, Any]:
            out = self.loss_fn(nnx.merge(graph, weights, rest), **self.gen_model_input_fn(micro))
            return out if self._has_aux else (out, None)

        def accumulate(total: Any, micro: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, jax.value_and_grad(loss_of, has_aux=True)(weights, micro)), None

        micros = jax.tree.map(lambda x: x.reshape(self.accumulation, -1, *x.shape[1:]), inputs)
        first = jax.tree.map(lambda x: x[0], micros)
        shapes = jax.eval_shape(jax.value_and_grad(loss_of, has_aux=True), weights, first)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        total, _ = jax.lax.scan(accumulate, zeros, micros)
        (loss, aux), gradients = jax.tree.map(lambda x: x / self.accumulation, total)
        optimizer.update(model, gradients)
        return loss, aux, optax.global_norm(gradients)


class SftTrainer(OneProgramStep):
    """Supervised fine-tuning on `tasks.losses.cross_entropy`."""


class PreferenceTrainer(OneProgramStep, dpo_trainer.DPOTrainer):
    """Tunix's preference trainer on inputs that are already tokenised, padded and stacked."""

    def _prepare_inputs(self, training_input: Any) -> Any:
        return training_input


class PolicyTrainer(OneProgramStep, policy_trainer.Trainer):
    """Tunix's RL trainer."""

    def __init__(self, model: nnx.Module, optimizer: optax.GradientTransformation, config: peft_trainer.TrainingConfig):
        super().__init__(model, optimizer, config, custom_checkpoint_metadata_fn=dict)


def training_config(config: TrainerConfig, eval_every: int | None = None) -> dict[str, Any]:
    """Tunix's arguments for `config`: no checkpoints, log directory or progress bar of its own."""
    return {"max_steps": config.steps, "eval_every_n_steps": eval_every or config.steps, "pbar_description": None}


class _Curves(metrics_logger.MetricsLogger):
    """Collects what the trainer logs into one row per step and writes finished rows to curves.jsonl every `log_every` steps."""

    def __init__(self, job: Job, steps: int, log_every: int, schedule: Callable[[int], Any], extra: Callable[[int], dict[str, float]]):
        super().__init__()
        self._job, self._steps, self._log_every, self._schedule, self._extra = job, steps, log_every, schedule, extra
        self._file = (job.out / "curves.jsonl").open("w", encoding="utf-8")
        self.rows: list[dict[str, float]] = []

    def log(self, metrics_prefix: str, metric_name: str, scalar_value: Any, mode: Any, step: int) -> None:
        super().log(metrics_prefix, metric_name, scalar_value, mode, step)
        if metric_name == "perplexity":  # exp(loss) says nothing that loss does not
            return
        if not self.rows or self.rows[-1]["step"] != step:
            self._flush()
            self.rows.append({"step": step})
        name = f"validation_{metric_name}" if str(mode) == "eval" else metric_name
        self.rows[-1][name] = float(np.mean(np.asarray(scalar_value)))

    def finish(self) -> None:
        self._flush()
        self._file.close()

    def _flush(self) -> None:
        if not self.rows:
            return
        row = self.rows[-1]
        step = int(row["step"])
        if "loss" in row:
            if not np.isfinite(row["loss"]):
                raise StageFailed(f"the loss is {row['loss']} at step {step}: lower optimizer.learning_rate")
            row["learning_rate"] = float(self._schedule(step - 1))
            row.update(self._extra(step))
            shown = {name: row[name] for name in ("loss", "reward", "rewards/margin") if name in row}
            self._job.progress(step, self._steps, "steps", **shown)
        if "validation_loss" in row or step == 1 or step == self._steps or step % self._log_every == 0:
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()


def fit(
    trainer: OneProgramStep,
    batch_at: Callable[[int], Any],
    config: TrainerConfig,
    job: Job,
    *,
    validation: Sequence[Any] | None = None,
    extra: Callable[[int], dict[str, float]] = lambda step: {},
) -> list[dict[str, float]]:
    """Train for `config.steps` steps and write `curves.jsonl`.

    Args:
        trainer: a trainer with its loss set.
        batch_at: step (from 0) -> training input of `batch_size` rows. Called when the step before has been dispatched, so it may
            sample from the trainer's model.
        config: steps, batch sizes, optimizer.
        job: receives progress and the curve.
        validation: fixed batches whose loss is measured before the first step, at the interval given to `training_config`, and logged.
        extra: step (from 1) -> more values for that step's row of the curve.

    Returns:
        one row per step: step, loss, grad_norm, learning_rate and what the loss reports.

    Raises:
        StageFailed: the step compiled more than once, or the loss is not finite.
    """
    if config.batch_size % config.accumulation or config.batch_size % (config.micro_batch_size or config.batch_size):
        raise StageFailed(f"batch_size = {config.batch_size} is no multiple of micro_batch_size = {config.micro_batch_size}")
    trainer.accumulation = config.accumulation
    curves = _Curves(job, config.steps, config.log_every, learning_rate_schedule(config.optimizer, config.steps), extra)
    trainer.metrics_logger = curves

    def batches() -> Iterator[Any]:
        for step in range(config.steps):
            yield batch_at(step)

    trainer.train(batches(), list(validation) if validation else None)
    curves.finish()
    if trainer.compiles != 1:
        raise StageFailed(f"the training step compiled {trainer.compiles} times; a stage compiles each program once (fixed shapes)")
    return [row for row in curves.rows if "loss" in row]


def rows_of_step(seed: int, step: int, batch_size: int, rows: int) -> np.ndarray:
    """Which rows make batch `step`: consecutive slices of one permutation per epoch, a pure function of (seed, step).

    Returns:
        (batch_size,) indices below `rows`.
    """
    first = step * batch_size
    picks = np.arange(first, first + batch_size)
    out = np.empty(batch_size, np.int64)
    for epoch in np.unique(picks // rows):
        order = np.random.Generator(np.random.Philox(key=[seed, int(epoch)])).permutation(rows)
        where = picks // rows == epoch
        out[where] = order[picks[where] % rows]
    return out
