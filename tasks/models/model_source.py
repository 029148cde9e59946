"""Resolves the model of a recipe: what its name means, whether it is valid, and what identifies it.
It neither loads JAX nor downloads.

    model = "gemma3-tiny"                                   made at random from the recipe's seed
    model = "gemma3-1b-it"                                  a shipped name: hf://google/gemma-3-1b-it
    model = "hf://ORGANISATION/NAME[@REVISION]"             the Hugging Face hub
    model = "kaggle://google/gemma-3/flax/gemma3-1b-it/1"   Kaggle: owner/model/framework/variation,
                                                            and a version, if one is meant
    model = "gs://BUCKET/DIRECTORY"                         Cloud Storage
    model = "/path/of/a/directory"                          this machine

A directory holds a model in Hugging Face's format, or an Orbax checkpoint of the Gemma library with
its `tokenizer.model`. `tasks.models.model_download` downloads models, `tasks.models.loading` reads
them.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from infra.context import context
from infra.store.location import given_path
from schemas.base import InputError, digest, nearest
from tasks.data.data_files import files_below
from tasks.models.hf_directory import TOKENIZER, check_directory, no_directory, others_in

TINY = "gemma3-tiny"
TINY_VERSION = "2"
"""Part of the key of stages that begin with the tiny model; raise it when its architecture or
vocabulary changes."""

SHIPPED = {
    "gemma3-270m-it": "hf://google/gemma-3-270m-it",
    "gemma3-270m-pt": "hf://google/gemma-3-270m",
    "gemma3-1b-it": "hf://google/gemma-3-1b-it",
    "gemma3-1b-pt": "hf://google/gemma-3-1b-pt",
    "gemma3-4b-it": "hf://google/gemma-3-4b-it",
    "gemma3-4b-pt": "hf://google/gemma-3-4b-pt",
    "gemma3-12b-it": "hf://google/gemma-3-12b-it",
    "gemma3-12b-pt": "hf://google/gemma-3-12b-pt",
    "gemma2-2b-it": "hf://google/gemma-2-2b-it",
    "gemma2-2b-pt": "hf://google/gemma-2-2b",
    "gemma2-9b-it": "hf://google/gemma-2-9b-it",
    "gemma2-9b-pt": "hf://google/gemma-2-9b",
}
"""Name -> where Google publishes it; the architectures are `tasks.models.decoder.SIZES`."""

_WINDOWS = {
    "google/gemma-2-": 8192,
    "google/gemma-3-270m": 32_768,
    "google/gemma-3-1b": 32_768,
    "google/gemma-3-": 131_072,
}
"""Beginnings of names on the hub, the longer first -> `max_position_embeddings` (`window`)."""

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""Files beside a tokenizer that travel with a model from its base to its export."""

NEEDED = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    TOKENIZER,
    *COMPANIONS,
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
)
"""Patterns of the files that we read in a directory of Hugging Face's format, or PEFT's."""

ORBAX_MARKS = ("_METADATA", "_CHECKPOINT_METADATA", "checkpoint")
"""A directory that has one of these files is an Orbax checkpoint."""

_HF = re.compile(r"hf://(?P<path>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
_KAGGLE = re.compile(
    r"kaggle://(?P<path>[\w-]+/[\w.-]+/[\w-]+/[\w.-]+)(?:/(?P<revision>[1-9][0-9]*))?",
    re.IGNORECASE,
)
_GS = re.compile(r"gs://(?P<path>[a-z0-9][a-z0-9._-]+/[^\s?#]+)")
_FORMS = {
    "hf": (
        _HF,
        "hf://ORGANISATION/NAME or hf://ORGANISATION/NAME@REVISION, e.g. hf://google/gemma-3-1b-it",
    ),
    "kaggle": (
        _KAGGLE,
        "kaggle://OWNER/MODEL/FRAMEWORK/VARIATION[/VERSION], e.g."
        " kaggle://google/gemma-3/flax/gemma3-1b-it/1",
    ),
    "gs": (_GS, "gs://BUCKET/DIRECTORY"),
}


@dataclass(frozen=True)
class Source:
    """The place of a model.

    Attributes:
        path: of `hf` ORGANISATION/NAME, of `kaggle` OWNER/MODEL/FRAMEWORK/VARIATION, of `gs`
            BUCKET/DIRECTORY, of `local` an absolute path.
        revision: the commit, branch or tag of `hf`, the version of `kaggle`; None for the newest.
    """

    kind: Literal["tiny", "hf", "kaggle", "gs", "local"]
    path: str = ""
    revision: str | None = None


AT_HAND: dict[Source, Path] = {}
"""Models whose files this machine received (`tasks.models.shipping`), so that it does not ask their
hubs."""


def source_of(model: str) -> Source:
    """Parse a recipe's `model`, without looking whether it exists. Raises InputError with the valid
    names and forms."""
    if model == TINY:
        return Source("tiny")
    uri = SHIPPED.get(model, model)
    scheme, separator, _ = uri.partition("://")
    if separator:
        if scheme not in _FORMS:
            raise InputError(
                f"model {model!r}: the scheme {scheme!r} is not supported. Valid:"
                f" {', '.join(f'{name}://' for name in _FORMS)}."
            )
        pattern, form = _FORMS[scheme]
        match = pattern.fullmatch(uri.rstrip("/"))
        if not match:
            raise InputError(f"model {model!r} is not of the form {form}.")
        return Source(scheme, match["path"], match.groupdict().get("revision"))  # type: ignore[arg-type]
    if model.startswith(("/", "~")):
        return Source("local", str(given_path(model, "model")))
    if "/" in model or model in (".", ".."):
        meant = f'"{Path(model).absolute()}"' + (
            f' or "hf://{model}"' if _HF.fullmatch(f"hf://{model}") else ""
        )
        raise InputError(
            f"model {model!r}: a path must be absolute, because jobs run in directories of their"
            f" own. Write {meant}."
        )
    raise InputError(
        f"unknown model {model!r}.{nearest(model, [TINY, *SHIPPED])} Or hf://..., kaggle://...,"
        " gs://... or an absolute path."
    )


def published_as(model: str) -> str | None:
    """The name on the Hugging Face hub of a recipe's `model`, if it is from there."""
    match = _HF.fullmatch(SHIPPED.get(model, model).rstrip("/"))
    return match and match["path"]


def check_model(model: str) -> None:
    """Refuse a `model` that cannot work, before anything runs and without the network.

    Raises:
        InputError: an unknown name, a malformed URI, a file, or a directory that is missing or
            holds no complete Gemma (`tasks.models.hf_directory`).
    """
    source = source_of(model)
    if source.kind == "local" and check_readable(model) == "adapters":
        raise InputError(
            f"model {model!r} holds adapters and no model: write model = (their base) and"
            f" lora.adapters = {source.path!r}."
        )


def check_readable(model: str) -> Literal["model", "adapters"]:
    """Check a directory on this machine. Raises InputError: it is missing, or holds neither a model
    nor adapters."""
    directory = Path(source_of(model).path)
    try:
        if directory.is_file():
            raise InputError(f"model {model!r} is {no_directory(directory)}")
        if not directory.is_dir():
            raise InputError(f"model {model!r}: there is no such directory.")
        if (directory / "config.json").is_file():
            check_directory(directory)
            return "model"
        empty = find_orbax(directory) is None
        adapters = (directory / ADAPTER_CONFIG).is_file()
    except OSError as error:
        raise InputError(f"model {model!r} cannot be read: {error.strerror}.") from error
    if empty and adapters:
        return "adapters"
    if empty:
        raise InputError(
            f"model {model!r} has no config.json and no Orbax checkpoint{others_in(directory)}."
        )
    return "model"


def window(model: str) -> int | None:
    """The longest text, in tokens, that a recipe's `model`, which was checked, was made for; None
    where neither its name on the hub nor the config.json of its directory tells."""
    if name := published_as(model):
        return next((size for start, size in _WINDOWS.items() if name.startswith(start)), None)
    path = Path(source_of(model).path) / "config.json"
    if source_of(model).kind != "local" or not path.is_file():
        return None
    config = json.loads(path.read_text(encoding="utf-8"))
    size = (config.get("text_config") or config).get("max_position_embeddings")
    return size if isinstance(size, int) else None


def model_dependencies(model: str) -> dict[str, str | int]:
    """The facts that identify a model's weights beside its name, for the stage key.

    `TINY_VERSION` for a random model. Nothing for a hub's, whose revision, if given, is part of the
    name. A digest of the bytes for a directory of this machine, which takes a while once and is
    then remembered; a digest of the service's checksums for one in a bucket, which takes one
    request.

    Raises:
        InputError: as `check_model`, or the bucket cannot be read.
        ConnectionError: the bucket's service does not answer.
    """
    source, settings = source_of(model), context().settings
    if source.kind == "tiny":
        return {"model": TINY_VERSION}
    if source.kind == "gs":
        from infra.gcs.files import listing

        found = listing(f"gs://{source.path}", settings)
        return {
            "model": digest(
                {name: [found[name].size, found[name].crc32c] for name in needed(found)}
            )
        }
    if source.kind == "local":
        if source not in AT_HAND:  # as it is on a machine that the model was sent to
            check_readable(model)
        directory = AT_HAND.get(source, Path(source.path))
        cache = Path(settings.cache)
        names = needed(files_below(directory))
        return {"model": digest({name: _sha256(directory / name, cache) for name in names})}
    return {}


def extra_dependencies(models: Iterable[str]) -> dict[str, str | int]:
    """`model_dependencies` of a stage's further models, beside the one that it begins with."""
    found = {model: model_dependencies(model) for model in models}
    return {extra_key(model): known["model"] for model, known in found.items() if known}


def extra_key(model: str) -> str:
    """The key of such a model in a stage's dependencies."""
    return f"model {model}"


def needed(names: Iterable[str]) -> list[str]:
    """The files below a model's directory that we read, by their names relative to it: those of
    Hugging Face's format, or else all."""
    found = sorted(name for name in names if not name.startswith("."))
    if not {"config.json", ADAPTER_CONFIG} & set(found):
        return found
    return [
        name
        for name in found
        if "/" not in name and any(fnmatchcase(name, pattern) for pattern in NEEDED)
    ]


def find_orbax(directory: Path) -> Path | None:
    """The Orbax checkpoint that a directory is or contains (as Kaggle's do); None without one."""
    places: Iterable[Path] = [
        directory,
        *sorted(path for path in directory.iterdir() if path.is_dir()),
    ]
    return next(
        (place for place in places if any((place / mark).is_file() for mark in ORBAX_MARKS)), None
    )


def _sha256(path: Path, cache: Path) -> str:
    """The file's digest, remembered until its path, size or time of change differs."""
    status = path.stat()
    note = cache / "digests" / digest([str(path.resolve()), status.st_size, status.st_mtime_ns])
    if note.is_file():
        return note.read_text(encoding="ascii")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    note.parent.mkdir(parents=True, exist_ok=True)
    new = note.with_suffix(f".{os.getpid()}")
    new.write_text(found, encoding="ascii")
    new.replace(note)
    return found
