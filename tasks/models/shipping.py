"""Sends a base model to a machine in the cloud, through the store: that machine has neither our
tokens for a hub nor our disks.

    models/<digest>/    a tree (`Store.save_tree`) with the files that are read of a model, sent
                        once

Models that lie in a bucket, and random ones, are not sent. The flow process sends, so this module
does not load JAX.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from infra.settings import Settings
from infra.store.store import Store
from schemas.base import StageFailed, digest
from schemas.job import JobRequest
from tasks.contract.kinds import stage_kind
from tasks.data.data_files import files_below
from tasks.models import model_download
from tasks.models.adapters import adapters_of
from tasks.models.model_source import AT_HAND, extra_key, needed, source_of


def shipped_models(request: JobRequest) -> list[str]:
    """The models that a job on another machine reads: the base model if no policy is connected,
    further models, and the adapters that it begins with."""
    if request.target == "local":
        return []
    kind = stage_kind(request.kind)
    first = None if "policy" in request.inputs else kind.base_model(request.config)
    beside = {*kind.extra_models(request.config), *adapters_of(request.config)}
    return sorted(beside | ({first} if first else set()))


def ship_model(
    store: Store,
    model: str,
    dependencies: Mapping[str, str | int],
    settings: Settings,
    say: Callable[[str], None],
) -> None:
    """Put a model's files into the store, downloading them first if need be.

    Args:
        dependencies: the stage's, from `model_dependencies`.
        say: called with a message about what takes a while.

    Raises:
        InputError: as `model_download.fetch`, or the store cannot be written.
        ConnectionError: a service does not answer.
    """
    source = source_of(model)
    name = _tree(model, dependencies)
    if source.kind in ("tiny", "gs") or store.has_tree(name):
        return
    directory = model_download.fetch(source, settings)
    place = store.path("models")
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place, ignore_cleanup_errors=True) as temporary:
        copy = Path(temporary, "copy")
        for file in needed(files_below(directory)):
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            _link(directory / file, copy / file)
        store.remove(name)
        say(f"sending model {model} to {store.uri}/{name}")
        store.save_tree(name, copy, {"model": model})


def receive_model(store: Store, model: str, dependencies: Mapping[str, str | int]) -> None:
    """On the machine: let `base_model` read the files that were sent. Raises StageFailed when they
    are missing or damaged."""
    source, name = source_of(model), _tree(model, dependencies)
    if source.kind in ("tiny", "gs"):
        return
    loaded = store.load_tree(name)
    if loaded is None:
        raise StageFailed(
            f"model {model} is missing or damaged in store {store.uri} ({name}). Run again, and it"
            " is sent anew."
        )
    AT_HAND[source] = loaded[0]


def _tree(model: str, dependencies: Mapping[str, str | int]) -> str:
    identity = dependencies.get(extra_key(model), dependencies.get("model"))
    return f"models/{digest([model, identity])}"


def _link(path: Path, target: Path) -> None:
    """Link the file under another name, or copy it to another disk; the first name stays when
    somebody moves the second."""
    try:
        os.link(path.resolve(), target)
    except OSError:
        shutil.copyfile(path, target)
