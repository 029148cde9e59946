"""The trainer: Tunix's `PeftTrainer`, running one compiled program of ours for each update.

Tunix's own step accumulates with `optax.MultiSteps`: one dispatch per micro-batch, a second copy of
the gradients, and frozen weights among its results. Here a `lax.scan` over micro-batches is part of
one program that donates and updates only what is trained.

Used of Tunix: the model, its optimizer and its loss as `PeftTrainer` holds them, and its loop
(`train`), which asks `create_train_step_fn` for the step and `tasks.training.loop` for batches. Not
used: its checkpoints (Orbax; resuming from them needs the data iterated again), its accumulation,
and its metrics logger (it writes on host 0 alone, and removes all of JAX's listeners when it
closes). Importing Tunix costs 1.7 s of CPU time and 110 MB, only in workers that train.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from tunix.sft.peft_trainer import PeftTrainer, TrainingConfig
from tunix.sft.utils import is_lora_enabled

from schemas.trainer_config import TrainerConfig
from tasks.devices.hosts import by_rows, constrained, spread
from tasks.models.loading import LoadedModel
from tasks.models.lora import add_lora
from tasks.models.peft import load_adapters
from tasks.models.sharding import place, weight_specs
from tasks.models.weights import widen
from tasks.planning.programs import Program, compilations, rows, shapes
from tasks.training.optimizers import make_optimizer

Reported = tuple[jax.Array, dict[str, jax.Array], jax.Array]
"""The loss, the loss function's metrics and the gradient norm of an update; reading one waits for
it."""


class Trainer(PeftTrainer):
    """A Tunix trainer that averages loss, metrics and gradients over micro-batches in one program.

    Every array of the training input has rows, or texts in them, as its first axis: of N,
    micro-batch k of A has those from k*N/A to (k+1)*N/A. Each device of the mesh computes its part
    of the rows of every micro-batch. Trained weights are donated to the program and updated in
    place; frozen ones (with LoRA all except the adapters) are only read.

    Attributes:
        is_wanted: computed in the program for each micro-batch: False skips it, and it adds
            nothing. None: none is skipped.
        reported: the newest update's report; None before the first.
    """

    is_wanted: Callable[[Any], jax.Array] | None = None
    reported: Reported | None = None

    def __init__(
        self,
        model: nnx.Module,
        optimizer: optax.GradientTransformation,
        mesh: jax.sharding.Mesh,
        accumulation: int = 1,
    ) -> None:
        config = TrainingConfig(eval_every_n_steps=1, pbar_description=None)  # the loop has both
        super().__init__(model, optimizer, config)
        self.mesh, self.accumulation = mesh, accumulation
        self.trained: type[nnx.Param[Any]] = nnx.LoRAParam if is_lora_enabled(model) else nnx.Param

    def create_train_step_fn(self) -> Callable[..., Any]:
        """The step that Tunix's loop calls with each batch; use `skip_jit`, since it is compiled
        here."""
        return self.step

    def step(self, batch: Any) -> Reported:
        """Dispatch one update. Returns its report."""
        with jax.set_mesh(self.mesh):
            after = self.train_step(*self.state(), spread(batch, self.mesh))
        trained, optimizer, loss, metrics, grad_norm = after
        nnx.update(self.model, trained)
        nnx.update(self.optimizer, optimizer)
        self.reported = loss, metrics, grad_norm
        return loss, metrics, grad_norm

    @property
    def compiles(self) -> int:
        """How many programs the step has compiled: 1 after any number of steps of one shape."""
        return compilations(self.train_step)

    def state(self) -> tuple[nnx.State, nnx.State, nnx.State]:
        """The first arguments of `train_step`: trained weights, optimizer state, frozen weights."""
        trained, frozen = nnx.state(self.model, self.trained, ...)
        return trained, nnx.state(self.optimizer), frozen

    @cached_property
    def train_step(self) -> Any:
        """The program (trained, optimizer state, frozen, batch) -> (trained, optimizer state, loss,
        metrics, gradient norm)."""
        graph, *_ = nnx.split(self.model, self.trained, ...)
        optimizer_graph, _ = nnx.split(self.optimizer)
        specs = [leaf.sharding.spec for leaf in jax.tree.leaves(self.state()[:2])]

        def train_step(
            trained: nnx.State, optimizer_state: nnx.State, frozen: nnx.State, batch: Any
        ) -> tuple[Any, ...]:
            def loss_of(trained: nnx.State, micro: Any) -> tuple[jax.Array, Any]:
                return self._loss(nnx.merge(graph, trained, frozen, copy=True), micro)

            (loss, aux), gradients = self._accumulated(
                jax.value_and_grad(loss_of, has_aux=True), trained, batch
            )
            model = nnx.merge(graph, trained, frozen, copy=True)
            optimizer = nnx.merge(optimizer_graph, optimizer_state, copy=True)
            optimizer.update(model, gradients)
            leaves, tree = jax.tree.flatten((nnx.state(model, self.trained), nnx.state(optimizer)))
            # keep their placement for the next step, whatever the compiler would choose
            after = [constrained(leaf, *spec) for leaf, spec in zip(leaves, specs, strict=True)]
            return *jax.tree.unflatten(tree, after), loss, aux, optax.global_norm(gradients)

        return jax.jit(train_step, donate_argnums=(0, 1))

    def _loss(self, model: nnx.Module, batch: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Loss and metrics; a loss function may return the loss alone."""
        out = self.loss_fn(model, **self.gen_model_input_fn(batch))
        return out if isinstance(out, tuple) else (out, {})

    def _accumulated(
        self, loss_and_gradients: Callable[[nnx.State, Any], Any], trained: nnx.State, batch: Any
    ) -> Any:
        """The mean of `loss_and_gradients` over the micro-batches."""
        if self.accumulation == 1:
            return loss_and_gradients(trained, batch)

        def added(total: Any, micro: Any) -> Any:
            return jax.tree.map(jnp.add, total, loss_and_gradients(trained, micro))

        def accumulate(total: Any, micro: Any) -> tuple[Any, None]:
            if self.is_wanted is None:
                return added(total, micro), None
            unchanged: Callable[..., Any] = lambda total, _: total  # noqa: E731
            return jax.lax.cond(self.is_wanted(micro), added, unchanged, total, micro), None

        micros = jax.tree.map(
            lambda x: by_rows(x.reshape(self.accumulation, -1, *x.shape[1:]), axis=1), batch
        )
        first = jax.tree.map(lambda x: x[0], micros)
        zeros = jax.tree.map(
            lambda x: jnp.zeros(x.shape, x.dtype),
            jax.eval_shape(loss_and_gradients, trained, first),
        )
        total, _ = jax.lax.scan(accumulate, zeros, micros)
        return jax.tree.map(lambda x: x / self.accumulation, total)

    @cached_property
    def validation_loss(self) -> Any:
        """The program (trained, frozen, micro-batch) -> loss."""
        graph, *_ = nnx.split(self.model, self.trained, ...)

        def validation_loss(trained: nnx.State, frozen: nnx.State, batch: Any) -> jax.Array:
            return self._loss(nnx.merge(graph, trained, frozen, copy=True), batch)[0]

        return jax.jit(validation_loss)

    def programs(
        self,
        batch: Any,
        steps: int,
        trips: Mapping[str, float],
        *,
        validations: float = 0.0,
        resident: Any = None,
    ) -> list[Program]:
        """The programs that `fit` compiles.

        Args:
            batch: arrays, or shapes, of one training input.
            steps: of training.
            trips, resident: see `Program`.
            validations: how many micro-batches are validated; 0 where nothing is.
        """
        trained, optimizer, frozen = map(shapes, self.state())
        batch = rows(batch, self.mesh)
        args: tuple[Any, ...] = (trained, optimizer, frozen, batch)
        found = [Program("train_step", self.train_step, args, steps, resident, trips)]
        if validations:

            def micro(x: Any) -> jax.ShapeDtypeStruct:
                shape = (x.shape[0] // self.accumulation, *x.shape[1:])
                return jax.ShapeDtypeStruct(shape, x.dtype, sharding=x.sharding)

            program, args = self.validation_loss, (trained, frozen, jax.tree.map(micro, batch))
            found.append(Program("validation_loss", program, args, validations, optimizer, trips))
        return found


def make_trainer(loaded: LoadedModel, config: TrainerConfig, seed: int) -> Trainer:
    """A trainer of `loaded.model` with the config's optimizer. With LoRA, first add adapters, new
    ones or those that the config names; only they are trained.

    Trained weights become float32 (`save_trained` rounds them back), and everything is placed for
    training. With shapes instead of weights, the trainer has `programs` only.
    """
    model = loaded.model
    if config.lora:
        add_lora(model, config.lora, seed)
        if config.lora.adapters and not isinstance(
            model.embedding.get_value(), jax.ShapeDtypeStruct
        ):
            load_adapters(model, config.lora, loaded.name)
    else:
        widen(model)
    model.remat = config.remat
    specs = weight_specs(loaded.config, loaded.mesh, trained=config.lora is None)
    place(model, loaded.mesh, specs)
    optimizer = for_shapes(make_optimizer(config.optimizer, config.steps))
    trainer = Trainer(model, optimizer, loaded.mesh, config.accumulation)
    place(trainer.optimizer, loaded.mesh, specs)
    return trainer


def for_shapes(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The optimizer, with shapes as its state where the parameters are shapes
    (jax.ShapeDtypeStruct)."""

    def init(parameters: Any) -> Any:
        leaves = jax.tree.leaves(parameters)
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
            return jax.eval_shape(optimizer.init, parameters)
        return optimizer.init(parameters)

    return optax.GradientTransformation(init, optimizer.update)


def rows_at_once(config: TrainerConfig) -> dict[str, int]:
    """Setting -> how many rows the trainer computes at a time, for `make_mesh`."""
    name = "micro_batch_size" if config.micro_batch_size else "batch_size"
    return {name: config.batch_size // config.accumulation}
