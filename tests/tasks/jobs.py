"""A stage's job in a test: in this process, in a new output directory and a workspace below one
directory; or as a worker is told of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra.store.store import Store, open_store
from infra.store.workspace import Workspace
from schemas.artifact import ArtifactRef
from schemas.base import StrictModel
from schemas.job import JobSpec
from tasks.contract.job import Job


def job_at(
    root: Path, config: StrictModel, inputs: dict[str, Path], *, key: str = "key", **more: Any
) -> Job[Any]:
    """An attempt at a stage of this key; `more`: other fields of the job."""
    out = root / f"out{len(list(root.glob('out*')))}"
    out.mkdir(parents=True)
    return Job(config, inputs, out, Workspace(open_store(root / "store"), key, "1"), **more)


def spec_of(
    stage: Any, store: Store, inputs: Mapping[str, ArtifactRef] | None = None, **more: Any
) -> JobSpec:
    """The job of a resolved recipe's stage as a flow submits it; `more`: further fields."""
    given = dict(inputs or {})
    what = {"stage": stage.name, "kind": stage.kind, "config": stage.config_json}
    what |= {"key": stage.key({name: ref.digest for name, ref in given.items()})}
    what |= {"dependencies": stage.dependencies, "inputs": given, "store": store.uri}
    return JobSpec.model_validate({"attempt": "1", "target": "local", **what, **more})
