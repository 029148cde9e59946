"""A stage's job in a test: a new output directory, and a workspace in a store, below one
directory."""

from pathlib import Path
from typing import Any

from infra.store.store import open_store
from infra.store.workspace import Workspace
from schemas.base import StrictModel
from tasks.contract.job import Job


def job_at(
    root: Path, config: StrictModel, inputs: dict[str, Path], *, key: str = "key", **more: Any
) -> Job[Any]:
    """An attempt at a stage of this key; `more`: other fields of the job."""
    out = root / f"out{len(list(root.glob('out*')))}"
    out.mkdir(parents=True)
    return Job(config, inputs, out, Workspace(open_store(root / "store"), key, "1"), **more)
