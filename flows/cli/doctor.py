"""`lyceum doctor`: whether this machine can run Lyceum, and what a bug report should say about
it."""

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from flows.planning.machine import memory_bytes
from flows.server.key import ours
from flows.server.prefect_api import api_problem, bypass_proxy, configured_api
from flows.server.unconfigured import is_unconfigured
from infra.accelerator import find
from infra.context import context
from infra.cores import usable_cores
from infra.distribution import DISTRIBUTION
from infra.secrets import mask
from infra.targets import check_target
from infra.tpu.types import TPU_TYPES
from schemas.base import InputError
from tasks.sandbox.bubblewrap import require_sandbox

MEMORY_GIB = 4.0
DISK_GIB = 2.0
"""The quickstart's need of disk."""


@dataclass(frozen=True)
class Check:
    """One finding: the subject, whether it is fine, the result, and how to show it."""

    name: str
    well: bool
    found: str
    group: Literal["machine", "packages"] = "machine"


def examine(store: str, target: str) -> list[Check]:
    """Look at everything; nothing is changed (in a bucket one object is written and removed), and
    no store is created.

    Args:
        target: with one in the cloud, also whether machines could be had there; nothing is asked
            for.

    Raises:
        InputError: an unknown target.
    """
    check_target(target)
    cloud = [] if target == "local" else [*_cloud(target), _bucket_of(store)]
    here = [_processor(), _memory(), _accelerator(), *_store(store), _prefect()]
    return [_python(), *here, *cloud, _tpu(), _sandbox(), *_packages()]


def _python() -> Check:
    well = (3, 11) <= sys.version_info[:2] < (3, 14)
    found = f"{platform.python_version()} on {platform.platform()}"
    return Check("python", well, found + ("" if well else "; Lyceum needs 3.11 to 3.13"))


def _packages() -> Iterator[Check]:
    """Each direct dependency against the versions that are known to work together (this package's
    own requirements)."""
    for text in importlib.metadata.requires(DISTRIBUTION) or []:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        needs = f"; needs {requirement.specifier}: run `uv sync`"
        try:
            found = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            yield Check(requirement.name, False, f"not installed{needs}", "packages")
            continue
        well = requirement.specifier.contains(found, prereleases=True)
        yield Check(requirement.name, well, found + ("" if well else needs), "packages")


def _processor() -> Check:
    return Check("processor", True, f"{usable_cores()} cores, {platform.machine()}")


def _memory() -> Check:
    total = memory_bytes() / 2**30
    well = total >= MEMORY_GIB
    needs = "" if well else f"; the quickstart needs {MEMORY_GIB:g}"
    return Check("memory", well, f"{total:.1f} GiB{needs}")


def _accelerator() -> Check:
    """The accelerator of local jobs. None is fine, since there is the CPU."""
    found = find()
    if found.accelerator is None:
        return Check("accelerator", not found.wrong, found.why)
    one = found.accelerator
    memory = (
        "" if one.memory_bytes is None else f", {one.memory_bytes / 2**30:.1f} GiB each for jobs"
    )
    said = f"{one.devices} x {one.kind} ({one.platform}){memory}; {one.driver}"
    return Check("accelerator", True, f"{said}; jax {importlib.metadata.version('jax')}")


def _store(location: str) -> Iterator[Check]:
    """Whether the store can be read and written, and the room for it, or for this machine's part
    of a store in a bucket. A bucket is tried; of a directory, or the one to make it in, the
    permissions count."""
    place = Path()
    try:
        store = context().store(location, write=location.startswith("gs://"))
        wanted = store.path("work").parent
        place = next(path for path in (wanted, *wanted.parents) if path.exists())
        well = os.access(place, os.W_OK | os.X_OK)
        why = f": its cache {place} cannot be written; set LYCEUM_CACHE to another directory"
        if store.is_directory:
            why = f": {place} cannot be written; give --store another path"
        yield Check("store", well, store.uri + ("" if well else why))
    except (OSError, InputError) as error:
        yield Check("store", False, str(error))
    free = shutil.disk_usage(place).free / 2**30
    well = free >= DISK_GIB
    needs = "" if well else f"; the quickstart needs {DISK_GIB:g}"
    yield Check("disk", well, f"{free:.1f} GiB free at {place}{needs}")


def _prefect() -> Check:
    """Check which API a run would use, and whether it lets us in."""
    bypass_proxy()
    if not is_unconfigured():
        from prefect.settings import get_current_settings

        api = configured_api()
        if api is not None:
            problem = api_problem(api)
            return Check("prefect api", problem is None, f"{mask(api.url)} {problem or 'answers'}")
        if (served := ours(get_current_settings().home)) is not None:
            found = f"{served} is `lyceum serve`, and has proven it; it asks for a key, which this"
            return Check("prefect api", True, f"{found} user has")
    found = "none configured; a run that has something to do starts a temporary one (`lyceum serve`"
    return Check("prefect api", True, f"{found} keeps one running, with its UI)")


def _tpu() -> Check:
    """The TPU compiler. Local runs do not need it, so its absence is fine, too."""
    try:
        found = f"libtpu {importlib.metadata.version('libtpu')}"
    except importlib.metadata.PackageNotFoundError:
        found = "not installed; only needed for TPUs: `uv sync --extra tpu`"
    return Check("tpu compiler", True, found)


def _sandbox() -> Check:
    """The sandbox. Only checks that run a model's code need it, so its absence is fine, too."""
    try:
        return Check("sandbox", True, f"{require_sandbox()}: check 'tests' can run code")
    except InputError as error:
        return Check("sandbox", True, f"none; only needed for check 'tests'. {error}")


def _cloud(target: str) -> Iterator[Check]:
    """Whether the Cloud TPU API answers, in each zone that a run would try."""
    from infra.tpu.api import ApiError, TpuApi

    kind, settings = TPU_TYPES[target], context().tpu
    api = TpuApi(kind, settings)
    try:
        api.connect()
    except InputError as error:
        yield Check("cloud tpu", False, str(error))
        return
    endpoint = settings.endpoint or "tpu.googleapis.com"
    found = f"project {api.project}, {kind.accelerator}, {settings.tier}, {endpoint}"
    yield Check("cloud tpu", True, found)
    for zone in context().settings.zones or kind.zones:
        try:
            count = len(api.list(zone))
        except ApiError as error:
            yield Check(zone, False, str(error))
        else:
            yield Check(zone, True, f"answers; the project has {count} TPU resources there")


def _bucket_of(location: str) -> Check:
    """The bucket of a store, since a machine in the cloud reads and writes it itself."""
    well = location.startswith("gs://")
    wrong = " cannot be reached from there: give --store gs://BUCKET/PREFIX"
    return Check("store of jobs", well, location + ("" if well else wrong))
