"""Models on disk: `model.json`, `weights.safetensors`, `tokenizer.model` in one directory.

Weights are stored merged (LoRA folded into the base), one tensor per Tunix parameter, named by its path: `layers.0.attn.q_einsum.w`.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from safetensors.numpy import load_file, save_file

from schemas.base import InputError
from tasks.data.tokens import Tokenizer
from tasks.hosts import fetch, make_mesh, place
from tasks.models.gemma3 import Gemma3, ModelConfig, initialise, model_config
from tasks.models.tiny import tiny_tokenizer


@dataclass
class LoadedModel:
    """A model on the devices of `mesh`, with its tokenizer. `name` is the architecture, e.g. `gemma3-tiny`."""

    name: str
    config: ModelConfig
    model: Gemma3
    tokenizer: Tokenizer
    mesh: Mesh


def base_model(name: str, seed: int, mesh: Mesh | None = None) -> LoadedModel:
    """The model a chain starts from, on one device if no mesh is given. `gemma3-tiny` is initialised at random from `seed`.

    Raises:
        InputError: an unknown name.
    """
    config = model_config(name)
    return _placed(LoadedModel(name, config, initialise(config, seed), tiny_tokenizer(), mesh or make_mesh()))


def policy_or_base(inputs: dict[str, Path], name: str, seed: int, mesh: Mesh) -> LoadedModel:
    """The model of the `policy` input when a recipe connects one, else the base model."""
    return load_model(inputs["policy"], mesh) if "policy" in inputs else base_model(name, seed, mesh)


def save_model(loaded: LoadedModel, directory: Path) -> None:
    """Write the model and its tokenizer. The same weights give the same bytes."""
    tensors = {_name(path): fetch(variable.get_value()) for path, variable in nnx.to_flat_state(nnx.state(loaded.model, nnx.Param))}
    save_file(tensors, directory / "weights.safetensors")
    loaded.tokenizer.save(directory / "tokenizer.model")
    (directory / "model.json").write_text(json.dumps({"model": loaded.name}) + "\n", encoding="utf-8")


def load_model(directory: Path, mesh: Mesh | None = None) -> LoadedModel:
    """Read what `save_model` wrote; onto one device if no mesh is given. Raises InputError naming missing, unknown or misshapen tensors."""
    name = json.loads((directory / "model.json").read_text(encoding="utf-8"))["model"]
    config = model_config(name)
    graph, state = nnx.split(nnx.eval_shape(lambda: Gemma3(config, rngs=nnx.Rngs(0))))
    tensors = load_file(directory / "weights.safetensors")
    flat = nnx.to_flat_state(state)
    expected = {_name(path): variable.shape for path, variable in flat}
    found = {key: value.shape for key, value in tensors.items()}
    if found != expected:
        wrong = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
        shown = ", ".join(f"{key}: {found.get(key, 'missing')} instead of {expected.get(key, 'nothing')}" for key in wrong[:4])
        raise InputError(f"{directory / 'weights.safetensors'} is no {name}: {len(wrong)} tensors differ: {shown}.")
    weights = [(path, variable.replace(jnp.asarray(tensors[_name(path)]))) for path, variable in flat]
    model, tokenizer = nnx.merge(graph, nnx.from_flat_state(weights)), Tokenizer.from_file(directory / "tokenizer.model")
    return _placed(LoadedModel(name, config, model, tokenizer, mesh or make_mesh()))


def _placed(loaded: LoadedModel) -> LoadedModel:
    place(loaded.model, loaded.mesh)
    return loaded


def _name(path: tuple[object, ...]) -> str:
    return ".".join(str(part) for part in path)
