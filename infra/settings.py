"""Settings of execution: where things are kept and how often they are looked at. None of them is ever part of a stage key.

Each field is read from the environment variable `LYCEUM_<FIELD>`, e.g. `LYCEUM_STORE=/data/lyceum`; command-line options win over both.
"""

import hashlib
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import Field, ValidationError

from schemas.base import InputError, StrictModel


def _processor() -> str:
    """12 hexadecimal characters that differ between processors of different features: compiled CPU code runs only where it was compiled."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else [platform.processor()]
    features = sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
    return hashlib.sha256("\n".join([platform.machine(), *features]).encode()).hexdigest()[:12]


def _default_cache() -> str:
    return str(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lyceum")


def _default_compile_cache() -> str:
    return str(Path(_default_cache()) / f"jax-{_processor()}")


class Settings(StrictModel):
    """Execution settings.

    Attributes:
        store: the store when `--store` is not given: a path or URI.
        poll_seconds: time between two looks at a job or at a lease that somebody else holds.
        heartbeat_seconds: time between two heartbeats of a worker's status.
        lease_seconds: a lease that was not renewed for this long is expired and may be taken over.
        stop_seconds: how long a cancelled job may take to stop by itself before it is killed.
        parallel_jobs: how many local jobs run side by side; the others wait in the queue.
        restarts: how often, in one run, a stage whose worker was killed or whose machine vanished is started again; it continues from its
            checkpoint.
        compile_cache: directory of JAX's persistent compilation cache for local jobs; empty for none.
        cache: directory for what this machine keeps of a store in a bucket: copies of artifacts, and files of jobs that run here.
        checkpoint_seconds: a training stage saves a checkpoint at most this often, and never so often that saving takes more than a
            twentieth of its time.
        checkpoint_steps: if given, a checkpoint is due after every so many steps as well, whatever it costs.
        store_seconds: how long a bucket that answers with errors is asked again before a stage gives up.
        billing_project: project that pays for requests to a bucket whose owner does not (requester pays).
        zone: zone of the machines that jobs run on, e.g. `us-central1-a`; a run whose bucket is elsewhere is refused.
        far_bucket: allow a bucket in another region than `zone`: every byte crosses regions, which is slow and costs money.
    """

    store: str = ".lyceum"
    poll_seconds: float = Field(default=0.2, gt=0)
    heartbeat_seconds: float = Field(default=2.0, gt=0)
    lease_seconds: float = Field(default=30.0, gt=0)
    stop_seconds: float = Field(default=5.0, gt=0)
    parallel_jobs: int = Field(default_factory=lambda: max(1, (os.cpu_count() or 1) // 2), ge=1)
    restarts: int = Field(default=3, ge=0)
    compile_cache: str = Field(default_factory=_default_compile_cache)
    cache: str = Field(default_factory=_default_cache)
    checkpoint_seconds: float = Field(default=60.0, ge=0)
    checkpoint_steps: int | None = Field(default=None, ge=1)
    store_seconds: float = Field(default=900.0, gt=0)
    billing_project: str = ""
    zone: str = ""
    far_bucket: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Defaults, overridden by `LYCEUM_<FIELD>`. Raises InputError naming the variable whose value does not fit."""
        given = {name: environment[_variable(name)] for name in cls.model_fields if _variable(name) in environment}
        try:
            return cls.model_validate(given, strict=False)
        except ValidationError as error:
            problem = error.errors()[0]
            variable = _variable(str(problem["loc"][0]))
            raise InputError(f"environment variable {variable}={problem['input']!r} is not valid: {problem['msg']}.") from error


def _variable(field: str) -> str:
    return f"LYCEUM_{field.upper()}"
