"""Sends a machine in the cloud, through the store, this code with its environment, and the files of
`lyceum run --data`.

    src/<sha256>.tar.gz     the packages schemas, infra and tasks, and
                            environment/{python,requirements.txt,constraints.txt,overrides.txt}
    data/<digest>/          a tree (`Store.save_tree`) with the files of a data directory

Both are named after their content. Data that is there is not sent again; the code is, once a day,
because the bucket's lifecycle (infra/terraform/bucket.tf) deletes what is a month old, also what is
used each night. The environment has the exact versions,
installed here, of all that a worker needs, whether Lyceum is a checkout or a wheel. jax's own extra
`tpu` adds what a machine with a TPU needs.
"""

import functools
import gzip
import hashlib
import importlib.metadata
import io
import logging
import os
import shutil
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from infra.distribution import DISTRIBUTION, FOR_CLOUD
from infra.process import ROOT
from infra.store.local_objects import file_entry
from infra.store.objects import name_problem
from infra.store.store import Store
from schemas.artifact import FileEntry
from schemas.base import InputError, digest

log = logging.getLogger("lyceum.source")

PACKAGES = ("schemas", "infra", "tasks")
SUFFIXES = (".py", ".templates", ".toml", ".tsv")
"""Suffixes of the package files to send. Others, such as Terraform's state, are not for the
worker."""

FLOW_ONLY = frozenset({"fastapi", "prefect", "pytest", "rich", "sqlalchemy"})
"""Requirements of Lyceum that no worker imports."""

_MACHINE = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "sys_platform": "linux",
}
"""Values of requirements' markers on a machine in the cloud."""

RESEND_SECONDS = 86400.0
"""Seconds after which a process sends the code again."""
_shipped: dict[str, float] = {}
_sending_data = threading.Lock()


def ship_source(store: Store) -> str:
    """Send the code's archive, unless this process has just done so, and return its name in the
    store. Raises InputError when Lyceum is not installed."""
    name, packed = archive()
    now = time.monotonic()
    if now - _shipped.get(store.uri, -RESEND_SECONDS) >= RESEND_SECONDS:
        store.write_bytes(name, packed)
        _shipped[store.uri] = now
    return name


def ship_data(store: Store, directory: Path) -> str:
    """Send a data directory's files as a tree, and return its name in the store. The files
    themselves stay unchanged.

    Hidden files, links to directories, and links that lead out of the directory are left out. Files
    in the store are not sent again.

    Raises:
        InputError: a file is unreadable, or has a name that a store does not allow.
    """
    with _sending_data:  # stages run side by side and may all need the same files
        files = _data_files(directory)
        name = _tree_name(_entry(path, relative) for relative, path in files.items())
        if store.has_tree(name):
            return name
        place = store.path("data")
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place, ignore_cleanup_errors=True) as temporary:
            copy = Path(temporary, "copy")
            copy.mkdir()
            _copy(files, copy)
            # a file may have changed in this moment
            name = _tree_name(file_entry(copy, relative) for relative in files)
            store.remove(name)
            log.info("sending %d files of %s to %s/%s", len(files), directory, store.uri, name)
            store.save_tree(name, copy, {})
        return name


LEFT_OUT = (
    "grain", "hf-transfer", "omegaconf", "pycosat", "pylatexenc", "tenacity",
    "tensorflow-datasets",
)  # fmt: skip
"""Packages that reasoning-gym and Tunix require and no worker imports, as pyproject.toml has it."""


def environment() -> dict[str, str]:
    """The files of `environment/` by name: Python's minor version, a worker's requirements, the
    exact versions of all that these need, and the packages left out."""
    try:
        stated = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise InputError(
            "lyceum is not installed, so nobody knows what its workers need. Install it: uv sync,"
            " or pip install."
        ) from error
    direct: dict[str, set[str]] = {}
    for requirement in map(Requirement, stated):
        name = canonicalize_name(requirement.name)
        if name in {*FLOW_ONLY, DISTRIBUTION} or not _applies(requirement, {"", *FOR_CLOUD}):
            continue
        direct.setdefault(name, set()).update(requirement.extras)
    versions = _closure(direct)
    lines = [
        f"{name}{_bracketed(extras)}=={versions[name]}"
        for name, extras in direct.items()
        if name in versions  # an extra may be missing here: its import there says so
    ]
    return {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}\n",
        "requirements.txt": "".join(f"{line}\n" for line in sorted(lines)),
        "constraints.txt": "".join(
            f"{name}=={version}\n" for name, version in sorted(versions.items())
        ),
        "overrides.txt": "".join(f"{name} ; sys_platform == 'never'\n" for name in LEFT_OUT),
    }


def _closure(direct: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Name -> installed version of packages (with extras) and all that they need.

    Packages that are not installed here, such as libtpu, are left out: their versions follow from
    the others.
    """
    versions: dict[str, str] = {}
    waiting = [(name, extra) for name, extras in direct.items() for extra in ("", *extras)]
    seen = set(waiting)
    while waiting:
        name, extra = waiting.pop()
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        versions[name] = found.version
        for requirement in map(Requirement, found.requires or []):
            if _applies(requirement, {extra}):
                needs = canonicalize_name(requirement.name)
                if needs in LEFT_OUT:
                    continue
                needed = {(needs, wanted) for wanted in ("", *requirement.extras)} - seen
                seen |= needed
                waiting += needed
    return versions


def _applies(requirement: Requirement, extras: set[str]) -> bool:
    return requirement.marker is None or any(
        requirement.marker.evaluate({**_MACHINE, "extra": extra}) for extra in extras
    )


def _bracketed(extras: set[str]) -> str:
    return f"[{','.join(sorted(extras))}]" if extras else ""


@functools.cache
def archive() -> tuple[str, bytes]:
    """Name and bytes of the archive, a function of the files' names and contents. Made once, since
    a process runs the code that it has loaded."""
    contents = {f"environment/{name}": text.encode() for name, text in environment().items()}
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*")):
        shown = not path.name.startswith(".")  # an editor's lock, what macOS leaves on other disks
        if shown and path.suffix in SUFFIXES and (path.parent / "__init__.py").exists():
            contents[path.relative_to(ROOT).as_posix()] = path.read_bytes()
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for name, data in sorted(contents.items()):
            member = tarfile.TarInfo(name)  # owned by nobody, of no time, readable by all
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    packed = gzip.compress(plain.getvalue(), mtime=0)
    return f"src/{hashlib.sha256(packed).hexdigest()}.tar.gz", packed


def _data_files(directory: Path) -> dict[str, Path]:
    """POSIX paths below a data directory -> the files, in the order of paths."""
    root, found = directory.resolve(), {}
    for parent, subdirectories, names in os.walk(root):
        subdirectories[:] = [name for name in subdirectories if not name.startswith(".")]
        for name in names:
            path = Path(parent, name)
            inside = path.is_file() and path.resolve().is_relative_to(root)
            if name.startswith(".") or not inside:
                continue
            relative = path.relative_to(root).as_posix()
            if problem := name_problem(relative):
                raise InputError(
                    f"--data {directory}: {problem} Rename it, or name a directory with the data"
                    " alone."
                )
            found[relative] = path
    return dict(sorted(found.items()))


def _copy(files: Mapping[str, Path], place: Path) -> None:
    for relative, path in files.items():
        try:
            (place / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place / relative)
        except OSError as error:
            raise InputError(
                f"cannot copy the data file {path} on its way to the store: {error.strerror}"
                f" ({error.filename}). LYCEUM_CACHE names a directory on a disk with more space."
            ) from error


def _entry(path: Path, relative: str) -> FileEntry:
    try:
        return file_entry(path.parent, path.name).model_copy(update={"path": relative})
    except OSError as error:
        raise InputError(
            f"cannot read the data file {path}: {error.strerror}. Check its permissions."
        ) from error


def _tree_name(entries: Iterable[FileEntry]) -> str:
    return f"data/{digest([[entry.path, entry.sha256] for entry in entries])}"
