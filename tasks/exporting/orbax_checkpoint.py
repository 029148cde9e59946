"""Exports a trained stage as an Orbax checkpoint of the Gemma library, which Tunix's own Gemma 3
and `tasks.models.orbax` read.

    DIR/checkpoint/         `tunix.models.gemma3.params.create_model_from_checkpoint` takes its path
    DIR/tokenizer.model     `create_tokenizer` takes its path

Names and axes are the library's (`tasks.models.orbax` has them); the dtype is the model's. It holds
the whole model in memory, and reads back and compares each array.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from schemas.base import InputError, StageFailed
from tasks.exporting.exported import require_room
from tasks.models.decoder import GemmaConfig, weight_shapes
from tasks.models.hf_config import read_config
from tasks.models.hf_weights import Weights
from tasks.models.model_source import TOKENIZER
from tasks.models.orbax import NORMS, Arrays

CHECKPOINT = "checkpoint"


def export_orbax(source: Path, out: Path, say: Callable[[str], None]) -> None:
    """Write a trained stage's artifact into the empty directory `out`.

    Args:
        source: the artifact's directory.
        say: called with each step.

    Raises:
        InputError: a model whose checkpoints Tunix does not load, or too little disk.
        StageFailed: an array read back differs from the one written.
    """
    import orbax.checkpoint as ocp

    config = read_config(source)[0]
    if config.family != "gemma3":
        raise InputError(
            "--orbax writes a Gemma 3, as Tunix's loader reads it, and this model is a"
            f" {config.family}. Leave --orbax out: every tool reads the Hugging Face directory."
        )
    size = require_room(out, source.glob("model*.safetensors"))
    say(f"writing an Orbax checkpoint, {size / 1e6:,.0f} MB")
    arrays = _arrays(config, Weights(source, config))
    tree: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        module, _, leaf = name.rpartition("/")
        tree.setdefault(f"transformer/{module}", {})[leaf] = array
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save((out / CHECKPOINT).resolve(), tree)
    shutil.copyfile(source / TOKENIZER, out / TOKENIZER)
    say("reading it back")
    written = Arrays(out / CHECKPOINT)
    wrong = sorted(written.shapes.keys() ^ arrays.keys())
    wrong += [name for name in arrays if not wrong and not _same(written.read(name), arrays[name])]
    if wrong:
        raise StageFailed(
            f"the checkpoint does not hold what was written: {wrong[0]}, one of {len(wrong)}. Look"
            " at the disk, and export again."
        )


def _arrays(config: GemmaConfig, weights: Weights) -> dict[str, np.ndarray]:
    """The model's arrays by the library's names, `/`-joined."""
    shapes = weight_shapes(config)

    def read(name: str, layer: int | None = None) -> np.ndarray:
        if layer is None:
            return weights.read(name, tuple(slice(None) for _ in shapes[name]))
        whole = tuple(slice(None) for _ in shapes[f"layers.{name}"][1:])
        return weights.read(f"layers.{name}", (slice(layer, layer + 1), *whole))[0]

    found = {"embedder/input_embedding": read("embedding"), "final_norm/scale": read("final_norm")}
    for layer in range(config.num_layers):
        keys_values = [read(name, layer).transpose(1, 0, 2) for name in ("k_proj", "v_proj")]
        gate_up = [read(name, layer).T for name in ("gate_proj", "up_proj")]
        own = {
            "attn/q_einsum/w": read("q_proj", layer).transpose(1, 0, 2),
            "attn/kv_einsum/w": np.stack(keys_values),
            "attn/attn_vec_einsum/w": read("o_proj", layer),
            "mlp/gating_einsum/w": np.stack(gate_up),
            "mlp/linear/w": read("down_proj", layer),
            **{name: read(ours.rpartition(".")[2], layer) for name, ours in NORMS.items()},
        }
        found |= {f"layer_{layer}/{name}": array for name, array in own.items()}
    return {name: np.ascontiguousarray(array) for name, array in found.items()}


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()
