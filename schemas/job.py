"""Jobs: one execution of one stage on one target. A JSON spec in, one artifact out; a job knows
nothing of Prefect."""

from typing import Any, Literal

from pydantic import Field

from schemas.artifact import ArtifactRef
from schemas.base import StrictModel

JobState = Literal["queued", "running", "succeeded", "failed", "cancelled", "paused"]


class JobRequest(StrictModel):
    """The specification of a job, the same for every attempt.

    `config` is the stage's validated config as JSON; `inputs` maps input names to committed
    artifacts in `store`; `run` is the run that submitted it. `data` is where the files of `lyceum
    run --data` lie: an absolute path or, for a worker on another machine, the name of a tree in the
    store, `data/<digest>`. `environment` is what a worker on another machine must know of
    endpoints: variables with their URLs and with the names of secrets, never a secret. `devices`:
    it computes with JAX, so where there is an accelerator it runs there.
    """

    stage: str
    kind: str
    key: str
    store: str
    target: str
    run: str = ""
    config: dict[str, Any]
    dependencies: dict[str, str | int] = Field(default_factory=dict)
    inputs: dict[str, ArtifactRef] = Field(default_factory=dict)
    data: str | None = None
    environment: dict[str, str] = Field(default_factory=dict)
    devices: bool = False

    def as_attempt(self, attempt: str) -> "JobSpec":
        """The job of one attempt."""
        return JobSpec(attempt=attempt, **dict(self))


class JobSpec(JobRequest):
    """`work/<key>/<attempt>/job.json`: all a worker needs."""

    attempt: str


class Progress(StrictModel):
    """How far a job is: `done` of `total` in `unit`s (steps, examples, prompts), with the newest
    metric values."""

    done: int = 0
    total: int = 0
    unit: str = "steps"
    values: dict[str, float] = Field(default_factory=dict)


class Usage(StrictModel):
    """What one attempt of a job took, as its own worker measured it. An artifact's `seconds` are
    those of all attempts that it took.

    Attributes:
        seconds: wall time from the start of the worker, the fetching of inputs included.
        peak_rss_bytes: the most main memory that the worker's process (of several hosts: of host 0)
            had resident at once.
        peak_device_bytes: the most memory that was in use on one device, of those of host 0; None
            where no devices are used, or where they do not tell, as CPUs do not.
        unit, unit_seconds: mean seconds between two finished units of progress, e.g. `steps`:
            without what came before the second report, which is where programs are compiled. None
            where there were fewer than three.
    """

    seconds: float
    peak_rss_bytes: int
    peak_device_bytes: int | None = None
    unit: str | None = None
    unit_seconds: float | None = None


class JobStatus(StrictModel):
    """`work/<key>/<attempt>/status.json`, replaced atomically by the worker; `heartbeat` is seconds
    since the epoch, and so is `began`, when the worker did.

    `error` is one message for people; `exit_code` follows the command line: 1 failed, 2 bad input;
    `usage` is in the worker's last status, whatever became of the job. The backend, not the worker,
    says the rest: `lost` of a failed job that was killed, or whose machine is gone, so that another
    attempt may well succeed; `phase`, for people, how far a queued job's machine is; `cost_usd`,
    what the job's machines have cost until now by list price, None where nothing is paid.
    """

    state: JobState
    heartbeat: float
    began: float = 0.0
    progress: Progress = Progress()
    error: str | None = None
    exit_code: int | None = None
    artifact: ArtifactRef | None = None
    usage: Usage | None = None
    lost: bool = False
    phase: str = ""
    cost_usd: float | None = None
