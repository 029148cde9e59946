"""Run records and evaluation records: what the report, the CLI and other programs read."""

from typing import Any, Literal

from pydantic import Field

from schemas.artifact import ArtifactRef
from schemas.base import StrictModel
from schemas.examples import Domain, Grounding
from schemas.recipe import Recipe

StageStatus = Literal["cached", "ran", "failed", "skipped"]


class StageRecord(StrictModel):
    """One stage of a run, as `lyceum run --json` prints it. `seconds` is wall time inside the flow; `skipped` means an earlier stage failed."""

    name: str
    kind: str
    key: str | None = None
    status: StageStatus
    seconds: float = 0.0
    artifact: ArtifactRef | None = None
    metrics: dict[str, Any] = Field(default_factory=dict)
    error: str | None = None


class RunRecord(StrictModel):
    """`runs/<run_id>/run.json`. `started` and `finished` are seconds since the epoch."""

    run_id: str
    recipe: Recipe
    target: str
    store: str
    status: Literal["running", "succeeded", "failed", "cancelled"]
    started: float
    finished: float | None = None
    stages: tuple[StageRecord, ...] = ()
    report: str | None = None
    execution: dict[str, Any] = Field(default_factory=dict)


class EvalItem(StrictModel):
    """One evaluated prompt (`items.jsonl` of an evaluation): any metric can be recomputed from these without the model."""

    id: str
    prompt: str
    domain: Domain
    family: str
    reference: str
    completion: str
    format: bool
    exact: bool
    markers: int = 0
    tokens: int = 0
    grounding: Grounding | None = None
    abstained: bool = False
    safe: bool | None = None
