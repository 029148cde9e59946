"""The worker: `python -m tasks.worker work/<key>/<attempt>/job.json`, one job, the same on a laptop
and on a TPU.

It reads the JobSpec, verifies the input artifacts, runs the stage, commits the artifact, and
reports in `status.json` beside the spec. It does not know Prefect. Exit codes: 0 done (also when
somebody else committed the artifact first), 1 the stage failed, 2 bad input, 130 cancelled
(SIGTERM, SIGINT, or the process that submitted the job is gone) or paused: a file `pause` beside
the spec asks a trainer to save a checkpoint between two steps and to end.

On several hosts (`tasks.devices.hosts`) every host runs a worker of the same job, and host 0
commits. A stage without devices runs on host 0 only.
"""

import importlib.metadata
import logging
import math
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from infra.backend import pause_file
from infra.context import context
from infra.distribution import DISTRIBUTION, absent
from infra.secrets import mask, mask_output
from infra.store.compiled import Compiled
from infra.store.local_objects import is_disk_full
from infra.store.objects import Damaged
from infra.store.remote import host_status
from infra.store.store import Store
from infra.store.workspace import KEPT, Workspace
from schemas.artifact import ArtifactRef, Manifest, stage_key
from schemas.base import (
    AuditFailed,
    InputError,
    StageFailed,
    Stopped,
    canonical_json,
    explain_validation,
)
from schemas.job import JobSpec, JobStatus, Progress, Usage
from tasks.contract.job import Job
from tasks.contract.kinds import stage_kind
from tasks.devices import hosts
from tasks.models.shipping import receive_model, shipped_models
from tasks.worker.preload import preload
from tasks.worker.supervisor import CANCELLED, Supervisor, ended
from tasks.worker.usage import Meter

log = logging.getLogger("lyceum")

PACKAGES = (DISTRIBUTION, "jax", "jaxlib", "flax", "optax", "google-tunix", "numpy")


def open_log() -> None:
    """Send what this process logs to its output, before anything is imported that configures
    logging itself."""
    logging.basicConfig(
        stream=sys.stdout, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s"
    )
    log.setLevel(logging.INFO)


def main(arguments: list[str]) -> int:
    """Run the job whose `job.json` is named on the command line; returns the exit code."""
    if len(arguments) != 1:
        print("usage: python -m tasks.worker path/to/job.json", file=sys.stderr)  # noqa: T201
        return 2
    open_log()
    path = Path(arguments[0]).absolute()
    spec = JobSpec.model_validate_json(path.read_bytes())
    if (spec.key, spec.attempt) != (path.parent.parent.name, path.parent.name):
        # the submitter named the key, which follows from the job's contents (`run_job`)
        print(f"{path} is not the job of its place, but of {spec.key}", file=sys.stderr)  # noqa: T201
        return 2
    os.environ |= {**spec.environment, **os.environ}
    # the submitter has proved that the store can be written
    store = context().store(spec.store, write=False)
    meter, parent = Meter(), os.environ.get("LYCEUM_PARENT_PID")
    # Hosts share a directory; of a bucket each has a place of its own.
    status_file = host_status(spec.key, spec.attempt, hosts.host() if store.is_directory else 0)
    supervisor = Supervisor(
        write=lambda status: store.write_here(status_file, status),
        heartbeat_seconds=context().settings.heartbeat_seconds,
        parent=int(parent) if parent else None,
    )
    with supervisor:
        try:
            final = _outcome(spec, store, supervisor, meter)
            final = final.model_copy(update={"usage": meter.usage()})
        except KeyboardInterrupt:
            final = ended("cancelled", "cancelled", CANCELLED)
        supervisor.finish(final)
    if final.error:
        log.log(logging.INFO if final.state == "paused" else logging.ERROR, final.error)
    if final.state != "cancelled":
        hosts.leave()
    if final.state in ("cancelled", "paused") or hosts.hosts() > 1:
        sys.stdout.flush()
        # Threads of XLA may still be computing, and crash when the interpreter is torn down under
        # them.
        os._exit(final.exit_code or 0)
    return final.exit_code or 0


def _outcome(spec: JobSpec, store: Store, supervisor: Supervisor, meter: Meter) -> JobStatus:
    """Run the job and turn whatever happens into its final status. An unfinished output directory
    is removed."""
    try:
        artifact = run_job(spec, store, supervisor, meter)
        try:
            _workspace(spec, store).clear()  # nobody needs another attempt
        except (OSError, InputError) as error:  # nor is the artifact worse for what stays
            log.warning("what the attempts of stage %s have kept stays: %s", spec.stage, error)
        return JobStatus(state="succeeded", heartbeat=time.time(), exit_code=0, artifact=artifact)
    except hosts.HostLost as error:
        return ended("failed", str(error), 1, lost=True)
    except Stopped as stopped:
        return ended("paused", str(stopped), CANCELLED)
    except InputError as error:
        return _failed(str(error), exit_code=2)
    except AuditFailed as error:
        return _failed(str(error), exit_code=3)
    except StageFailed as error:
        return _failed(str(error))
    except MemoryError as error:
        return _failed(_no_memory(str(error)))
    except (Exception, SystemExit) as error:
        # The last line of defence: a stage may raise anything, and the status must say so.
        if isinstance(error, ModuleNotFoundError) and (message := absent(error)):
            return _failed(f"stage {spec.stage}: {message}", exit_code=2)
        if is_disk_full(error):
            return _failed(
                f"store {store.uri}: no space is left on the disk. Free some, or give --store a"
                " place on another disk.",
                2,
            )
        if "RESOURCE_EXHAUSTED" in str(error):  # XLA's, which is a RuntimeError
            return _failed(_no_memory(str(error).splitlines()[0]))
        log.exception("stage %s failed", spec.stage)
        # JAX adds notes of its own
        notes = [note for note in getattr(error, "__notes__", ()) if note.startswith("in ")]
        return _failed(", ".join([f"{type(error).__name__}: {error}", *notes]), sure=False)
    finally:
        shutil.rmtree(_workspace(spec, store).local("out"), ignore_errors=True)


def _no_memory(said: str) -> str:
    return (
        f"the memory of this machine is too small for the stage ({said or 'it is used up'}). Lower"
        " its batch size or its lengths."
    )


def _failed(message: str, exit_code: int = 1, *, sure: bool = True) -> JobStatus:
    message, exit_code = hosts.first_failure(mask(message), exit_code, sure=sure)
    return ended("failed", message, exit_code)


def _workspace(spec: JobSpec, store: Store) -> Workspace:
    return Workspace(store, spec.key, spec.attempt, hosts.host())


def run_job(
    spec: JobSpec, store: Store, supervisor: Supervisor, meter: Meter
) -> ArtifactRef | None:
    """Run one stage and commit its artifact, or adopt a valid one that exists already.

    Returns:
        the artifact, or None on a host without a part in it.

    Raises:
        InputError: what the recipe's author can fix (config, data, a full disk).
        StageFailed: an input artifact is missing or damaged, the key was made with other code than
            this, or a metric is not finite.
        HostLost: the devices of the job do not reach each other.
    """
    settings = context().settings
    kind = stage_kind(spec.kind)
    on_devices = kind.devices(spec.config)
    if on_devices:
        hosts.connect(settings)
        meter.on_devices = True
    elif not hosts.is_committer():
        log.info("stage %s uses no devices: host 0 runs it alone", spec.stage)
        return None
    adopted = _of_first(lambda: store.valid(spec.kind, spec.key))
    if adopted is not None:
        log.info("stage %s: the artifact exists already", spec.stage)
        return adopted
    try:
        config = kind.config.parse(spec.config)
    except ValidationError as error:
        raise InputError(
            explain_validation(error, kind.config, f"stages.{spec.stage}.config")
        ) from error
    for model in shipped_models(spec):
        receive_model(store, model, spec.dependencies)
    inputs = {name: _input_directory(store, spec, name, ref) for name, ref in spec.inputs.items()}
    digests = {name: ref.digest for name, ref in spec.inputs.items()}
    if stage_key(spec.kind, kind.version, spec.dependencies, spec.config, digests) != spec.key:
        raise StageFailed(
            f"stage {spec.stage}: the job was submitted for key {spec.key}, which is not the key of"
            f" kind {spec.kind!r} version {kind.version} with this config and these inputs. The"
            " code changed in between; run the same command again."
        )

    def report(progress: Progress) -> None:
        meter.note(progress)
        supervisor.report(progress)

    work = _workspace(spec, store)
    out = work.scratch("out")
    job = Job(
        config=config,
        inputs=inputs,
        out=out,
        work=work,
        checkpoint_seconds=settings.checkpoint_seconds,
        checkpoint_steps=settings.checkpoint_steps,
        data=_data_directory(spec, store),
        pausing=store.path(pause_file(spec.key, spec.attempt)).exists,
        report=report,
        log=log,
    )
    preload(spec.kind, spec.devices)
    with _compiled_programs(spec, store):
        metrics = kind.run(job)
    _require_finite(metrics, spec.stage)
    draft = Manifest(
        kind=spec.kind,
        key=spec.key,
        version=kind.version,
        dependencies=spec.dependencies,
        config=spec.config,
        inputs=spec.inputs,
        attempt=spec.attempt,
        files=(),
        metrics=metrics,
        execution={**_execution(spec, store, meter.usage()), **hosts.topology(on_devices)},
    )
    return _of_first(lambda: store.commit(draft, out))


def _compiled_programs(spec: JobSpec, store: Store) -> AbstractContextManager[Any]:
    """On a rented machine: fetch the programs compiled earlier for its type, and keep those
    compiled now."""
    if spec.target == "local":
        return nullcontext()
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", "")
    return Compiled(store, f"compiled/{spec.target}/{spec.kind}", cache, send=hosts.is_committer())


def _of_first(manifest: Callable[[], Manifest | None]) -> ArtifactRef | None:
    """The artifact that host 0 finds or makes, sent to all hosts."""
    found = manifest() if hosts.is_committer() else None
    ref = hosts.agree(found.ref().model_dump(mode="json") if found else None)
    return ArtifactRef.parse(ref) if ref else None


def _input_directory(store: Store, spec: JobSpec, name: str, ref: ArtifactRef) -> Path:
    manifest = store.valid(ref.kind, ref.key)
    if manifest is not None and manifest.digest == ref.digest:
        with suppress(Damaged):
            return store.local_dir(manifest)
    raise StageFailed(
        f"stage {spec.stage}: the artifact of its input {name!r}, {ref.kind}/{ref.key}, is missing,"
        " damaged or another one by now. Run the same command again: it will be computed again."
    )


def _data_directory(spec: JobSpec, store: Store) -> Path | None:
    """The directory of the files of `--data` on this machine. Raises StageFailed when the store
    lacks them."""
    if spec.data is None or Path(spec.data).is_absolute():
        return None if spec.data is None else Path(spec.data)
    loaded = store.load_tree(spec.data)
    if loaded is None:
        raise StageFailed(
            f"stage {spec.stage}: the files of --data, {spec.data} in store {store.uri}, are"
            " missing or damaged. Run the same command again: they will be sent again."
        )
    return loaded[0]


def _require_finite(metrics: Any, stage: str, path: str = "metrics") -> None:
    """Raise StageFailed, naming the metric, for a NaN, an infinity, or something that is not
    JSON."""
    if isinstance(metrics, dict):
        for name, value in metrics.items():
            _require_finite(value, stage, f"{path}.{name}")
    elif isinstance(metrics, (list, tuple)):
        for index, value in enumerate(metrics):
            _require_finite(value, stage, f"{path}.{index}")
    elif isinstance(metrics, float) and not math.isfinite(metrics):
        raise StageFailed(f"stage {stage}: {path} is {metrics}; metrics must be finite numbers.")
    else:
        try:
            canonical_json(metrics)
        except TypeError as error:
            raise StageFailed(
                f"stage {stage}: {path} is a {type(metrics).__name__}; metrics must be plain JSON"
                " values."
            ) from error


def _execution(spec: JobSpec, store: Store, usage: Usage) -> dict[str, Any]:
    """The execution record, which is never hashed: where, when (seconds since the epoch), with
    which versions, and how much memory and time it took. `seconds` covers all attempts, since each
    continues the one before."""
    return {
        "target": spec.target,
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "git": _git_commit(),
        "started": time.time() - usage.seconds,
        **usage.model_dump(exclude_none=True),
        "seconds": usage.seconds + _seconds_before(spec, store),
    }


def _seconds_before(spec: JobSpec, store: Store) -> float:
    """Seconds of the attempts since the last one that made an artifact."""
    known = []
    for attempt in set(store.children(f"work/{spec.key}")) - {KEPT, spec.attempt}:
        with suppress(InputError):  # a damaged one; failing would waste the work that was done
            known.append(store.read_json(host_status(spec.key, attempt, 0), JobStatus))
    statuses = [status for status in known if status is not None]
    made = max((one.heartbeat for one in statuses if one.state == "succeeded"), default=0.0)
    # a clock that was put back meanwhile takes no time from another attempt
    return sum(max(0.0, one.heartbeat - one.began) for one in statuses if one.began > made)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """The commit of the checkout this file is in, with `-dirty` when files were changed; None
    outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists() or shutil.which("git") is None:
        return None
    described = subprocess.run(
        ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or None


if __name__ == "__main__":
    mask_output()
    sys.exit(main(sys.argv[1:]))
