"""Converts Orbax checkpoints of the Gemma library (Kaggle's `flax` variations) to Hugging Face's
format, once, in the cache.

Layout: https://github.com/google-deepmind/gemma, and Tunix's `models/gemma3/params.py`. Per layer
`attn/q_einsum/w` (N, D, H), `attn/kv_einsum/w` (2, K, D, H), `attn/attn_vec_einsum/w` (N, H, D),
`mlp/gating_einsum/w` (2, F, D) or (2, D, F), `mlp/linear/w` (F, D), norms by names of their own. It
holds one tensor at a time in memory.
"""

import logging
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from infra.settings import Settings
from infra.store.space import require_space
from schemas.base import InputError, digest
from tasks.data.tokens import Tokenizer
from tasks.models import decoder
from tasks.models.decoder import GemmaConfig
from tasks.models.hf_config import write_config
from tasks.models.hf_directory import TOKENIZER
from tasks.models.hf_weights import expected_tensors, write_weights
from tasks.models.model_source import find_orbax

log = logging.getLogger("lyceum.models")

SHARD_BYTES = 1 << 30

NORMS = {
    "pre_attention_norm/scale": "input_layernorm",
    "post_attention_norm/scale": "post_attention_layernorm",
    "pre_ffw_norm/scale": "pre_feedforward_layernorm",
    "post_ffw_norm/scale": "post_feedforward_layernorm",
    "attn/_query_norm/scale": "self_attn.q_norm",
    "attn/_key_norm/scale": "self_attn.k_norm",
}
_LAYER = re.compile(r"layer_(\d+)/(.+)")


def as_huggingface(directory: Path, settings: Settings) -> Path:
    """A directory in the cache, in Hugging Face's format, with the model of an Orbax checkpoint; it
    is made once.

    Args:
        directory: the checkpoint, or a directory with it and `tokenizer.model`.

    Raises:
        InputError: no checkpoint, no tokenizer, another architecture, or too little disk.
    """
    checkpoint = find_orbax(directory)
    if checkpoint is None:
        raise InputError(
            f"{directory} has no config.json and no Orbax checkpoint: it is no directory of a"
            " model."
        )
    tokenizer = _tokenizer(directory, checkpoint)
    about = [
        (path.relative_to(checkpoint).as_posix(), path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(checkpoint.rglob("*"))
    ]
    name = f"orbax-{digest([str(checkpoint.resolve()), about])[:16]}"
    target = Path(settings.cache) / "models" / name
    if target.exists():
        return target
    arrays = Arrays(checkpoint)
    config = config_of(arrays.shapes, str(checkpoint))
    require_space(
        target.parent, sum(size for _, size, _ in about), f"{checkpoint}, in Hugging Face's format,"
    )
    log.info("%s: writing it once in Hugging Face's format, to %s", checkpoint, target)
    new = target.with_name(f"{target.name}.{uuid.uuid4().hex}")
    new.mkdir()
    try:
        tokenizer.save(new / TOKENIZER)
        write_config(new, config, checkpoint.name, tokenizer)
        tensors = _tensors(arrays, config)
        dtype = np.dtype(config.dtype)
        narrow = ((name, array.astype(dtype, copy=False)) for name, array in tensors)
        write_weights(new, narrow, SHARD_BYTES)
        new.rename(target)
    except OSError:
        if not target.exists():  # otherwise another process was faster
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return target


def config_of(shapes: Mapping[str, tuple[int, ...]], where: str) -> GemmaConfig:
    """The published architecture with these shapes, apart from the rows of its vocabulary. Raises
    InputError."""
    try:
        vocab, embed = shapes["embedder/input_embedding"]
        heads, _, head = shapes["layer_0/attn/q_einsum/w"]
        kv_heads = shapes["layer_0/attn/kv_einsum/w"][1]
        hidden = shapes["layer_0/mlp/linear/w"][0]
    except KeyError as error:
        raise InputError(
            f"{where} has no {error.args[0]}: it is no checkpoint of a Gemma 2 or 3. It has"
            f" {', '.join(sorted(shapes)[:4])}."
        ) from error
    layers = len({match[1] for name in shapes if (match := _LAYER.match(name))})
    family = "gemma3" if "layer_0/attn/_query_norm/scale" in shapes else "gemma2"
    found = {
        "family": family,
        "num_layers": layers,
        "embed_dim": embed,
        "hidden_dim": hidden,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head,
    }
    for config in decoder.SIZES.values():
        if {name: getattr(config, name) for name in found} == found:
            return replace(config, vocab_size=vocab)
    raise InputError(
        f"{where} is no published Gemma: {family}, {layers} layers, width {embed}, feed-forward"
        f" {hidden}, {heads} heads of {head}, {kv_heads} of keys. Valid: the sizes of"
        f" {', '.join(decoder.SIZES)}."
    )


class Arrays:
    """The arrays of a checkpoint by `/`-joined names without the leading `transformer/`, read one
    at a time."""

    def __init__(self, checkpoint: Path) -> None:
        import jax
        import orbax.checkpoint as ocp

        self._path, self._reader = checkpoint.resolve(), ocp.PyTreeCheckpointer()
        try:
            metadata = self._reader.metadata(self._path).item_metadata
        except (OSError, ValueError, KeyError) as error:
            raise InputError(
                f"{checkpoint} cannot be read as an Orbax checkpoint ({error}); download it again."
            ) from error
        if metadata is None:
            raise InputError(
                f"{checkpoint} cannot be read as an Orbax checkpoint: what describes its arrays is"
                " missing. Download it again."
            )
        leaves, _ = jax.tree_util.tree_flatten_with_path(metadata.tree)
        self._keys = {_joined(keys): keys for keys, _ in leaves}
        self.shapes = {_joined(keys): tuple(map(int, leaf.shape)) for keys, leaf in leaves}

    def read(self, name: str) -> np.ndarray:
        import orbax.checkpoint as ocp

        if name not in self.shapes:
            raise InputError(f"the Orbax checkpoint has no {name}; download it again.")

        def branch(leaf: Any) -> Any:
            for key in reversed(self._keys[name]):
                leaf = {key.key: leaf}
            return leaf

        wanted = ocp.args.PyTreeRestore(
            item=branch(0),
            restore_args=branch(ocp.RestoreArgs(restore_type=np.ndarray)),
            partial_restore=True,
        )
        try:
            restored: Any = self._reader.restore(self._path, args=wanted)
        except (OSError, ValueError) as error:
            raise InputError(
                f"{self._path}: {name} cannot be read ({str(error).splitlines()[0]}); download it"
                " again."
            ) from error
        for key in self._keys[name]:
            restored = restored[key.key]
        array: np.ndarray = restored
        return array


def _joined(keys: Any) -> str:
    name = "/".join(str(key.key) for key in keys)
    return name.removeprefix("params/").removeprefix("transformer/")


def _tensors(arrays: Arrays, config: GemmaConfig) -> Iterator[tuple[str, np.ndarray]]:
    """Hugging Face's tensors, layer by layer. Raises InputError for arrays that are missing or of a
    wrong shape."""
    expected = expected_tensors(config)

    def named() -> Iterator[tuple[str, np.ndarray]]:
        yield "embed_tokens", arrays.read("embedder/input_embedding")
        for layer in range(config.num_layers):
            for name, array in _layer(arrays, config, f"layer_{layer}/"):
                yield f"layers.{layer}.{name}", array
        yield "norm", arrays.read("final_norm/scale")

    for name, array in ((f"model.{own}.weight", array) for own, array in named()):
        if array.shape != expected[name]:
            raise InputError(
                f"the Orbax checkpoint gives {name} the shape {array.shape} instead of"
                f" {expected[name]}; download it again."
            )
        yield name, array


def _layer(arrays: Arrays, config: GemmaConfig, prefix: str) -> Iterator[tuple[str, np.ndarray]]:
    embed = config.embed_dim
    for theirs, ours in NORMS.items():
        if config.qk_norm or not theirs.startswith("attn/"):
            yield ours, arrays.read(prefix + theirs)
    yield "self_attn.q_proj", _out_in(arrays.read(prefix + "attn/q_einsum/w"))
    keys, values = arrays.read(prefix + "attn/kv_einsum/w")
    yield "self_attn.k_proj", _out_in(keys)
    yield "self_attn.v_proj", _out_in(values)
    yield "self_attn.o_proj", arrays.read(prefix + "attn/attn_vec_einsum/w").reshape(-1, embed).T
    gate_up = arrays.read(prefix + "mlp/gating_einsum/w")
    gate, up = (part.T if part.shape[0] == embed else part for part in gate_up)
    yield "mlp.gate_proj", gate
    yield "mlp.up_proj", up
    yield "mlp.down_proj", arrays.read(prefix + "mlp/linear/w").T


def _out_in(array: np.ndarray) -> np.ndarray:
    """(heads, D, H) as (heads * H, D)."""
    heads, embed, head = array.shape
    return array.transpose(0, 2, 1).reshape(heads * head, embed)


def _tokenizer(directory: Path, checkpoint: Path) -> Tokenizer:
    places = [place / TOKENIZER for place in (directory, checkpoint)]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise InputError(
            f"{directory} has no {TOKENIZER}. Copy that of the same family beside the checkpoint:"
            " Kaggle's variations have one, and so has gs://gemma-data/tokenizers/."
        )
    return Tokenizer.from_file(path)
