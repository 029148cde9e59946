"""Stock Tunix's programs of Gemma 3 1B with LoRA, for `tasks.planning.compiler` to compile for a
TPU that is not here: the peer in `benchmarks.step_tpu`; and what turns our weights into Tunix's.

Tunix 0.1.7's own modules, qwix adapters, losses, optimizer, body of the train step
(`PeftTrainer._train_step`) and sampler, sharded as its annotations say. One thing is replaced: its
sharding constraints, which do nothing where no TPU is, by real ones. Without them the compiler
chooses worse layouts, and the comparison would flatter us. For the same reason the rows of a batch,
and of the sampler's cache, are divided among the devices, which Tunix's sampler leaves to the
compiler.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import qwix
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tunix.generate import sampler as tunix_sampler
from tunix.models.gemma3 import model as tunix_gemma3
from tunix.rl import algo_core, common
from tunix.rl.grpo import grpo_learner
from tunix.sft import peft_trainer
from tunix.sft.dpo import dpo_trainer
from tunix.utils import sharding_utils

from tasks.data.tokens import prompt_tokens
from tasks.devices.hosts import BATCH
from tasks.models.gemma import GemmaConfig, weight_shapes
from tasks.models.loading import base_model

PROJECTIONS = ".*(q_einsum|kv_einsum|qkv_einsum|attn_vec_einsum|gate_proj|up_proj|down_proj)"
PAD, END_OF_TURN = 0, 106

Program = tuple[Any, tuple[Any, ...]]
"""A jitted function and its abstract arguments: for `tasks.planning.compiler.analyse`."""


class Stock:
    """Stock Tunix's programs.

    Args:
        mesh: with axes "fsdp" and "tp".
        rank: of the adapters.
    """

    def __init__(self, mesh: Mesh, *, rank: int) -> None:
        sharding_utils.shard = lambda x, spec: jax.lax.with_sharding_constraint(
            x, NamedSharding(mesh, PartitionSpec(*spec[: x.ndim]))
        )
        self.mesh = mesh
        self.config = tunix_gemma3.ModelConfig.gemma3_1b_it()

        def make() -> Any:
            model = tunix_gemma3.Gemma3(self.config, rngs=nnx.Rngs(0))
            provider = qwix.LoraProvider(module_path=PROJECTIONS, rank=rank, alpha=2.0 * rank)
            shape = model.get_model_input()
            return qwix.apply_lora_to_model(model, provider, rngs=nnx.Rngs(0), **shape)

        def optimizer() -> nnx.Optimizer:
            return nnx.Optimizer(make(), optax.adamw(1e-4), wrt=nnx.LoRAParam)

        with mesh:
            self.model, self.optimizer = nnx.eval_shape(make), nnx.eval_shape(optimizer)

    def sft(self, rows: int, length: int) -> Program:
        """PeftTrainer's step with its default loss, on `rows` of the whole mesh."""
        arrays = (self._rows(dtype, rows, length) for dtype in (jnp.int32, jnp.bool_))
        batch = peft_trainer.TrainingInput(*arrays)
        return self._step(peft_trainer._default_loss_fn, sft_input, batch, has_aux=False)

    def simpo(self, pairs: int, prompt: int, response: int) -> Program:
        """DPOTrainer's step with `simpo_loss`."""
        rows, length = 2 * pairs, prompt + response
        batch = dpo_trainer.TrainExample(
            input_ids=self._rows(jnp.int32, rows, length),
            positions=self._rows(jnp.int32, rows, length),
            attention_mask=self._rows(jnp.bool_, rows, length, length),
            ref_chosen_logps=None,
            ref_rejected_logps=None,
            completion_mask=self._rows(jnp.bool_, rows, response),
            logits_to_keep=response,
        )
        return self._step(simpo_loss, lambda batch: {"train_example": batch}, batch, has_aux=True)

    def grpo(self, rows: int, prompt: int, response: int) -> Program:
        """The actor's step of GRPOLearner, with a KL to a reference."""
        batch = grpo_learner.TrainExample(
            prompt_ids=self._rows(jnp.int32, rows, prompt),
            prompt_mask=self._rows(jnp.bool_, rows, prompt),
            completion_ids=self._rows(jnp.int32, rows, response),
            completion_mask=self._rows(jnp.bool_, rows, response),
            advantages=self._rows(jnp.float32, rows),
            ref_per_token_logps=self._rows(jnp.float32, rows, response),
            old_per_token_logps=None,
        )
        loss = grpo_loss(PAD, END_OF_TURN)
        return self._step(loss, lambda batch: {"train_example": batch}, batch, has_aux=True)

    def rollout(self, rows: int, prompt: int, response: int) -> tuple[Program, Program]:
        """The sampler's prefill, and its loop, whose scope is "decode".

        Every row draws its own token from the whole vocabulary.
        """
        one, length = self.config, prompt + response
        sizes = (length, one.num_layers, one.num_kv_heads, one.head_dim)
        ids = {"bos_id": lambda: 2, "eos_id": lambda: END_OF_TURN, "pad_id": lambda: PAD}
        tokenizer = SimpleNamespace(encode=None, decode=None, **ids)
        sampler = tunix_sampler.Sampler(self.model, tokenizer, tunix_sampler.CacheConfig(*sizes))
        sampler.eos_ids = np.array([END_OF_TURN])

        def state() -> Any:
            made = sampler.init_sample_state(
                jnp.zeros((rows, prompt), jnp.int32),
                length,
                include_logits=False,
                forbidden_token_ids=None,
                temperature=1.0,
                top_p=1.0,
                top_k=None,
                beam_size=None,
                seed=jax.random.PRNGKey(0),
            )
            # A static field, which inside of a trace is no array.
            return made.replace(num_input_tokens=prompt)

        def placed(leaf: Any) -> jax.ShapeDtypeStruct:
            by_row = leaf.ndim and leaf.shape[0] == rows
            spec = PartitionSpec(BATCH) if by_row else PartitionSpec()
            return _shape(leaf.shape, leaf.dtype, self.mesh, spec)

        def prefill(weights: Any, state: Any) -> Any:
            return sampler._prefill_fn(weights, state, None, echo=False)

        def decode(weights: Any, state: Any) -> Any:
            with jax.named_scope("decode"):
                return sampler._decode_fn(weights, state)

        weights = jax.tree.leaves(_placed(nnx.variables(self.model), self.mesh))
        args = (weights, jax.tree.map(placed, jax.eval_shape(state)))
        return (jax.jit(prefill, donate_argnums=1), args), (jax.jit(decode, donate_argnums=1), args)

    def _step(self, loss: Any, inputs: Any, batch: Any, *, has_aux: bool) -> Program:
        graph, state = nnx.split((self.model, self.optimizer))
        trainer: Any = SimpleNamespace(
            loss_fn=loss, gen_model_input_fn=inputs, _has_aux=has_aux, _lora_enabled=True
        )

        def train_step(state: nnx.State, batch: Any) -> Any:
            model, optimizer = nnx.merge(graph, state)
            reported = peft_trainer.PeftTrainer._train_step(trainer, model, optimizer, batch)
            return reported, nnx.state(optimizer), nnx.state(model, nnx.LoRAParam)

        return jax.jit(train_step), (_placed(state, self.mesh), batch)

    def _rows(self, dtype: Any, *shape: int) -> Any:
        return _shape(shape, dtype, self.mesh, PartitionSpec(BATCH))


def sft_input(batch: peft_trainer.TrainingInput) -> dict[str, Any]:
    """What the default loss takes, as Tunix's examples make it."""
    real = batch.input_tokens != PAD
    return {
        "input_tokens": batch.input_tokens,
        "input_mask": batch.input_mask,
        "positions": common.build_positions_from_mask(real),
        "attention_mask": common.make_causal_attn_mask(real),
    }


def simpo_loss(
    model: Any, train_example: dpo_trainer.TrainExample, beta: float = 2.5, margin: float = 0.5
) -> tuple[jax.Array, Any]:
    """SimPO (Meng et al., 2405.14734), which Tunix has not: on the log-probabilities of its DPO
    loss, with the metrics that it wants."""
    one = train_example
    rows = (one.input_ids, one.positions, one.attention_mask)
    sums = dpo_trainer.compute_logps(
        model, *rows, one.logits_to_keep, one.completion_mask, images=None
    )
    sizes = jnp.split(one.completion_mask.sum(-1), 2)
    chosen, rejected = (beta * each / size for each, size in zip(sums, sizes, strict=True))
    aux = {
        "rewards/chosen": chosen.mean(),
        "rewards/rejected": rejected.mean(),
        "log_probs/chosen": sums[0].mean(),
        "log_probs/rejected": sums[1].mean(),
        "rewards/margin": (chosen - rejected).mean(),
        "rewards/accuracy": (chosen > rejected).mean(),
    }
    return -jax.nn.log_sigmoid(chosen - rejected - beta * margin).mean(), aux


def grpo_loss(pad_id: int, eos_id: int, beta: float = 0.04) -> Any:
    """GRPOLearner's loss, as it hands it to its trainer."""
    config = grpo_learner.GRPOConfig(num_generations=8, beta=beta, kl_loss_mode="low_var_kl")
    config.temperature = 1.0

    def loss(model: Any, train_example: Any) -> Any:
        return algo_core.grpo_loss_fn(
            model, train_example, algo_config=config, pad_id=pad_id, eos_id=eos_id
        )

    return loss


def _placed(state: nnx.State, mesh: Mesh) -> nnx.State:
    """The state's shapes, sharded as Tunix's annotations say; without one whole on every device."""

    def place(leaf: Any, spec: Any) -> jax.ShapeDtypeStruct:
        found = tuple(spec) if isinstance(spec, PartitionSpec) else ()
        axes = [
            axis if axis and size % mesh.shape[axis] == 0 else None
            for axis, size in zip(found, leaf.shape, strict=False)
        ]
        return _shape(leaf.shape, np.dtype(leaf.dtype), mesh, PartitionSpec(*axes))

    def is_spec(node: Any) -> bool:
        return isinstance(node, PartitionSpec) or node is None

    leaves, tree = jax.tree.flatten(state)
    specs = jax.tree.leaves(nnx.get_partition_spec(state), is_leaf=is_spec)
    placed = [place(leaf, spec) for leaf, spec in zip(leaves, specs, strict=True)]
    return jax.tree.unflatten(tree, placed)


def _shape(shape: Any, dtype: Any, mesh: Mesh, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


def tunix_sizes(config: GemmaConfig) -> dict[str, Any]:
    """What the configurations of both of Tunix's families have."""
    same = ("num_layers", "embed_dim", "hidden_dim", "num_heads", "head_dim", "num_kv_heads")
    return {"num_embed": config.vocab_size, "sliding_window_size": config.window} | {
        name: getattr(config, name) for name in same
    }


def tunix_model(name: str) -> Any:
    """Tunix's Gemma 3 with the weights of our base model of this name."""
    loaded = base_model(name, 0)
    size, model = loaded.config, loaded.model
    rope = {
        "local_base_frequency": round(size.local_rope),
        "global_base_frequency": round(size.global_rope),
    }
    config = tunix_gemma3.ModelConfig(**tunix_sizes(size), **rope, param_dtype=jnp.float32)
    weights = {}
    for name in weight_shapes(size):
        owner: Any = model.layers if name.startswith("layers.") else model
        weights[name] = getattr(owner, name.rpartition(".")[2]).get_value()
    return with_weights(tunix_gemma3.Gemma3(config, rngs=nnx.Rngs(0)), weights)


def with_weights(tunix: Any, weights: dict[str, jax.Array]) -> Any:
    """A model of Tunix's (Gemma 2 or 3) with our weights, by our names."""
    graph, state = nnx.split(tunix)
    named = [
        (path, variable.replace(tunix_weight(path, weights)))
        for path, variable in nnx.to_flat_state(state)
    ]
    return nnx.merge(graph, nnx.from_flat_state(named))


def tunix_weight(path: tuple[Any, ...], weights: dict[str, jax.Array]) -> jax.Array:
    """The value of the Tunix parameter at `path`."""
    name = ".".join(map(str, path))
    if path[0] != "layers":
        return weights["embedding" if "input_embedding" in name else "final_norm"]
    layer, rest = path[1], ".".join(map(str, path[2:]))

    def own(*names: str) -> list[jax.Array]:
        return [weights[f"layers.{one}"][layer] for one in names]

    def heads_first(*names: str) -> jax.Array:
        return jnp.stack([one.swapaxes(0, 1) for one in own(*names)])

    if "qkv_einsum" in rest:
        return heads_first("q_proj", "k_proj", "v_proj")
    if "kv_einsum" in rest:
        return heads_first("k_proj", "v_proj")
    if "q_einsum" in rest:
        return heads_first("q_proj")[0]
    norms = {
        "pre_attention_norm": "input_layernorm",
        "post_att": "post_attention_layernorm",  # post_attention_norm, post_attn_norm
        "pre_ffw_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
        "_query_norm": "q_norm",
        "_key_norm": "k_norm",
        "attn_vec_einsum": "o_proj",
        "gate_proj": "gate_proj",
        "up_proj": "up_proj",
        "down_proj": "down_proj",
    }
    return own(next(ours for theirs, ours in norms.items() if theirs in rest))[0]


class TunixTokenizer:
    """What Tunix's sampler wants of a tokenizer: a prompt is a user's turn, as it is for ours."""

    def __init__(self, own: Any) -> None:
        self.own = own
        self.bos_id, self.pad_id = (lambda: own.bos_id), (lambda: own.pad_id)
        self.eos_id = lambda: own.end_of_turn_id

    def encode(self, text: str) -> list[int]:
        return prompt_tokens(self.own, text)[1:]  # the sampler adds <bos>

    def decode(self, tokens: Sequence[int]) -> str:
        return self.own.decode(tokens)
