"""SFT of `gemma3-tiny` on this CPU: supervised tokens per second, ours beside stock Tunix, same rows, same size, same optimizer.

    python -m benchmarks.sft_speed

Stock is Tunix's PeftTrainer on its own Gemma 3 with its default loss: one row per example, padded to the longest (it cannot pack). Ours is
the `sft` stage's trainer: rows packed, logits where there is a target. A step of either has the same number of tokens, padding included.
Steps are taken in turns; the best of the rounds counts for each. `same rows` gives ours stock's rows, one example each: what is left is
the program.
"""

import os
import time
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
import optax
from flax import nnx
from tunix.models.gemma3 import model as tunix_gemma3
from tunix.rl import common
from tunix.sft import peft_trainer

from tasks import sft
from tasks.data.packing import Packed, pack
from tasks.data.tokens import prompt_tokens, response_tokens
from tasks.models.gemma import SIZES
from tasks.models.loading import base_model
from tasks.models.tiny import tiny_tokenizer
from tasks.teachers import procedural
from tasks.training import run_step

TOKENS = 2048
"""Of a step, padding included."""
ROUNDS, STEPS = 6, 5


def main() -> None:
    teacher = procedural.Config.parse({"name": "procedural", "rows": dict.fromkeys(("math", "coding", "science", "general"), 300)})
    tokenizer = tiny_tokenizer()
    examples = list(procedural.rows(teacher, seed=0))
    rows = [(prompt_tokens(tokenizer, one.prompt), response_tokens(tokenizer, one.response())) for one in examples]
    longest = max(len(prompt) + len(response) for prompt, response in rows)
    alone = pack_each(rows, longest)
    together = pack(rows, 128, tokenizer.pad_id)
    runs = {"stock Tunix": stock(alone), "ours, same rows": ours(alone), "ours, packed": ours(together)}
    best = dict.fromkeys(runs, 0.0)
    for _ in range(ROUNDS):
        for name, (step, supervised) in runs.items():
            started = time.perf_counter()
            for _ in range(STEPS):
                loss = step()
            assert np.isfinite(loss)
            best[name] = max(best[name], STEPS * supervised / (time.perf_counter() - started))
    mean = np.mean([len(prompt) + len(response) for prompt, response in rows])
    print(f"{len(rows)} rows of {mean:.0f} tokens on average, {longest} at most; {TOKENS} tokens a step")
    for name, speed in best.items():
        print(f"{name:18}{speed:8.0f} supervised tokens/s{speed / best['stock Tunix']:8.2f} x")


def pack_each(rows: list[tuple[list[int], list[int]]], length: int) -> Packed:
    """One example in each row."""
    each = [pack([row], length, 0) for row in rows]
    return Packed(*(np.concatenate([getattr(one, name) for one in each]) for name in ("tokens", "mask", "segments", "positions")))


def ours(packed: Packed) -> tuple[Any, float]:
    """A step of the stage's trainer, which returns the loss, and its mean number of supervised tokens."""
    size = TOKENS // packed.tokens.shape[1]
    table = {"model": "gemma3-tiny", "steps": 1000, "batch_size": size, "sequence_length": packed.tokens.shape[1]}
    config = sft.Config.parse({**table, "optimizer": {"learning_rate": 1e-3}})
    trainer = sft.trainer_of(config, base_model("gemma3-tiny", 0))
    batch = sft.batch(packed, np.arange(size), 1 / packed.mask[:size].sum())

    def step() -> float:
        return float(run_step(trainer, batch).loss)

    step()
    return step, float(packed.mask[:size].sum())


def stock(packed: Packed) -> tuple[Any, float]:
    """The same of Tunix."""
    ours, size = SIZES["gemma3-tiny"], TOKENS // packed.tokens.shape[1]
    config = tunix_gemma3.ModelConfig(
        num_layers=ours.num_layers,
        num_embed=ours.vocab_size,
        embed_dim=ours.embed_dim,
        hidden_dim=ours.hidden_dim,
        num_heads=ours.num_heads,
        head_dim=ours.head_dim,
        num_kv_heads=ours.num_kv_heads,
        sliding_window_size=ours.window,
        local_base_frequency=10_000,
        global_base_frequency=1_000_000,
        param_dtype=jax.numpy.float32,
    )
    model = tunix_gemma3.Gemma3(config, rngs=nnx.Rngs(0))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    trainer = peft_trainer.PeftTrainer(model, optimizer, peft_trainer.TrainingConfig(eval_every_n_steps=1))

    def model_input(batch: peft_trainer.TrainingInput) -> dict[str, Any]:
        real = batch.input_tokens != 0
        positions, attention = common.build_positions_from_mask(real), common.make_causal_attn_mask(real)
        tokens, mask = batch.input_tokens, batch.input_mask
        return {"input_tokens": tokens, "input_mask": mask, "positions": positions, "attention_mask": attention}

    trainer.with_gen_model_input_fn(model_input)
    train_step, _ = trainer.jit_train_and_eval_step(cache_nnx_graph=True)
    batch = peft_trainer.TrainingInput(jax.numpy.asarray(packed.tokens[:size]), jax.numpy.asarray(packed.mask[:size]))

    def step() -> float:
        return float(train_step(batch)[0])

    step()
    return step, float(packed.mask[:size].sum())


if __name__ == "__main__":
    main()
