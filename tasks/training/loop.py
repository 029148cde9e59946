"""Training: batches by step number, a curve, checkpoints, and resumption after an interruption.

The loop is that of Tunix's `PeftTrainer.train`. It asks an iterator of ours for each batch, and the
iterator does the work between two updates. (The hook `on_train_step_end` is called when the next
update has been dispatched: too late for a checkpoint.) Tunix resumes by iterating over the data
again. Here batch n is `batch_at(n)`, a function of the step alone (and of the state of a stage's
`Keeps`), and a resumed run ends with the bytes of an undisturbed one.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import jax
import numpy as np
from flax import nnx

from schemas.base import StageFailed, Stopped
from schemas.trainer_config import TrainerConfig
from tasks.contract.job import Job
from tasks.devices.hosts import agree, put, spread
from tasks.models.adapters import ADAPTERS
from tasks.models.loading import LoadedModel, save_model
from tasks.models.lora import merge_lora
from tasks.models.model_source import published_as
from tasks.models.peft import write_adapters
from tasks.models.sharding import variables_of
from tasks.training.checkpoints import Array, Checkpoint, Checkpoints, fingerprint
from tasks.training.optimizers import learning_rate_schedule
from tasks.training.trainer import Reported, Trainer


class Keeps(Protocol):
    """The state of a stage, beside the trainer's, that checkpoints hold, such as a rollout that
    more updates will use."""

    def state(self, step: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays, and JSON, that it needs to go on after `step` finished steps."""

    def restore(self, step: int, arrays: dict[str, np.ndarray], values: dict[str, Any]) -> None:
        """Go on after `step` finished steps with the `state` of then."""


def counted(job: Job[Any], rows: int) -> tuple[Job[Any], Any]:
    """The job and its config with `epochs` replaced by `steps`, for a stage that trains on so many
    rows."""
    config = job.config.counted(rows)
    return replace(job, config=config), config


def save_trained(
    trainer: Trainer, loaded: LoadedModel, job: Job[Any], step: int | None = None
) -> None:
    """Write the model, with its adapters merged, and `state.json`. `step`: the updates that made
    it, if not `config.steps`.

    `state.json` has the fingerprints of the trained parameters (of adapters: unmerged) and of the
    optimizer's state after the last step: artifacts with equal digests ended with equal optimizers.
    """
    config: TrainerConfig = job.config
    arrays = trained_arrays(trainer)
    fingerprints = {
        part: fingerprint(
            {name.partition("/")[2]: arrays[name] for name in arrays if name.startswith(f"{part}/")}
        )
        for part in ("parameters", "optimizer")
    }
    (job.out / "state.json").write_text(
        json.dumps({"step": config.steps if step is None else step, **fingerprints}) + "\n",
        encoding="utf-8",
    )
    if config.lora and config.lora.keep:
        base = None if "policy" in job.inputs else published_as(job.config.model)
        write_adapters(loaded.model, config.lora, base, job.out / ADAPTERS)
    if config.lora:
        merge_lora(loaded.model)
    save_model(loaded, job.out)


def fit(
    trainer: Trainer,
    batch_at: Callable[[int], Any],
    config: TrainerConfig,
    job: Job[Any],
    *,
    validation: Sequence[Any] = (),
    validation_every: int = 1,
    extra: Callable[[int], dict[str, float]] = lambda step: {},
    keeps: Keeps | None = None,
    after: Callable[[dict[str, float]], dict[str, float]] | None = None,
) -> list[dict[str, float]]:
    """Train until `config.steps` steps are finished, from the newest checkpoint if there is one,
    and write `curves.jsonl`.

    Checkpoints are saved between steps, when they are due, after that step's validation, and after
    a rollback, which a successor could not repeat once the guard has a better checkpoint than the
    one it went back to; nothing else runs meanwhile. A job that is asked to pause saves one after
    its current step, unless that is the last.

    Args:
        trainer: a trainer with its loss set.
        batch_at: step (from 0) -> training input of `batch_size` rows. Called when the step before
            has been dispatched, so it may sample from the trainer's model.
        config: steps, batch sizes, optimizer.
        job: receives progress and the curve, stores the checkpoints.
        validation: fixed batches, whose mean loss is logged before the first step and every
            `validation_every` steps.
        extra: step (from 1) -> more values for that step's row of the curve.
        keeps: more state for checkpoints.
        after: a finished step's row -> more values for it. Called before anything for the next
            step, so it may restore the trainer (`put_back`, reported as `rolled_back_to`); a value
            `stopped` ends training.

    Returns:
        one row per step: step, loss, grad_norm, learning_rate and the loss function's metrics.

    Raises:
        StageFailed: the step compiled more than once, or the loss or a gradient is not finite.
        Stopped: the job was asked to pause; says where.
    """
    curves = _Curves(job, config, extra, after)
    checkpoints = Checkpoints(
        job.work,
        seconds=job.checkpoint_seconds,
        every=job.checkpoint_steps,
        wanted=job.pausing,
        log=job.log,
    )
    start = _resume(trainer, checkpoints, curves, config, job, keeps)
    if validation and not start:
        curves.add({"step": 0, "validation_loss": validate(trainer, validation)})

    paused_at: int | None = None

    def batches() -> Iterator[Any]:
        nonlocal paused_at
        unread: tuple[dict[str, float], Reported | None] | None = None
        for step in range(start + 1, config.steps + 1):
            yield batch_at(step - 1)
            if unread:  # only now, so that the next update is dispatched before one is waited for
                curves.add(*unread)
            unread = ({"step": step}, trainer.reported)
            if validation and step % validation_every == 0:
                unread[0]["validation_loss"] = validate(trainer, validation)
            due = checkpoints.due(step)
            if due or after:
                curves.add(*unread)
                unread = None
                if "stopped" in curves.rows[-1]:
                    break
                due = due or "rolled_back_to" in curves.rows[-1]
            if due:
                _save(trainer, checkpoints, curves, step, keeps)
                if step < config.steps and agree(job.pausing()):
                    paused_at = step
                    break
        if unread:
            curves.add(*unread)

    trainer.train(batches(), skip_jit=True)
    curves.close()
    if paused_at is not None:
        raise Stopped(f"paused at its checkpoint after step {paused_at} of {config.steps}")
    if trainer.compiles > 1:
        raise StageFailed(
            f"the training step compiled {trainer.compiles} times; a stage compiles each program"
            " once (fixed shapes)"
        )
    return [row for row in curves.rows if "loss" in row]


def validate(trainer: Trainer, batches: Sequence[Any]) -> float:
    """The mean of the batches' losses."""
    trained, _, frozen = trainer.state()
    with jax.set_mesh(trainer.mesh):
        losses = [
            trainer.validation_loss(trained, frozen, spread(batch, trainer.mesh))
            for batch in batches
        ]
    return float(np.mean(np.array(jax.device_get(losses))))


_ALWAYS_LOGGED = {"validation_loss", "stopped", "rolled_back_to"}
"""A row with one of these is a line of curves.jsonl whatever `log_every` is."""


class _Curves:
    """The rows of the curve, one per step; every `log_every`-th and those with a validation loss
    are also lines of curves.jsonl."""

    def __init__(
        self,
        job: Job[Any],
        config: TrainerConfig,
        extra: Callable[[int], dict[str, float]],
        after: Callable[[dict[str, float]], dict[str, float]] | None,
    ) -> None:
        self._job, self._config, self._extra, self._after = job, config, extra, after
        rates = jax.jit(learning_rate_schedule(config.optimizer, config.steps))
        self._rates = np.array(rates(np.arange(config.steps)))  # one program, for all steps
        self._file = (job.out / "curves.jsonl").open("w", encoding="utf-8")
        self.rows: list[dict[str, float]] = []

    def add(self, row: dict[str, float], reported: Reported | None = None) -> None:
        """Complete a step's row with what the step reported, once it is finished. Raises
        StageFailed when its loss, or the gradients' norm, is not finite."""
        step = int(row["step"])
        if reported:
            loss, metrics, grad_norm = reported
            row |= {"loss": float(loss), "grad_norm": float(grad_norm)}
            for name, value in row.items():
                if not np.isfinite(value):
                    raise StageFailed(
                        f"the {name} is {value} at step {step}: lower optimizer.learning_rate"
                    )
            row |= {name: float(value) for name, value in metrics.items()}
            row["learning_rate"] = float(self._rates[step - 1])
            row |= self._extra(step)
            shown = {
                name: row[name] for name in ("loss", "reward", "rewards/margin") if name in row
            }
            self._job.progress(step, self._config.steps, "steps", **shown)
            row |= self._after(row) if self._after else {}
        self._write([row])

    def restore(self, rows: list[dict[str, float]]) -> None:
        """Begin with the rows of finished steps."""
        self._write(rows)

    def close(self) -> None:
        self._file.close()

    def _write(self, rows: list[dict[str, float]]) -> None:
        self.rows += rows
        for row in rows:
            step = int(row["step"])
            if (
                not _ALWAYS_LOGGED.isdisjoint(row)
                or step in (1, self._config.steps)
                or step % self._config.log_every == 0
            ):
                self._file.write(json.dumps(row) + "\n")
        self._file.flush()


def _variables(trainer: Trainer) -> dict[str, nnx.Variable[Any]]:
    """The state that a step changes, by name in a checkpoint: the trained `parameters/...`, and the
    `optimizer/...`."""
    roots: tuple[tuple[str, Any, type[nnx.Variable[Any]]], ...] = (
        ("parameters", trainer.model, trainer.trained),
        ("optimizer", trainer.optimizer, nnx.Variable),
    )
    return {
        f"{part}/{'.'.join(path)}": node
        for part, root, kind in roots
        for path, node in variables_of(root)
        if isinstance(node, kind)
    }


def trained_arrays(trainer: Trainer) -> dict[str, Array]:
    """The arrays that a step changes, by name in a checkpoint."""
    return {name: node.get_value() for name, node in _variables(trainer).items()}


def put_back(trainer: Trainer, found: Checkpoint, *, counters: bool) -> None:
    """Restore parameters and optimizer from a checkpoint, array by array, freeing each old one.
    Without `counters` the optimizer's counts stay, and with them the position in the learning
    rate's schedule."""
    for key, node in _variables(trainer).items():
        if counters or found.forms[key][1].kind not in "iu":
            node.set_value(put(found.read(key), node.get_value().sharding))


def _save(
    trainer: Trainer, checkpoints: Checkpoints, curves: _Curves, step: int, keeps: Keeps | None
) -> None:
    arrays = trained_arrays(trainer)
    state, values = keeps.state(step) if keeps else ({}, {})
    arrays |= {f"kept/{name}": value for name, value in state.items()}
    checkpoints.save(step, arrays, {"rows": curves.rows, "kept": values})


def _resume(
    trainer: Trainer,
    checkpoints: Checkpoints,
    curves: _Curves,
    config: TrainerConfig,
    job: Job[Any],
    keeps: Keeps | None,
) -> int:
    """Restore the newest good checkpoint. Returns how many steps are finished: 0 if none fits the
    trainer."""
    found = checkpoints.newest()
    if found is None:
        return 0
    with found:
        problem = _difference(trainer, found)
        if problem:
            job.log.warning(
                "starting over: other code or other packages wrote checkpoint %s: %s",
                found.name,
                problem,
            )
            job.work.clear()  # rollouts and the best weights come of the same code's
            return 0
        put_back(trainer, found, counters=True)
        kept = [key for key in found.forms if key.startswith("kept/")]
        state = {key.removeprefix("kept/"): found.read(key) for key in kept}
    if keeps:
        keeps.restore(found.step, state, found.values["kept"])
    curves.restore(found.values["rows"])
    job.log.info(
        "resuming at step %d of %d from checkpoint %s, written %.0f s ago",
        found.step,
        config.steps,
        found.name,
        found.age,
    )
    job.progress(found.step, config.steps)
    return found.step


def _difference(trainer: Trainer, found: Checkpoint) -> str | None:
    """How a checkpoint's arrays differ from the trainer's in name, shape or dtype, or None."""
    expected = {key: (value.shape, value.dtype) for key, value in trained_arrays(trainer).items()}
    forms = {key: form for key, form in found.forms.items() if not key.startswith("kept/")}
    differing = [
        key for key in sorted(expected.keys() | forms.keys()) if expected.get(key) != forms.get(key)
    ]
    if not differing:
        return None
    shown = ", ".join(
        f"{key}: {forms.get(key)} instead of {expected.get(key)}" for key in differing[:3]
    )
    return f"{len(differing)} arrays differ: {shown}"


def rows_of_step(seed: int, step: int, batch_size: int, rows: int) -> np.ndarray:
    """Choose the rows of batch `step`: consecutive slices of one permutation per epoch, a pure
    function of (seed, step).

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
