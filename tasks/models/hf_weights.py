"""The weights of a Gemma in Hugging Face's format: safetensors, in one file or in several with an
index, and their names for our weights.

Base checkpoints and our own artifacts have this format, so there is one reader. It reads tensors
slice by slice and holds no more in memory than a caller asks for. Of a multimodal checkpoint it
reads the text part alone. `hf_config` reads config.json.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open, serialize_file

from schemas.base import InputError
from tasks.data.tokens import Tokenizer
from tasks.models.decoder import GemmaConfig, weight_shapes
from tasks.models.decoder_layer import PROJECTIONS
from tasks.models.hf_config import write_config
from tasks.models.hf_directory import INDEX, WEIGHTS, weight_files

SHARD_BYTES = 4 << 30
"""The largest file of weights; more bytes are written as several files."""

READ_BYTES = 16 << 20
"""Bytes of the embedding, which is as large as ten layers, to read at a time."""

HEAD = "score.weight"
"""The scalar head of a reward model, (1, D), as in the class for sequence classification with one
label."""

_EMBEDDING, _UNEMBEDDING = "model.embed_tokens.weight", "lm_head.weight"
"""Some tools write both. Gemma ties them, so the second must be a copy."""

_IGNORED = ("vision_tower.", "multi_modal_projector.", "lm_head.", "rotary_emb.", HEAD)
"""Parts of names of tensors that the text model does not use."""

_EXPONENT = np.uint16(0x7F80)
"""The exponent's bits of a bfloat16; NaN and infinity have all of them."""

_FLOATS = ("BF16", "F16", "F32")
_SHOWN = 4
"""How many wrong tensors a message names."""

# Names and layout


def tensor_name(name: str, layer: int = 0) -> str:
    """Hugging Face's name of a weight, or of one layer of it: `layers.q_proj` ->
    `model.layers.3.self_attn.q_proj.weight`."""
    if not name.startswith("layers."):
        return {"embedding": _EMBEDDING, "final_norm": "model.norm.weight"}[name]
    leaf = name.removeprefix("layers.")
    module = (
        "self_attn." if leaf[1:] in ("_proj", "_norm") else "mlp." if leaf in PROJECTIONS else ""
    )
    return f"model.layers.{layer}.{module}{leaf}.weight"


def _axes(config: GemmaConfig, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Lengths of the axes that make the rows, and the columns, of one layer of a weight in the
    file, where matrices are (out, in); ours are (in, out)."""
    shape = weight_shapes(config)[name]
    if not name.startswith("layers."):
        return shape, ()
    leaf, shape = name.removeprefix("layers."), shape[1:]
    if leaf not in PROJECTIONS:
        return shape, ()
    inside = len(PROJECTIONS[leaf][0])
    return shape[inside:], shape[:inside]


def _stored_shape(config: GemmaConfig, name: str) -> tuple[int, ...]:
    rows, columns = _axes(config, name)
    if name == "embedding":
        return rows
    return (prod(rows), prod(columns)) if columns else rows


def expected_tensors(config: GemmaConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor of a checkpoint."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name in weight_shapes(config):
        layers = config.num_layers if name.startswith("layers.") else 1
        shapes |= {tensor_name(name, layer): _stored_shape(config, name) for layer in range(layers)}
    return shapes


def to_tensors(
    config: GemmaConfig, name: str, weight: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """A weight of ours, whole, as Hugging Face's tensors, one by one."""
    _, columns = _axes(config, name)
    if not name.startswith("layers."):
        yield tensor_name(name), weight
        return
    for layer, own in enumerate(weight):
        turned = own.transpose(*range(len(columns), own.ndim), *range(len(columns)))
        yield tensor_name(name, layer), turned.reshape(_stored_shape(config, name))


# Reading


class Weights:
    """The weights of a directory, opened and checked; it reads tensors on demand.

    Raises InputError for weights that are missing, incomplete, or not those of `config`.
    """

    def __init__(self, directory: Path, config: GemmaConfig) -> None:
        self._directory, self._config = directory, config
        self._files = {path: opened(path) for path in weight_files(directory)}
        places = {name: file for file in self._files.values() for name in file.keys()}  # noqa: SIM118  no dict
        used = {
            name: file
            for name, file in places.items()
            if not any(part in name for part in _IGNORED)
        }
        embedding = _EMBEDDING.removeprefix("model.")
        prefixes = (name.removesuffix(embedding) for name in used if name.endswith(embedding))
        prefix = next(prefixes, "model.")
        self._tensors: dict[str, Any] = {
            f"model.{name.removeprefix(prefix)}": file.get_slice(name)
            for name, file in used.items()
        }
        heads = (name for name in places if name.endswith(_UNEMBEDDING))
        self._unembedding: Any = next((places[name].get_slice(name) for name in heads), None)
        self._check()

    def _check(self) -> None:
        expected = expected_tensors(self._config)
        found = {name: tuple(tensor.get_shape()) for name, tensor in self._tensors.items()}
        if wrong := differences(expected, found):
            more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
            raise InputError(
                f"the weights in {self._directory} are not those of its config.json:"
                f" {'; '.join(wrong[:_SHOWN])}{more}. Download them again."
            )
        if self._unembedding is not None:
            self._require_tied(tuple(self._unembedding.get_shape()) == found[_EMBEDDING])
        odd = {str(tensor.get_dtype()) for tensor in self._tensors.values()} - set(_FLOATS)
        if odd:
            raise InputError(
                f"the weights in {self._directory} are stored as {', '.join(sorted(odd))}; a model"
                f" to train has {', '.join(_FLOATS)}. Take the checkpoint that is not quantised."
            )

    def _require_tied(self, tied: bool) -> None:
        if not tied:
            raise InputError(
                f"the weights in {self._directory}: lm_head.weight is no copy of the embedding. A"
                " Gemma has one matrix for both, and so have the models that are trained here. Take"
                " the checkpoint before its unembedding was trained or enlarged."
            )

    def read(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """A part of one of our weights, in the config's dtype.

        Args:
            name: as in `weight_shapes`.
            index: a slice of each of its axes, without a step.

        Raises:
            InputError: the file is incomplete, or has values that are not finite, or an
                unembedding of its own.
        """
        shape = weight_shapes(self._config)[name]
        spans = [range(*one.indices(length)) for one, length in zip(index, shape, strict=True)]
        out = np.empty([len(span) for span in spans], self._config.dtype)
        rows, columns = _axes(self._config, name)
        if name.startswith("layers."):
            inside, outside = spans[1 : 1 + len(columns)], spans[1 + len(columns) :]
            for place, layer in enumerate(spans[0]):
                part = self._part(tensor_name(name, layer), rows, outside, columns, inside)
                out[place] = part.transpose(*range(len(outside), part.ndim), *range(len(outside)))
            return out
        step = max(1, READ_BYTES // (4 * prod(shape[1:])))
        for start in range(0, len(spans[0]), step):
            outside = [spans[0][start : start + step], *spans[1:]]
            out[start : start + step] = self._part(
                tensor_name(name), rows[:1], outside[:1], rows[1:], outside[1:]
            )
        return out

    def _part(
        self,
        name: str,
        rows: tuple[int, ...],
        in_rows: list[range],
        columns: tuple[int, ...],
        in_columns: list[range],
    ) -> np.ndarray:
        """Some of a tensor's rows and columns, each split into its axes."""
        axes = [(rows, in_rows), (columns, in_columns)] if columns else [(rows, in_rows)]
        index = tuple(
            slice(spans[0].start * prod(lengths[1:]), spans[0].stop * prod(lengths[1:]))
            for lengths, spans in axes
        )
        part: np.ndarray = self._tensors[name][index]
        if name == _EMBEDDING and self._unembedding is not None:
            self._require_tied(np.array_equal(self._unembedding[index], part))
        if not _finite(part):
            raise InputError(
                f"the weights in {self._directory}: {name} has values that are no numbers (NaN or"
                " infinity), which make every answer meaningless. Download them again, or take an"
                " earlier checkpoint."
            )
        shape: list[int] = []
        cut: list[slice] = []
        for lengths, spans in axes:
            shape += [len(spans[0]), *lengths[1:]]
            cut += [slice(None), *(slice(one.start, one.stop) for one in spans[1:])]
        return part.reshape(shape)[tuple(cut)]


def read_head(directory: Path) -> np.ndarray | None:
    """The scalar head of a directory's model (D,), float32, or None: it has none. Raises InputError
    as `Weights`."""
    for file in map(opened, weight_files(directory)):
        if HEAD in file.keys():  # noqa: SIM118  no dict
            return np.asarray(file.get_tensor(HEAD), np.float32).reshape(-1)
    return None


def differences(
    expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]
) -> list[str]:
    """The tensors that are missing, unknown or misshapen, in words: `x is (3,) instead of (4,)`."""
    return [
        f"{name} is {found.get(name, 'missing')} instead of {expected.get(name, 'nothing')}"
        for name in sorted(expected.keys() | found.keys())
        if expected.get(name) != found.get(name)
    ]


def opened(path: Path) -> Any:
    """A safetensors file. Raises InputError: it is damaged."""
    try:
        return safe_open(path, framework="np")
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path} is damaged or not whole ({error}); remove it and download it again."
        ) from error


def _finite(part: np.ndarray) -> bool:
    """Whether all values are finite; for bfloat16 by the exponent, several times faster than its
    dtype's own test."""
    if part.dtype == ml_dtypes.bfloat16:
        return not bool(((part.view(np.uint16) & _EXPONENT) == _EXPONENT).any())
    return part.dtype.kind != "f" or bool(np.isfinite(part).all())


# Writing


def write_weights(
    directory: Path, tensors: Iterable[tuple[str, np.ndarray]], shard_bytes: int = SHARD_BYTES
) -> None:
    """Write tensors as `model.safetensors`, or as several files and an index if they have more than
    `shard_bytes`, with at most so many bytes in memory.

    The same tensors in the same order make the same bytes.
    """
    parts: list[Path] = []
    waiting: dict[str, dict[str, Any]] = {}
    places: dict[str, int] = {}
    total = size = 0

    def flush() -> None:
        parts.append(directory / f"part-{len(parts) + 1}")
        # transformers asks for the metadata
        serialize_file(waiting, parts[-1], metadata={"format": "pt"})
        waiting.clear()

    for name, tensor in tensors:
        if waiting and size + tensor.nbytes > shard_bytes:
            flush()
            size = 0
        content = tensor.tobytes()
        waiting[name] = {"dtype": tensor.dtype.name, "shape": tensor.shape, "data": content}
        places[name] = len(parts)
        size, total = size + tensor.nbytes, total + tensor.nbytes
    flush()
    several, names = len(parts) > 1, [WEIGHTS]
    if several:
        numbers = range(1, len(parts) + 1)
        names = [f"model-{one:05d}-of-{len(parts):05d}.safetensors" for one in numbers]
    for part, name in zip(parts, names, strict=True):
        part.rename(directory / name)
    if several:
        index = {
            "metadata": {"total_size": total},
            "weight_map": {name: names[place] for name, place in sorted(places.items())},
        }
        (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def write_model(
    directory: Path,
    config: GemmaConfig,
    name: str,
    tokenizer: Tokenizer,
    weight: Callable[[str], np.ndarray],
    head: np.ndarray | None = None,
) -> None:
    """Write a model's directory, except the tokenizer's own files.

    Args:
        weight: returns a whole weight of ours by its name; called for one at a time.
        head: (D,) of a reward model; it stays float32.
    """
    write_config(directory, config, name, tokenizer, scalar=head is not None)
    dtype = np.dtype(config.dtype)
    tensors = (
        pair
        for own in weight_shapes(config)
        for pair in to_tensors(config, own, weight(own).astype(dtype, copy=False))
    )
    heads = [] if head is None else [(HEAD, head.reshape(1, -1))]
    write_weights(directory, chain(tensors, heads), SHARD_BYTES)
