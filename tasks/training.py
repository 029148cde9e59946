"""Training: one compiled step on Tunix's trainers, accumulation inside it, batches by step number, resumed where it was interrupted.

Tunix accumulates with `optax.MultiSteps`, one dispatch per micro-batch and a second copy of the gradients; here a `lax.scan` over
micro-batches is part of the one compiled step. Tunix resumes by iterating over the data again; here batch n is `batch_at(n)`, a function of
the step alone (and of what a stage `Keeps`), and a resumed run ends with the bytes of an undisturbed one.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tunix.rl import trainer as policy_trainer
from tunix.sft import peft_trainer
from tunix.sft.dpo import dpo_trainer

from schemas.base import StageFailed
from schemas.training import TrainerConfig
from tasks.checkpoints import Array, Checkpoint, Checkpoints, fingerprint
from tasks.hosts import by_rows, constrained, put, spread
from tasks.job import Job
from tasks.models.gemma import Gemma, widen
from tasks.models.loading import LoadedModel, save_model
from tasks.models.lora import add_lora, merge_lora
from tasks.models.sharding import place, weight_specs
from tasks.optimizers import learning_rate_schedule, make_optimizer
from tasks.programs import Program, rows, shapes

TUNIX_LOOP = {"eval_every_n_steps": 1, "pbar_description": None}
"""Arguments that Tunix's trainers require for their own loop, which is not used."""


class OneProgramStep(peft_trainer.PeftTrainer):
    """A Tunix trainer whose step averages loss, metrics and gradients over `accumulation` micro-batches in one compiled program.

    Every array of the training input has the batch as its first axis, and micro-batch k holds rows k*B/A to (k+1)*B/A. Each device of the
    mesh computes its part of the rows of every micro-batch. What is trained is given to the program and taken back from it in place; what
    is frozen (with LoRA: everything but the adapters) is only read, where Tunix's step returns it.
    """

    mesh: jax.sharding.Mesh
    accumulation: int = 1
    compiled_before: int = 0
    """How many programs the step compiled in the attempt that this one goes on from."""

    @property
    def compiles(self) -> int:
        """How many programs the step has compiled: 1 after any number of steps of one shape, in this attempt or in one before it."""
        return max(self.train_step._cache_size(), self.compiled_before)

    def state(self) -> tuple[nnx.State, nnx.State, nnx.State]:
        """The first arguments of `train_step`: what is trained, the optimizer's state, and what is frozen."""
        trained, frozen = nnx.state(self.model, self._wrt, ...)
        return trained, nnx.state(self.optimizer), frozen

    @property
    def _wrt(self) -> type[nnx.Param[Any]]:
        return nnx.LoRAParam if self._lora_enabled else nnx.Param

    @cached_property
    def train_step(self) -> Any:
        """The program (trained, optimizer state, frozen, batch) -> (trained, optimizer state, loss, metrics, gradient norm)."""
        graph, *_ = nnx.split(self.model, self._wrt, ...)
        optimizer_graph, _ = nnx.split(self.optimizer)
        specs = [leaf.sharding.spec for leaf in jax.tree.leaves(self.state()[:2])]

        def train_step(trained: nnx.State, optimizer_state: nnx.State, frozen: nnx.State, batch: Any) -> tuple[Any, ...]:
            def loss_of(trained: nnx.State, micro: Any) -> tuple[jax.Array, Any]:
                out = self.loss_fn(nnx.merge(graph, trained, frozen, copy=True), **self.gen_model_input_fn(micro))
                return out if self._has_aux else (out, None)

            (loss, aux), gradients = self._accumulated(jax.value_and_grad(loss_of, has_aux=True), trained, batch)
            model = nnx.merge(graph, trained, frozen, copy=True)
            optimizer = nnx.merge(optimizer_graph, optimizer_state, copy=True)
            optimizer.update(model, gradients)
            leaves, tree = jax.tree.flatten((nnx.state(model, self._wrt), nnx.state(optimizer)))
            # the next step finds them where this one did, whatever the compiler would choose
            after = [constrained(leaf, *spec) for leaf, spec in zip(leaves, specs, strict=True)]
            return *jax.tree.unflatten(tree, after), loss, aux, optax.global_norm(gradients)

        return jax.jit(train_step, donate_argnums=(0, 1))

    def _accumulated(self, loss_and_gradients: Callable[[nnx.State, Any], Any], trained: nnx.State, batch: Any) -> Any:
        """The mean over the micro-batches of what `loss_and_gradients` returns."""
        if self.accumulation == 1:
            return loss_and_gradients(trained, batch)

        def accumulate(total: Any, micro: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, loss_and_gradients(trained, micro)), None

        micros = jax.tree.map(lambda x: by_rows(x.reshape(self.accumulation, -1, *x.shape[1:]), axis=1), batch)
        first = jax.tree.map(lambda x: x[0], micros)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(loss_and_gradients, trained, first))
        total, _ = jax.lax.scan(accumulate, zeros, micros)
        return jax.tree.map(lambda x: x / self.accumulation, total)

    @cached_property
    def validation_loss(self) -> Any:
        """The program (trained, frozen, micro-batch) -> loss."""
        graph, *_ = nnx.split(self.model, self._wrt, ...)

        def validation_loss(trained: nnx.State, frozen: nnx.State, batch: Any) -> jax.Array:
            out = self.loss_fn(nnx.merge(graph, trained, frozen, copy=True), **self.gen_model_input_fn(batch))
            return out[0] if self._has_aux else out

        return jax.jit(validation_loss)

    def programs(
        self, batch: Any, steps: int, trips: Mapping[str, float], *, validations: float = 0.0, resident: Any = None
    ) -> list[Program]:
        """What `fit` compiles.

        Args:
            batch: arrays, or shapes, of one training input.
            steps: of training.
            trips, resident: see `Program`.
            validations: how many micro-batches are validated; 0 where nothing is.
        """
        trained, optimizer, frozen = map(shapes, self.state())
        batch = rows(batch, self.mesh)
        found = [Program("train_step", self.train_step, (trained, optimizer, frozen, batch), steps, resident, trips)]
        if validations:
            micro = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct((x.shape[0] // self.accumulation, *x.shape[1:]), x.dtype, sharding=x.sharding), batch
            )
            args = (trained, frozen, micro)
            found.append(Program("validation_loss", self.validation_loss, args, validations, resident=optimizer, trips=trips))
        return found


class SftTrainer(OneProgramStep):
    """Supervised fine-tuning on `tasks.losses.cross_entropy`."""

    def __init__(self, model: Gemma, optimizer: optax.GradientTransformation) -> None:
        super().__init__(model, optimizer, peft_trainer.TrainingConfig(**TUNIX_LOOP))


class PreferenceTrainer(OneProgramStep, dpo_trainer.DPOTrainer):
    """Tunix's preference trainer on inputs that are already tokenised, padded and stacked."""

    def __init__(self, model: Gemma, optimizer: optax.GradientTransformation) -> None:
        super().__init__(model, None, optimizer, dpo_trainer.DPOTrainingConfig(**TUNIX_LOOP))


class PolicyTrainer(OneProgramStep, policy_trainer.Trainer):
    """Tunix's RL trainer."""

    def __init__(self, model: Gemma, optimizer: optax.GradientTransformation) -> None:
        super().__init__(model, optimizer, peft_trainer.TrainingConfig(**TUNIX_LOOP), custom_checkpoint_metadata_fn=dict)


TrainerT = TypeVar("TrainerT", SftTrainer, PreferenceTrainer, PolicyTrainer)


class Keeps(Protocol):
    """What a stage keeps between steps beside the trainer, such as a rollout that more updates will use."""

    def kept(self, step: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays, and JSON, that it needs to go on after `step` finished steps."""

    def restore(self, step: int, arrays: dict[str, np.ndarray], values: dict[str, Any]) -> None:
        """Go on after `step` finished steps with what `kept` returned then."""


def make_trainer(kind: type[TrainerT], loaded: LoadedModel, config: TrainerConfig, seed: int) -> TrainerT:
    """A trainer of `loaded.model` with the config's optimizer; with LoRA the model gets its adapters first, and only they are trained.

    What is trained becomes float32 (`save_trained` rounds it back), and everything is placed for training. With shapes in place of weights,
    a trainer for its `programs` alone.
    """
    model = loaded.model
    if config.lora:
        add_lora(model, config.lora, seed)
    else:
        widen(model)
    model.remat = config.remat
    specs = weight_specs(loaded.config, loaded.mesh, trained=config.lora is None)
    place(model, loaded.mesh, specs)
    trainer = kind(model, for_shapes(make_optimizer(config.optimizer, config.steps)))
    trainer.mesh, trainer.accumulation = loaded.mesh, config.accumulation
    place(trainer.optimizer, loaded.mesh, specs)
    return trainer


def for_shapes(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The optimizer, whose state for shapes (jax.ShapeDtypeStruct) is made of shapes."""

    def init(parameters: Any) -> Any:
        abstract = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(parameters))
        return jax.eval_shape(optimizer.init, parameters) if abstract else optimizer.init(parameters)

    return optax.GradientTransformation(init, optimizer.update)


def rows_at_once(config: TrainerConfig) -> dict[str, int]:
    """Of how many rows a trainer computes the gradient at a time, by the name of the setting: what `make_mesh` takes."""
    return {"micro_batch_size" if config.micro_batch_size else "batch_size": config.batch_size // config.accumulation}


def save_trained(trainer: OneProgramStep, loaded: LoadedModel, job: Job[Any]) -> None:
    """Write the model, with its adapters merged, and `state.json`.

    `state.json` holds the fingerprints of the trained parameters (of adapters: unmerged) and of the optimizer's state after the last step:
    artifacts of equal digests ended with equal optimizers.
    """
    config: TrainerConfig = job.config
    fingerprints = {part: fingerprint(arrays) for part, arrays in _state(trainer).items()}
    (job.out / "state.json").write_text(json.dumps({"step": config.steps, **fingerprints}) + "\n", encoding="utf-8")
    if config.lora:
        merge_lora(loaded.model)
    save_model(loaded, job.out)


def fit(
    trainer: OneProgramStep,
    batch_at: Callable[[int], Any],
    config: TrainerConfig,
    job: Job[Any],
    *,
    validation: Sequence[Any] = (),
    validation_every: int = 1,
    extra: Callable[[int], dict[str, float]] = lambda step: {},
    keeps: Keeps | None = None,
) -> list[dict[str, float]]:
    """Train until `config.steps` steps are finished, from the newest checkpoint if there is one, and write `curves.jsonl`.

    Checkpoints are saved between steps, when they are due, and after the validation of the same step. Nothing else runs meanwhile.

    Args:
        trainer: a trainer with its loss set.
        batch_at: step (from 0) -> training input of `batch_size` rows. Called when the step before has been dispatched, so it may
            sample from the trainer's model.
        config: steps, batch sizes, optimizer.
        job: receives progress and the curve, keeps the checkpoints.
        validation: fixed batches whose mean loss is measured before the first step and every `validation_every` steps, and logged.
        extra: step (from 1) -> more values for that step's row of the curve.
        keeps: what else belongs into a checkpoint.

    Returns:
        one row per step: step, loss, grad_norm, learning_rate and what the loss reports.

    Raises:
        StageFailed: the step compiled more than once, or the loss is not finite.
    """
    if config.batch_size % config.accumulation or config.batch_size % (config.micro_batch_size or config.batch_size):
        raise StageFailed(f"batch_size = {config.batch_size} is no multiple of micro_batch_size = {config.micro_batch_size}")
    curves = _Curves(job, config, extra)
    checkpoints = Checkpoints(job.work, seconds=job.checkpoint_seconds, every=job.checkpoint_steps, log=job.log)
    start = _resume(trainer, checkpoints, curves, config, job, keeps)
    if validation and not start:
        curves.add({"step": 0, "validation_loss": _validate(trainer, validation)})
    unread: tuple[dict[str, float], peft_trainer.MetricsBuffer] | None = None
    for step in range(start + 1, config.steps + 1):
        dispatched = run_step(trainer, batch_at(step - 1))
        if unread:  # only now, so that the host need not wait for a step before it dispatches the next
            curves.add(*unread)
        unread = ({"step": step}, dispatched)
        if validation and step % validation_every == 0:
            unread[0]["validation_loss"] = _validate(trainer, validation)
        if checkpoints.due(step):
            curves.add(*unread)
            unread = None
            _save(trainer, checkpoints, curves, step, keeps)
    if unread:
        curves.add(*unread)
    curves.close()
    if trainer.compiles != 1:
        raise StageFailed(f"the training step compiled {trainer.compiles} times; a stage compiles each program once (fixed shapes)")
    return [row for row in curves.rows if "loss" in row]


def run_step(trainer: OneProgramStep, batch: Any) -> peft_trainer.MetricsBuffer:
    """Dispatch one step. What it reports can be read from the result, which waits for the step to finish."""
    with jax.set_mesh(trainer.mesh):
        trained, optimizer, loss, aux, grad_norm = trainer.train_step(*trainer.state(), spread(batch, trainer.mesh))
    nnx.update(trainer.model, trained)
    nnx.update(trainer.optimizer, optimizer)
    reported = {"grad_norm": (grad_norm, np.mean)}
    buffer = trainer._buffered_train_metrics = trainer._buffer_metrics(None, loss, step=0, additional_metrics=reported)
    trainer._post_process_train_step(aux)  # adds to the buffer
    return buffer


def _validate(trainer: OneProgramStep, batches: Sequence[Any]) -> float:
    """The mean of the batches' losses."""
    trained, _, frozen = trainer.state()
    with jax.set_mesh(trainer.mesh):
        losses = [trainer.validation_loss(trained, frozen, spread(batch, trainer.mesh)) for batch in batches]
    return float(np.mean(np.array(jax.device_get(losses))))


class _Curves:
    """The rows of the curve, one per step; every `log_every`-th and those with a validation loss are also lines of curves.jsonl."""

    def __init__(self, job: Job[Any], config: TrainerConfig, extra: Callable[[int], dict[str, float]]) -> None:
        self._job, self._config, self._extra = job, config, extra
        self._schedule = learning_rate_schedule(config.optimizer, config.steps)
        self._file = (job.out / "curves.jsonl").open("w", encoding="utf-8")
        self.rows: list[dict[str, float]] = []

    def add(self, row: dict[str, float], reported: peft_trainer.MetricsBuffer | None = None) -> None:
        """Complete a step's row with what the step reported, once it is finished. Raises StageFailed when its loss is not finite."""
        step = int(row["step"])
        if reported:
            row["loss"] = float(reported.loss)
            if not np.isfinite(row["loss"]):
                raise StageFailed(f"the loss is {row['loss']} at step {step}: lower optimizer.learning_rate")
            for name, (values, reduce) in reported.additional_metrics.items():
                row[name] = float(reduce([np.asarray(value, np.float32) for value in values]))
            row["learning_rate"] = float(self._schedule(step - 1))
            row |= self._extra(step)
            shown = {name: row[name] for name in ("loss", "reward", "rewards/margin") if name in row}
            self._job.progress(step, self._config.steps, "steps", **shown)
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
            if "validation_loss" in row or step in (1, self._config.steps) or step % self._config.log_every == 0:
                self._file.write(json.dumps(row) + "\n")
        self._file.flush()


def _variables(model: nnx.Module, optimizer: nnx.Optimizer, lora: bool) -> dict[str, dict[str, nnx.Variable[Any]]]:
    """What a step changes, by name: the trained `parameters` and the state of the `optimizer`."""
    trained = nnx.LoRAParam if lora else nnx.Param
    return {
        part: {
            ".".join(map(str, path)): node
            for path, node in nnx.iter_graph(root)
            if isinstance(node, kind) and isinstance(node.get_value(), jax.Array)  # optax leaves place-holders where it keeps nothing
        }
        for part, root, kind in (("parameters", model, trained), ("optimizer", optimizer, nnx.Variable))
    }


def _trained(trainer: OneProgramStep) -> dict[str, dict[str, nnx.Variable[Any]]]:
    return _variables(trainer.model, trainer.optimizer, trainer._lora_enabled)


def _state(trainer: OneProgramStep) -> dict[str, dict[str, Array]]:
    return {part: {name: node.get_value() for name, node in nodes.items()} for part, nodes in _trained(trainer).items()}


def _save(trainer: OneProgramStep, checkpoints: Checkpoints, curves: _Curves, step: int, keeps: Keeps | None) -> None:
    arrays: dict[str, Array] = {f"{part}/{name}": value for part, values in _state(trainer).items() for name, value in values.items()}
    kept, values = keeps.kept(step) if keeps else ({}, {})
    arrays |= {f"kept/{name}": value for name, value in kept.items()}
    checkpoints.save(step, arrays, {"rows": curves.rows, "compiles": trainer.compiles, "kept": values})


def _resume(
    trainer: OneProgramStep, checkpoints: Checkpoints, curves: _Curves, config: TrainerConfig, job: Job[Any], keeps: Keeps | None
) -> int:
    """Restore the newest good checkpoint. Returns how many steps are finished: 0 where there is none that fits the trainer."""
    found = checkpoints.newest()
    if found is None:
        return 0
    with found:
        problem = _difference(trainer, found)
        if problem:
            job.log.warning("starting over: other code or other packages wrote checkpoint %s: %s", found.name, problem)
            checkpoints.forget()
            return 0
        kept = _restore(trainer, found)
    if keeps:
        keeps.restore(found.step, kept, found.values["kept"])
    trainer.compiled_before = found.values["compiles"]
    curves.restore(found.values["rows"])
    job.log.info("resuming at step %d of %d from checkpoint %s, written %.0f s ago", found.step, config.steps, found.name, found.age)
    job.progress(found.step, config.steps)
    return found.step


def _nodes(trainer: OneProgramStep) -> dict[str, nnx.Variable[Any]]:
    """What a step changes, by its name in a checkpoint."""
    return {f"{part}/{name}": node for part, nodes in _trained(trainer).items() for name, node in nodes.items()}


def _difference(trainer: OneProgramStep, found: Checkpoint) -> str | None:
    """How the arrays of a checkpoint differ in name, shape or dtype from those that the trainer has, or None."""
    expected = {key: (node.get_value().shape, node.get_value().dtype) for key, node in _nodes(trainer).items()}
    forms = {key: form for key, form in found.forms.items() if not key.startswith("kept/")}
    differing = [key for key in sorted(expected.keys() | forms.keys()) if expected.get(key) != forms.get(key)]
    if not differing:
        return None
    shown = ", ".join(f"{key}: {forms.get(key)} instead of {expected.get(key)}" for key in differing[:3])
    return f"{len(differing)} arrays differ: {shown}"


def _restore(trainer: OneProgramStep, found: Checkpoint) -> dict[str, np.ndarray]:
    """Replace the trainer's arrays one by one, each freeing the one before. Returns the arrays that are not the trainer's."""
    for key, node in _nodes(trainer).items():
        node.set_value(put(found.read(key), node.get_value().sharding))
    return {key.removeprefix("kept/"): found.read(key) for key in found.forms if key.startswith("kept/")}


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
