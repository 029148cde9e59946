"""Settings of execution: where things are kept and how often they are looked at. None of them is
ever part of a stage key.

Each field of `Settings` is read from the environment variable `LYCEUM_<FIELD>`, e.g.
`LYCEUM_STORE=/data/lyceum`, and each of `TpuSettings` from `LYCEUM_TPU_<FIELD>`; lists are written
`a,b` and tables `a=b,c=d`. Command-line options win over both.
"""

import difflib
import hashlib
import os
import platform
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, ValidationError

from infra.cores import usable_cores
from infra.store.location import expanded
from schemas.base import InputError, StrictModel, problem_text


def home_directory() -> Path:
    """The user's home directory. Raises InputError: nobody says which it is, as in containers whose
    user has no name, or HOME is relative, which means another one in each job's directory."""
    home = Path(os.path.expanduser("~"))
    if not home.is_absolute():
        raise InputError(
            "nothing says which directory is your home: HOME is not set or relative, and this"
            f" system knows no user {os.getuid()}. Set HOME to a directory that you may write."
        )
    return home


def _processor() -> str:
    """12 hexadecimal characters that differ between processors of different features: compiled CPU
    code runs only where it was compiled."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        told = {line for line in lines if line.startswith(("flags", "Features", "model name"))}
    else:
        told = {platform.processor()}  # elsewhere it would start a process for nothing
    return hashlib.sha256("\n".join([platform.machine(), *sorted(told)]).encode()).hexdigest()[:12]


def _default_cache() -> str:
    given = os.environ.get("XDG_CACHE_HOME", "")  # one that is relative is to be ignored
    return str((Path(given) if given[:1] == "/" else home_directory() / ".cache") / "lyceum")


def _whole_path(path: str) -> str:
    """A path with `~` for the home; nothing stays nothing. Jobs read these variables, too, and work
    in another directory: a relative path would lead them elsewhere."""
    if path and not path.startswith(("/", "~")):
        raise ValueError("give an absolute path, or one that begins with ~")
    return path and str(expanded(path, "directory"))


Directory = Annotated[str, AfterValidator(_whole_path)]


_LABEL = re.compile(r"(?!lyceum)[a-z][a-z0-9_-]{0,62}=[a-z0-9_-]{0,63}")


def _labels(labels: dict[str, str]) -> dict[str, str]:
    for one in (f"{label}={value}" for label, value in labels.items()):
        if not _LABEL.fullmatch(one):
            raise ValueError(
                f"{one} is no label: lower-case letters, digits, - and _, at most 63 of them, a"
                " letter first, and not the prefix lyceum"
            )
    return labels


class _FromEnvironment(StrictModel):
    """Settings whose field `f` is read from the variable `<PREFIX>F`."""

    PREFIX: ClassVar[str]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Defaults, overridden by the environment. Raises InputError naming the variable whose
        value does not fit, or whose name is nearly a setting's."""
        variables = {name: cls.PREFIX + name.upper() for name in cls.model_fields}
        _refuse_misspelt(cls.PREFIX, variables.values(), environment)
        given = {
            name: _value(cls, name, environment[variable])
            for name, variable in variables.items()
            if variable in environment
        }
        try:
            return cls.model_validate(given, strict=False)
        except ValidationError as error:
            problem = error.errors()[0]
            variable = variables[str(problem["loc"][0])]
            raise InputError(
                f"environment variable {variable}={environment[variable]!r} is not valid:"
                f" {_WORDS.get(problem['type'], problem_text(problem)).removesuffix('.')}."
            ) from error


_WORDS = {"bool_parsing": "write 1 or 0"}
"""What pydantic says without the valid choices."""

_ALIKE = 0.75
"""How alike two names are, by difflib's ratio, for one to be taken for the other misspelt. Other
variables with the prefix are people's own, such as an endpoint's key."""


def _refuse_misspelt(prefix: str, valid: Collection[str], environment: Mapping[str, str]) -> None:
    known = [variable.removeprefix(prefix) for variable in valid]
    other = Settings if prefix == TpuSettings.PREFIX else TpuSettings
    for variable in environment:
        if not variable.startswith(prefix) or variable in valid:
            continue
        name = variable.removeprefix(prefix)
        if name.lower() in other.model_fields:
            raise InputError(
                f"environment variable {variable} is no setting. Did you mean {other.PREFIX}{name}?"
            )
        if name.startswith("TPU_"):  # TpuSettings' own
            continue
        if close := difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE):
            raise InputError(
                f"environment variable {variable} is no setting. Did you mean {prefix}{close[0]}?"
            )


def _value(model: type[_FromEnvironment], name: str, text: str) -> Any:
    """A variable's text as what its field takes: `a,b` for a tuple, `a=b,c=d` for a dict. Raises
    InputError: a part of a dict has no `=`."""
    annotation = str(model.model_fields[name].annotation)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if annotation.startswith("tuple"):
        return tuple(parts)
    if annotation.startswith("dict"):
        pairs = [part.partition("=") for part in parts]
        if wrong := [part for part, (_, equals, _) in zip(parts, pairs, strict=True) if not equals]:
            raise InputError(
                f"environment variable {model.PREFIX}{name.upper()}={text!r} is not valid:"
                f" {wrong[0]!r} has no =; write key=value,key=value."
            )
        return {key.strip(): value.strip() for key, _, value in pairs}
    return text


class Settings(_FromEnvironment):
    """Execution settings of every target.

    Attributes:
        store: the store when `--store` is not given: a path or URI.
        poll_seconds: time between two looks at a job or at a lease that somebody else holds.
        heartbeat_seconds: time between two heartbeats of a worker's status.
        lease_seconds: a lease that was not renewed for this long is expired and may be taken over.
        stop_seconds: how long a cancelled job may take to stop by itself before it is killed.
        parallel_jobs: how many local jobs run side by side; the others wait in the queue. Of those
            that compute on this machine's GPU or TPU one runs at a time.
        local_kinds: stage kinds whose jobs run on this machine although the run's target is
            another, e.g. `distill,rebalance`: they need no accelerator, and a TPU is paid for while
            they keep it idle.
        restarts: how often, in one run, a stage whose worker was killed or whose machine vanished
            is started again; it continues from its checkpoint.
        compile_cache: directory of JAX's persistent compilation cache for local jobs; empty for
            none.
        cache: directory for what this machine keeps of a store in a bucket: copies of artifacts,
            and files of jobs that run here.
        checkpoint_seconds: a training stage saves a checkpoint at most this often, and never so
            often that saving takes more than a twentieth of its time.
        checkpoint_steps: if given, a checkpoint is due after every so many steps as well, whatever
            it costs.
        store_seconds: how long a bucket that answers with errors is asked again before a stage
            gives up.
        billing_project: project that pays for requests to a bucket whose owner does not (requester
            pays).
        zones: zones of the machines that jobs run on, the preferred one first, e.g.
            `us-central1-a,us-west4-a`; a run whose bucket is elsewhere is refused. Empty: local
            jobs run wherever this is, TPUs in the zones where their type is offered.
        far_bucket: allow a bucket in another region than `zones`: every byte crosses regions, which
            is slow and costs money.
        tensor_parallel: how many devices share the heads, the feed-forward width and the vocabulary
            of a model between them, for models too large for one; batches are spread over groups of
            so many.
        whole_weights_gib: weights of at most so many GiB (trained ones with their optimizer's
            state) lie whole on every device, which is faster; larger ones are spread over the
            devices. 0 spreads all: for when memory is short.
        plan: `lyceum run` compiles what it is going to run on a TPU here first, where libtpu is
            installed, or on this machine's own accelerator, and refuses what does not fit.
        max_usd: a run that has spent this much, in US dollars by list price, starts no more
            machines; those at work go on. The same command again, a Retry and each of `--seeds`
            count from zero. Unset, there is no limit.
        teacher_concurrency: requests to a teacher's or a judge's endpoint that may be under way at
            a time; fewer while it says "too many".
        teacher_timeout_seconds: how long one such request may take, from the connection to the last
            byte.
        teacher_attempts: how often a request that is refused or lost is sent before it counts as
            failed.
        teacher_dead_seconds: an endpoint that has only failed for so long, or asks to wait longer,
            ends the stage.
        teacher_batch: put requests to the provider as batch files (`/v1/batches`): cheaper, and
            answered within a day. Never a judge's.
        judge_patience_seconds: how long a stage that rewards with a judge waits for an endpoint
            that is down, before it ends.
    """

    PREFIX: ClassVar[str] = "LYCEUM_"

    store: str = ".lyceum"
    poll_seconds: float = Field(default=0.2, gt=0)
    heartbeat_seconds: float = Field(default=2.0, gt=0)
    lease_seconds: float = Field(default=30.0, gt=0)
    stop_seconds: float = Field(default=5.0, gt=0)
    parallel_jobs: int = Field(default_factory=lambda: max(1, usable_cores() // 2), ge=1)
    local_kinds: tuple[str, ...] = ()
    restarts: int = Field(default=3, ge=0)
    compile_cache: Directory = Field(
        default_factory=lambda: str(Path(_default_cache()) / f"jax-{_processor()}")
    )
    cache: Annotated[Directory, AfterValidator(lambda cache: cache or _default_cache())] = Field(
        default_factory=_default_cache
    )
    checkpoint_seconds: float = Field(default=60.0, ge=0)
    checkpoint_steps: int | None = Field(default=None, ge=1)
    store_seconds: float = Field(default=900.0, gt=0)
    billing_project: str = ""
    zones: tuple[str, ...] = ()
    far_bucket: bool = False
    tensor_parallel: int = Field(default=1, ge=1)
    whole_weights_gib: float = Field(default=6.0, ge=0)
    plan: bool = True
    max_usd: float | None = Field(default=None, gt=0)
    teacher_concurrency: int = Field(default=64, ge=1, le=4096)
    teacher_timeout_seconds: float = Field(default=600.0, gt=0)
    teacher_attempts: int = Field(default=10, ge=1)
    teacher_dead_seconds: float = Field(default=300.0, gt=0)
    teacher_batch: bool = False
    judge_patience_seconds: float = Field(default=1800.0, gt=0)


class TpuSettings(_FromEnvironment):
    """How machines are had from the Cloud TPU API. Everything has a default but `project`.

    Attributes:
        endpoint: `host:port` of a plaintext gRPC endpoint instead of Google's (a test double).
        project: the Google Cloud project; empty for GOOGLE_CLOUD_PROJECT.
        tier: `spot` (cheap, may be preempted at any time: the stage resumes), `on-demand`, or
            `guaranteed` (from a reservation).
        reservation: name of the reservation of the guaranteed tier, if it is not the project's
            default.
        runtime: software version of the VM; empty for the one that fits the accelerator.
        network, subnetwork: names or paths of the VPC; empty for the project's default network.
        external_ips: VMs get public addresses. Without, the network needs Cloud NAT or Private
            Google Access and a package mirror.
        service_account: e-mail of the VM's identity; empty for the project's default.
        labels: more labels of the resources, e.g. `team=nlp,cost-center=42`.
        tags: network tags of the VMs.
        data_disk: path of a persistent disk that every VM gets read-only, e.g. with weights; empty
            for none.
        usd_per_chip_hour: price of one chip for an hour in this tier; unset, the list price in
            `infra/tpu/types.py`.
        poll_seconds: time between two looks at a resource.
        queue_seconds: how long a request may wait for resources in one zone before the next zone is
            tried.
        boot_seconds: how long a TPU may take to be provisioned, and then its VMs until a worker is
            heard of.
        silence_seconds: a host that was not heard of for this long is taken for dead.
        delete_seconds: how long the deletion of a resource is followed before it is reported as
            left over.
    """

    PREFIX: ClassVar[str] = "LYCEUM_TPU_"

    endpoint: str = ""
    project: str = Field(default_factory=lambda: os.environ.get("GOOGLE_CLOUD_PROJECT", ""))
    tier: Literal["spot", "on-demand", "guaranteed"] = "spot"
    reservation: str = ""
    runtime: str = ""
    network: str = ""
    subnetwork: str = ""
    external_ips: bool = True
    service_account: str = ""
    labels: Annotated[dict[str, str], AfterValidator(_labels)] = Field(default_factory=dict)
    tags: tuple[str, ...] = ()
    data_disk: str = ""
    usd_per_chip_hour: float | None = Field(default=None, ge=0)
    poll_seconds: float = Field(default=5.0, gt=0)
    queue_seconds: float = Field(default=3600.0, gt=0)
    boot_seconds: float = Field(default=900.0, gt=0)
    silence_seconds: float = Field(default=120.0, gt=0)
    delete_seconds: float = Field(default=300.0, gt=0)
