"""`lyceum push`: a run's model, its adapters, or a data set, on the Hugging Face hub.

What is pushed is what `lyceum export` writes, and lies in this machine's cache until the hub has
it: a push that was interrupted goes on with the same files.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from flows.cli.export import export, export_adapters
from flows.cli.unsent import alone, unsent_directory
from flows.recipe.trained import finished_stage, trained_stage
from infra.store.store import Store
from schemas.base import InputError
from schemas.reports import RunRecord
from tasks.contract.kind import Product
from tasks.contract.kinds import kinds_producing
from tasks.data.data_files import files_below
from tasks.exporting.hub import Repository
from tasks.models.model_source import published_as

What = Literal["model", "adapters", "dataset"]
Say = Callable[[str], None]


def push(
    store: Store,
    record: RunRecord,
    to: str,
    what: What,
    stage: str | None,
    *,
    public: bool,
    dtype: Literal["float32", "bfloat16"],
    say: Say,
) -> dict[str, Any]:
    """Push what a stage made (by default the last trained one, or the last that made rows).

    Args:
        to: ORGANISATION/NAME.
        dtype: in which an export is proven, where torch is installed; elsewhere it is not.
        say: told what is being done.

    Raises:
        InputError: the run has no such thing, or the hub refuses it, the message says why; or
            another push is at work.
        StageFailed: an artifact is gone or damaged, or an export is not the model.
    """
    with alone(store) as idle:
        if not idle:
            raise InputError(
                "another `lyceum push` from this store is at work on this machine; wait for its end"
                " and run the same command again."
            )
        if what == "dataset":
            kinds = kinds_producing(Product.EXAMPLES, Product.ROWS)
            made, manifest = finished_stage(store, record, stage, kinds, "data set")
            repository = Repository(to, "dataset", base=None, public=public)
            place = store.local_dir(manifest)
            files = {one.path: place / one.path for one in manifest.files}
        else:
            made, manifest = trained_stage(store, record, stage)
            base = published_as(record.recipe.model)
            repository = Repository(to, "model", base=base, public=public)
            place = _exported(store, record, made.name, what, dtype, say)
            files = {name: place / name for name in files_below(place)}
        sizes = {name: path.stat().st_size for name, path in files.items()}
        say(f"{len(files)} files, {sum(sizes.values()) / 1e6:,.0f} MB, to {repository.url}")
        pushed = repository.push(files, f"{record.run_id}: {what} of stage {made.name}")
        if what != "dataset":
            shutil.rmtree(place)
        return {
            "run_id": record.run_id,
            "stage": made.name,
            "what": what,
            "repository": to,
            "url": pushed.url,
            "private": not public,
            "commit": pushed.commit,
            "changed": pushed.changed,
            "files": sizes,
        }


def _exported(
    store: Store,
    record: RunRecord,
    stage: str,
    what: What,
    dtype: Literal["float32", "bfloat16"],
    say: Say,
) -> Path:
    """The export in this machine's cache, made unless an interrupted push has left it there."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from tasks.exporting.round_trip import absent

    proof = None if absent() else dtype
    told = record.model_dump(mode="json", exclude={"report", "updated", "status"})
    place = unsent_directory(store, [told, stage, what, proof])
    if place.is_dir():
        say(f"going on with the files of an earlier push, {place}")
    elif what == "adapters":
        export_adapters(store, record, place, stage)
    else:
        if proof is None:
            say(
                f"{' and '.join(absent())} is not installed: the export is not proven, and its card"
                " says so (uv sync --extra export)"
            )
        export(store, record, place, stage, proof, say)
    if not (place / "README.md").exists():
        shutil.rmtree(place)
        raise InputError(
            f"the adapters of stage {stage!r} belong beside the model of an earlier stage, which"
            " the hub does not have: push the model, without --adapters."
        )
    return place
