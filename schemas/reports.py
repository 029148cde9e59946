"""Run records: what the report, the CLI and other programs read. Evaluation records are in
`schemas.evaluation`."""

from typing import Any, Literal

from pydantic import Field

from schemas.artifact import ArtifactRef
from schemas.base import StrictModel
from schemas.job import Usage
from schemas.recipe import Recipe

StageStatus = Literal["running", "cached", "ran", "failed", "skipped"]


class StageRecord(StrictModel):
    """One stage of a run, as `lyceum run --json` prints it.

    `seconds` is wall time inside the flow; `cost_usd` is what its machines cost by list price, None
    where nothing is paid; `usage` is what the worker of its last job in this run measured, None
    where there was no job or it did not come to measure; `running` is the status of a stage that
    was begun, and no record of a run that has ended has it; `skipped` means that a stage it needs
    failed, or that the run was stopped while it ran. Of a failed stage `exit_code` is 2 when its
    input was bad and 1 otherwise. `repaired` says what was damaged of an artifact that was found
    damaged, was set aside and has been made again.
    """

    name: str
    kind: str
    key: str | None = None
    status: StageStatus
    seconds: float = 0.0
    cost_usd: float | None = None
    usage: Usage | None = None
    artifact: ArtifactRef | None = None
    metrics: dict[str, Any] = Field(default_factory=dict)
    error: str | None = None
    repaired: str | None = None
    exit_code: int | None = None

    @property
    def outcome(self) -> str:
        """The status in a word for people: `stopped` where the run was stopped while the stage ran.
        That is `skipped`, too, but what was never begun has no key."""
        return "stopped" if self.status == "skipped" and self.key else self.status


class StageVersion(StrictModel):
    """`runs/<run_id>/stages/<name>.json`: a stage of a run that goes on, as of `updated` (seconds
    since the epoch)."""

    updated: float
    stage: StageRecord


class Process(StrictModel):
    """A process; `host` and `namespace` tell whether `pid` can be looked up from where one is, and
    `began` whether another process has the number by now: clock ticks from the boot to its start,
    None where the system does not tell."""

    host: str
    namespace: str
    pid: int
    began: int | None = None


class RunRecord(StrictModel):
    """`runs/<run_id>/run.json`.

    Times are seconds since the epoch; `updated` is when the record was last written. `process` is
    the flow's: a run whose status is `running` although its process is gone was interrupted. A run
    is `paused` when its deadline (`lyceum run --hours`) came before its end. `group` is an id that
    the runs of one `lyceum run --seeds` have in common, and no other run.
    """

    run_id: str
    recipe: Recipe
    target: str
    store: str
    status: Literal["running", "succeeded", "failed", "cancelled", "paused"]
    started: float
    updated: float | None = None
    finished: float | None = None
    process: Process | None = None
    stages: tuple[StageRecord, ...] = ()
    report: str | None = None
    group: str | None = None
    execution: dict[str, Any] = Field(default_factory=dict)

    @property
    def cost_usd(self) -> float | None:
        """What the machines of all stages cost, see StageRecord."""
        costs = [stage.cost_usd for stage in self.stages if stage.cost_usd is not None]
        return sum(costs) if costs else None
