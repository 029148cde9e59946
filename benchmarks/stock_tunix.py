"""Stock Tunix's side of `benchmarks.step_cpu`: its Gemma 3 with our weights, and the losses and
inputs that its trainers are given."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from tunix.models.gemma3 import model as tunix_gemma3
from tunix.rl import algo_core, common
from tunix.rl.grpo import grpo_learner
from tunix.sft import peft_trainer
from tunix.sft.dpo import dpo_trainer

from tasks.data.tokens import prompt_tokens
from tasks.models.decoder import weight_shapes
from tasks.models.loading import base_model

PAD = 0


def sft_input(batch: peft_trainer.TrainingInput) -> dict[str, Any]:
    """The input of the default loss, as Tunix's examples make it."""
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


def tunix_model(name: str) -> Any:
    """Tunix's Gemma 3 with the weights of our base model of this name."""
    loaded = base_model(name, 0)
    size, model = loaded.config, loaded.model
    rope = {
        "local_base_frequency": round(size.local_rope),
        "global_base_frequency": round(size.global_rope),
    }
    same = ("num_layers", "embed_dim", "hidden_dim", "num_heads", "head_dim", "num_kv_heads")
    sizes = {"num_embed": size.vocab_size, "sliding_window_size": size.window}
    sizes |= {name: getattr(size, name) for name in same}
    config = tunix_gemma3.ModelConfig(**sizes, **rope, param_dtype=jnp.float32)
    weights = {}
    for name in weight_shapes(size):
        owner: Any = model.layers if name.startswith("layers.") else model
        weights[name] = getattr(owner, name.rpartition(".")[2]).get_value()
    graph, state = nnx.split(tunix_gemma3.Gemma3(config, rngs=nnx.Rngs(0)))
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
    """A tokenizer with the methods that Tunix's sampler calls: a prompt is a user's turn, as it is
    for ours."""

    def __init__(self, own: Any) -> None:
        self.own = own
        self.bos_id, self.pad_id = (lambda: own.bos_id), (lambda: own.pad_id)
        self.eos_id = lambda: own.end_of_turn_id

    def encode(self, text: str) -> list[int]:
        return prompt_tokens(self.own, text)[1:]  # the sampler adds <bos>

    def decode(self, tokens: Sequence[int]) -> str:
        return self.own.decode(tokens)
