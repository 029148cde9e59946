"""What Tunix's "Quick Start" trains, on stand-ins, for a few steps: in Tunix's own environment, which its documented commands made.

    python tunix_measured.py STEPS OUT

The page trains all weights of Gemma 3 270M with its PeftTrainer and optax.adamw, on 64 rows of 256 tokens. Its weights, tokenizer and data
cannot be had here: the model has the page's config and random weights, the rows are random tokens of full length, and few of them make a
batch (64 need 43 GiB by its notebook, which takes 2 on Colab). What the page leaves out or has wrong is mended as in that notebook.

OUT gets a JSON object: seconds of each step, of the last by rows of a batch, and the page's arguments that this version does not know.
"""

import inspect
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from tunix.models.gemma3 import model as gemma
from tunix.sft import peft_trainer, utils

ROWS, LENGTH = (1, 3), 256
"""Sizes of batches: two of them tell what a row costs and what a step does."""
PAGE = {
    "PeftTrainer": ("model", "optimizer", "mesh", "model_input_fn"),
    "train": ("train_ds", "num_steps", "eval_ds", "eval_steps"),
}
"""Arguments that the page passes to the trainer and to `train`."""


def tell(line: str) -> None:
    """Print now, as a line of its own, whatever a progress bar left: the benchmark notes when."""
    sys.stdout.write(f"\n{line}\n")
    sys.stdout.flush()


def batches(
    steps: int, rows: int, vocabulary: int, model: nnx.Module, seconds: list[float]
) -> Iterator[peft_trainer.TrainingInput]:
    """Random rows. The trainer asks for the next one when it has sent a step off: then the step is waited for and its time noted."""
    rng = np.random.default_rng(0)
    for number in range(1, steps + 1):
        tokens = rng.integers(5, vocabulary, (rows, LENGTH), dtype=np.int32)
        begun = time.perf_counter()
        yield peft_trainer.TrainingInput(tokens, np.ones(tokens.shape, np.bool_))
        jax.block_until_ready(jax.tree.leaves(nnx.state(model)))
        seconds.append(time.perf_counter() - begun)
        tell(f"step {number} of {steps}, {rows} rows, measured: {seconds[-1]:.1f} s")


def inputs(batch: Any) -> dict[str, Any]:
    """As the page's `input_fn`: nothing is padding here."""
    real = batch.input_tokens != 0
    return {
        "input_tokens": batch.input_tokens,
        "input_mask": batch.input_mask,
        "positions": utils.build_positions_from_mask(real),
        "attention_mask": utils.make_causal_attn_mask(real),
    }


def main(steps: int, out: Path) -> None:
    tell("imported")
    trainer_class = peft_trainer.PeftTrainer
    known = {
        "PeftTrainer": inspect.signature(trainer_class.__init__),
        "train": inspect.signature(trainer_class.train),
    }
    unknown = [
        name for what, names in PAGE.items() for name in names if name not in known[what].parameters
    ]
    config = gemma.ModelConfig.gemma3_270m()
    mesh = jax.make_mesh((1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    seconds: list[float] = []
    by_rows: dict[int, float] = {}
    with jax.set_mesh(mesh):
        model = gemma.Gemma3(config, rngs=nnx.Rngs(0))
        tell("ready")
        for rows in ROWS:
            limit = peft_trainer.TrainingConfig(eval_every_n_steps=steps + 1, max_steps=steps)
            trainer = trainer_class(model, optax.adamw(1e-5), limit).with_gen_model_input_fn(inputs)
            trainer.train(batches(steps, rows, config.num_embed, model, seconds))
            by_rows[rows] = seconds[-1]
    found = {
        "seconds": seconds,
        "by_rows": by_rows,
        "rows": ROWS,
        "length": LENGTH,
        "unknown": unknown,
    }
    out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
