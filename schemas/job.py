"""Jobs: one execution of one stage on one target. A JSON spec in, one artifact out; a job knows nothing of Prefect."""

from typing import Any, Literal

from pydantic import Field

from schemas.artifact import ArtifactRef
from schemas.base import StrictModel

JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]


class JobSpec(StrictModel):
    """`work/<key>/<attempt>/job.json`: all a worker needs.

    `config` is the stage's validated config as JSON; `inputs` maps input names to committed artifacts in `store`; `data` is the directory
    that `lyceum run --data` named, for stages that read files from outside the store.
    """

    stage: str
    kind: str
    key: str
    attempt: str
    store: str
    target: str
    config: dict[str, Any]
    dependencies: dict[str, str | int] = Field(default_factory=dict)
    inputs: dict[str, ArtifactRef] = Field(default_factory=dict)
    data: str | None = None


class Progress(StrictModel):
    """How far a job is: `done` of `total` in `unit`s (steps, examples, prompts), with the newest metric values."""

    done: int = 0
    total: int = 0
    unit: str = "steps"
    values: dict[str, float] = Field(default_factory=dict)


class JobStatus(StrictModel):
    """`work/<key>/<attempt>/status.json`, replaced atomically by the worker; `heartbeat` is seconds since the epoch.

    `error` is one message for people; `exit_code` follows the command line: 1 failed, 2 bad input. `lost` is said of a failed job by its
    backend, not by the worker: it was killed, or its machine is gone, so another attempt may well succeed.
    """

    state: JobState
    heartbeat: float
    progress: Progress = Progress()
    error: str | None = None
    exit_code: int | None = None
    artifact: ArtifactRef | None = None
    lost: bool = False
