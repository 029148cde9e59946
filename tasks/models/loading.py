"""Loads and saves models: directories in Hugging Face's format, of base checkpoints and of trained
stages.

Weights go straight to their devices: this host reads the part of one weight that one device holds,
transfers it, and frees it.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from infra.context import context
from infra.settings import Settings
from schemas.base import InputError
from tasks.contract.job import Job
from tasks.data.tokens import Tokenizer
from tasks.devices.hosts import fetch as fetch_array
from tasks.devices.hosts import make_mesh
from tasks.models import decoder
from tasks.models.decoder import Gemma, GemmaConfig, weight_shapes
from tasks.models.hf_config import read_config
from tasks.models.hf_directory import TOKENIZER, check_template, check_tokenizer
from tasks.models.hf_weights import Weights, write_model
from tasks.models.model_download import fetch
from tasks.models.model_source import COMPANIONS, TINY, Source, source_of
from tasks.models.orbax import as_huggingface
from tasks.models.sharding import place, weight_specs
from tasks.models.tiny import tiny_tokenizer
from tasks.models.weights import initialise


@dataclass
class LoadedModel:
    """A model on the devices of `mesh`, with its tokenizer.

    Attributes:
        name: the recipe's `model` with which the chain began; for a directory its last part.
        companions: where the tokenizer's other files lie (tokenizer.json, chat template), if it
            came with any: `save_model` copies them.
    """

    name: str
    config: GemmaConfig
    model: Gemma
    tokenizer: Tokenizer
    mesh: Mesh
    companions: Path | None = None


def model_config(model: str) -> GemmaConfig:
    """The architecture of a recipe's `model`. For a shipped name it reads nothing, for any other
    the files except the weights.

    Raises:
        InputError: as `base_model`.
    """
    source = source_of(model)
    if model in decoder.SIZES:
        return decoder.SIZES[model]
    return read_config(_in_format(source, context().settings, weights=False))[0]


def base_model(
    name: str, seed: int, mesh: Mesh | None = None, *, trained: bool = False
) -> LoadedModel:
    """The model with which a chain begins. `gemma3-tiny` is initialised at random from `seed`; all
    others are downloaded or read from disk.

    Args:
        name: a recipe's `model`: see `tasks.models.model_source`.
        mesh: None for one device.
        trained: as in `tasks.models.sharding.weight_specs`.

    Raises:
        InputError: an unknown name, a model that is out of reach, or one whose content contradicts
            its name.
    """
    source, mesh = source_of(name), mesh or make_mesh()
    if source.kind == "tiny":
        config = decoder.SIZES[TINY]
        model = initialise(config, seed)
        place(model, mesh, weight_specs(config, mesh, trained=trained))
        return LoadedModel(name, config, model, tiny_tokenizer(), mesh)
    directory = _in_format(source, context().settings, weights=True)
    config, _ = read_config(directory)
    if name in decoder.SIZES:
        config = _as_published(name, config)
    return _loaded(
        directory, Path(name).name if source.kind == "local" else name, config, mesh, trained
    )


def load_model(directory: Path, mesh: Mesh | None = None, *, trained: bool = False) -> LoadedModel:
    """Read a directory in Hugging Face's format, such as `save_model` wrote; onto one device if no
    mesh is given.

    Raises:
        InputError: another architecture, or missing, unknown, misshapen or damaged tensors.
    """
    config, name = read_config(directory)
    return _loaded(directory, name or directory.name, config, mesh or make_mesh(), trained)


def policy_or_base(job: Job[Any], mesh: Mesh, *, trained: bool = False) -> LoadedModel:
    """The model of the job's input `policy` when a recipe connects one, else its base model."""
    if "policy" in job.inputs:
        return load_model(job.inputs["policy"], mesh, trained=trained)
    return base_model(job.config.model, job.config.seed, mesh, trained=trained)


def save_model(loaded: LoadedModel, directory: Path) -> None:
    """Write the model, its adapters merged before, and its tokenizer, in Hugging Face's format. The
    same weights give the same bytes.

    A scalar head (`tasks.models.scalar_head`) is written, too.
    """
    score = vars(loaded.model).get("score")
    head = None if score is None else fetch_array(score.get_value())
    weights = {
        ".".join(map(str, path)): variable
        for path, variable in nnx.to_flat_state(nnx.state(loaded.model, nnx.Param))
    }
    write_model(
        directory,
        loaded.config,
        loaded.name,
        loaded.tokenizer,
        lambda name: fetch_array(weights[name].get_value()),
        head,
    )
    loaded.tokenizer.save(directory / TOKENIZER)
    for name in COMPANIONS:
        if loaded.companions is not None and (loaded.companions / name).is_file():
            shutil.copyfile(loaded.companions / name, directory / name)


def _in_format(source: Source, settings: Settings, *, weights: bool) -> Path:
    """A local directory in Hugging Face's format with the model of a source. Raises InputError as
    `base_model`."""
    directory = fetch(source, settings, weights=weights)
    if (directory / "config.json").is_file():
        check_template(directory)  # a hub's model is seen here for the first time
        return directory
    return as_huggingface(directory, settings)


def _as_published(name: str, config: GemmaConfig) -> GemmaConfig:
    """The shipped config of this name, if the checkpoint's equals it apart from the dtype: some are
    published in float32, and we hold all in bfloat16."""
    known = decoder.SIZES[name]
    theirs = vars(config) | {"dtype": known.dtype}
    wrong = [
        f"{key} is {theirs[key]} instead of {value}"
        for key, value in vars(known).items()
        if theirs[key] != value
    ]
    if wrong:
        raise InputError(
            f"the checkpoint that was found is no {name}: {', '.join(wrong)}. Name the checkpoint"
            " itself: hf://ORGANISATION/NAME."
        )
    return known


def _loaded(
    directory: Path, name: str, config: GemmaConfig, mesh: Mesh, trained: bool
) -> LoadedModel:
    path = directory / TOKENIZER
    check_tokenizer(path, config.vocab_size)
    tokenizer = Tokenizer.from_file(path)
    weights, specs = Weights(directory, config), weight_specs(config, mesh, trained=trained)
    placed = {
        name: _placed(weights, name, shape, NamedSharding(mesh, specs[name]))
        for name, shape in weight_shapes(config).items()
    }
    return LoadedModel(name, config, Gemma(config, placed), tokenizer, mesh, directory)


def _placed(
    weights: Weights, name: str, shape: tuple[int, ...], sharding: NamedSharding
) -> jax.Array:
    """One weight on this host's devices: each part is read once, put on all devices that hold it,
    and forgotten before the next."""
    holders: dict[tuple[tuple[int, int, int], ...], list[jax.Device]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        spans = tuple(one.indices(length) for one, length in zip(index or (), shape, strict=True))
        holders.setdefault(spans, []).append(device)
    parts = []
    for spans, devices in holders.items():
        value: np.ndarray = weights.read(name, tuple(slice(*span) for span in spans))
        parts += [jax.device_put(value, device, may_alias=False) for device in devices]
        jax.block_until_ready(parts)
        del value
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)
