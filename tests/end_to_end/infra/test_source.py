"""What a machine is sent: the same bytes for the same code and environment, everything a worker
imports, nothing of the user's machine."""

import ast
import gzip
import importlib.metadata
import io
import os
import socket
import sys
import tarfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from infra import source
from infra.distribution import DISTRIBUTION
from infra.process import ROOT
from infra.source import FLOW_ONLY, PACKAGES, environment, ship_data, ship_source
from infra.store.store import Store, open_store
from schemas.base import InputError, StageFailed
from schemas.job import JobSpec
from tasks.contract.kinds import stage_kind
from tasks.worker.__main__ import _data_directory
from tests.fakes.gcs_emulator import Emulator
from tests.fakes.process import printed, run_python


@pytest.fixture
def store(gcs_bucket: str) -> Store:
    return open_store(f"gs://{gcs_bucket}/lyceum")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "my data"
    (directory / "more").mkdir(parents=True)
    (directory / "rows.jsonl").write_text("{}\n")
    (directory / "more" / "rows.jsonl").write_text("[]\n")
    (directory / "link.jsonl").symlink_to("rows.jsonl")
    return directory


def members(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(archive))) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def versions(name: str) -> dict[str, str]:
    """Name (without extras) -> version, of a file of the environment."""
    lines = (Requirement(line) for line in environment()[name].splitlines())
    return {canonicalize_name(line.name): str(line.specifier) for line in lines}


# Code


def test_the_archive_holds_what_a_wheel_would_and_the_environment(store: Store) -> None:
    """Every module, and every other file that pyproject.toml calls a part of a package that is
    sent; the flows stay at home."""
    name = ship_source(store)
    archive = store.read_bytes(name)
    found = set(members(archive))
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    for package, patterns in setuptools["package-data"].items():
        if package.startswith("tasks"):
            for pattern in patterns:
                paths += (ROOT / package.replace(".", "/")).glob(pattern)
    expected = {path.relative_to(ROOT).as_posix() for path in paths}
    names = ("python", "requirements.txt", "constraints.txt", "overrides.txt")
    assert found == expected | {f"environment/{name}" for name in names}
    assert any(path.endswith(".tsv") for path in found)


def test_it_has_the_same_bytes_in_every_process_and_says_nothing_of_this_machine(tmp_path):
    """Other times, another directory, another hash seed; neither names nor paths of here, nor a
    secret of its environment."""
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for name, content in members(source.archive()[1]).items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(content)
        os.utime(copy / name, (1, 1))
    for name in ("infra/terraform/terraform.tfstate", "infra/notes.txt", "tasks/__pycache__/x.py"):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text("mine")
    (copy / "infra/._local.py").write_bytes(b"\0\5\26\7")  # as macOS leaves it on an exFAT disk
    (copy / "infra/.#local.py").symlink_to("me@here.1234")  # as Emacs locks a file
    other = {"PYTHONHASHSEED": "7", "HF_TOKEN": "hf_canary_canary", "PYTHONDONTWRITEBYTECODE": "1"}
    ask = "from infra import source; print(source.archive()[0])"
    said = run_python("-c", ask, cwd=copy, env={**os.environ, **other}, check=True).stdout
    name, archive = source.archive()
    assert said.strip() == name
    text = b"\n".join(members(archive).values()).decode()
    private = (str(ROOT), f"{Path.home()}/", "hf_canary_canary", f"{socket.gethostname()}.")
    assert [one for one in private if one in text] == []
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(archive))) as tar:
        about = {(one.mtime, one.uid, one.gid, one.uname, one.mode) for one in tar}
    assert about == {(0, 0, 0, "", 0o644)}


def test_it_is_sent_once_and_again_only_when_it_was_damaged(store, gcs, gcs_bucket):
    name = ship_source(store)
    gcs.forget_requests()
    assert ship_source(store) == name
    assert gcs.requests() == {}
    gcs.corrupt(gcs_bucket, f"lyceum/{name}", recompute=True)
    opened = "from infra.store.store import open_store; import sys; store = open_store(sys.argv[1])"
    printed(f"{opened}; from infra.source import ship_source; ship_source(store)", store.uri)
    assert store.read_bytes(name) == source.archive()[1]


def test_what_the_bucket_deletes_after_a_month_is_there_for_a_server_that_runs_longer(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each night a machine is asked for, and the code is the same for months."""
    name, real = ship_source(store), time.monotonic
    [first] = store.objects("src")
    for days in (20, 40):
        monkeypatch.setattr(time, "monotonic", lambda days=days: real() + days * 86400)
        assert ship_source(store) == name
        [found] = store.objects("src")
        assert found.written > first.written, "the lifecycle counts from when it was written"
        first = found
    store.remove(name)  # as the lifecycle does
    monkeypatch.setattr(time, "monotonic", lambda: real() + 60 * 86400)
    ship_source(store)
    assert store.read_bytes(name) == source.archive()[1]


# Environment


def imported() -> Iterator[tuple[str, str]]:
    """File and top-level module, of everything that the modules which are sent import from
    elsewhere."""
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for name in names:
                top = name.split(".")[0]
                if top not in sys.stdlib_module_names and top not in PACKAGES:
                    yield path.relative_to(ROOT).as_posix(), name


def test_everything_that_a_worker_imports_is_in_its_environment() -> None:
    """Nothing that is only the flow's is imported, but in the stage task, which no worker loads,
    and for exports and endpoints, which stay at home."""
    distributions = importlib.metadata.packages_distributions()
    locked = versions("constraints.txt")
    at_home = ("stage", "stages/export", "exporting/model_card", "exporting/round_trip")
    at_home += ("serving/app", "serving/server", "cleaning/cluster")
    left_out = {f"tasks/{name}.py" for name in at_home}
    assert stage_kind("export").at_home({}, {})
    needed = {(file, module) for file, module in imported() if file not in left_out}
    assert len(needed) > 30
    for file, module in needed:
        candidates = {canonicalize_name(name) for name in distributions[module.split(".")[0]]}
        assert candidates & set(locked), f"{file} imports {module}"
        assert not candidates & FLOW_ONLY, f"{file} imports {module}, which is not sent"
    of_the_task = {module.split(".")[0] for file, module in imported() if file == "tasks/stage.py"}
    assert of_the_task == {"prefect", "httpx"}


def test_every_requirement_of_the_project_is_a_workers_or_the_flows() -> None:
    requirements = [Requirement(line) for line in importlib.metadata.requires(DISTRIBUTION) or []]
    extras = ('extra == "export"', 'extra == "cluster"')
    at_home = {one.name for one in requirements if one.marker and str(one.marker) in extras}
    at_home |= {DISTRIBUTION}  # extra "tpu" names other extras
    ours = {canonicalize_name(one.name) for one in requirements} - at_home
    assert ours >= FLOW_ONLY
    assert set(versions("requirements.txt")) == ours - FLOW_ONLY


def test_versions_are_those_installed_here_and_jax_comes_with_its_tpu_extra() -> None:
    locked, direct = versions("constraints.txt"), versions("requirements.txt")
    for name, version in {**locked, **direct}.items():
        assert version == f"=={importlib.metadata.version(name)}"
    assert set(direct) <= set(locked)
    # some only under Linux
    there = {"jaxlib", "requests", "tensorstore", "pydantic-core", "uvloop", "cffi"}
    assert there <= set(locked)
    assert not {"prefect", "pytest", "colorama", "mypy", "torch"} & set(locked)
    jax = f"jax[tpu]=={importlib.metadata.version('jax')}"
    assert jax in environment()["requirements.txt"].splitlines()
    assert environment()["python"] == f"{sys.version_info.major}.{sys.version_info.minor}\n"


def test_what_is_left_out_there_is_left_out_here() -> None:
    """By `override-dependencies`, and of what Tunix says that it requires, all that pyproject.toml
    does not repeat and Lyceum does not require by itself."""
    uv = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["uv"]
    [tunix] = uv["dependency-metadata"]
    assert tunix["version"] == importlib.metadata.version(tunix["name"])

    def names(lines: Iterable[str]) -> set[str]:
        return {canonicalize_name(Requirement(line).name) for line in lines}

    said = [Requirement(line) for line in importlib.metadata.requires(tunix["name"]) or []]
    said_names = {canonicalize_name(one.name) for one in said if one.marker is None}
    unused = said_names - names(tunix["requires-dist"]) - set(versions("requirements.txt"))
    assert set(environment()["overrides.txt"].splitlines()) == {
        *uv["override-dependencies"],
        *(f"{name} ; sys_platform == 'never'" for name in unused),
    }


def test_without_an_installed_lyceum_nobody_knows_what_it_needs(monkeypatch):
    missing = Mock(side_effect=importlib.metadata.PackageNotFoundError)
    monkeypatch.setattr(importlib.metadata, "requires", missing)
    with pytest.raises(InputError, match="uv sync"):
        environment()


# Data


def test_data_are_sent_once_and_found_again_whole(store: Store, data: Path, gcs: Emulator) -> None:
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    name = ship_data(store, data)
    root, *_ = store.load_tree(name)
    files = [path for path in root.rglob("*") if path.is_file()]
    found = {path.relative_to(root).as_posix(): path.read_text() for path in files}
    assert found == {"rows.jsonl": "{}\n", "link.jsonl": "{}\n", "more/rows.jsonl": "[]\n"}
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == before
    assert list(store.path("data").iterdir()) == []
    gcs.forget_requests()
    assert ship_data(store, data) == name
    assert not [kind for kind in gcs.requests() if not kind.startswith("GET")]
    (data / "rows.jsonl").write_text("other\n")
    assert ship_data(store, data) != name


def test_data_that_were_damaged_are_sent_again(store, data, gcs, gcs_bucket):
    name = ship_data(store, data)
    gcs.corrupt(gcs_bucket, f"lyceum/{name}/data/rows.jsonl", recompute=True)
    assert store.load_tree(name) is None
    assert ship_data(store, data) == name
    assert store.has_tree(name)


def test_what_is_no_data_stays_at_home(store: Store, data: Path, tmp_path: Path) -> None:
    (tmp_path / "private").write_text("mine")
    plain = ship_data(store, data)
    (data / "out").symlink_to(tmp_path / "private")
    (data / ".git").mkdir()
    (data / ".git" / "config").write_text("mine")
    (data / ".hidden").write_text("mine")
    os.mkfifo(data / "pipe")
    assert ship_data(store, data) == plain


def test_a_file_that_cannot_be_sent_is_named(store, data, monkeypatch):
    full = Mock(side_effect=OSError(28, "No space left on device", "/cache"))
    why = r"cannot copy the data file .*No space left on device \(/cache\).*LYCEUM_CACHE"
    with monkeypatch.context() as patched:
        patched.setattr("shutil.copyfile", full)
        with pytest.raises(InputError, match=why):
            ship_data(store, data)
    assert store.children("data") == []
    (data / "a b.csv").write_text("")
    why = r"--data .*my data: the name 'a b\.csv' is not allowed.*Rename it"
    with pytest.raises(InputError, match=why):
        ship_data(store, data)


def test_a_worker_finds_the_data_wherever_they_are_said_to_be(store: Store, data: Path) -> None:
    """Nowhere, on this machine, or in the store; from there they come whole or not at all."""
    given = {"stage": "distill", "kind": "distill", "target": "v5e-8", "config": {}}
    spec = JobSpec(key="k", attempt="1", store=store.uri, **given)
    assert _data_directory(spec, store) is None
    assert _data_directory(spec.model_copy(update={"data": str(data)}), store) == data
    name = ship_data(store, data)
    found = _data_directory(spec.model_copy(update={"data": name}), store)
    assert (found / "rows.jsonl").read_text() == "{}\n"
    store.remove(name)
    why = f"stage distill: the files of --data, {name} in store gs://"
    with pytest.raises(StageFailed, match=why):
        _data_directory(spec.model_copy(update={"data": name}), store)
