"""The startup script of a TPU VM, run as it is: from metadata to a running agent, and what is told when that does not work out."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows.recipe.resolve import resolve
from infra.source import ship_source
from infra.store.store import Store, attempt_file, open_store
from schemas.job import JobSpec, JobStatus
from tests.fakes.vm import Vm, machines, until

Machine = Callable[..., Vm]


@pytest.fixture
def store(gcs_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    return open_store(f"gs://{gcs_bucket}/a/b+c")


@pytest.fixture
def spec(store: Store, tiny_recipe: Path) -> JobSpec:
    """The real stage `distill` of the tiny recipe, submitted for a TPU."""
    stage = resolve(str(tiny_recipe), [], None).stages[0]
    spec = JobSpec(
        stage=stage.name,
        kind=stage.kind,
        key=stage.key({}),
        attempt="1",
        store=store.uri,
        target="v5e-8",
        run="r",
        config=stage.config_json,
        dependencies=stage.dependencies,
    )
    store.create_json(attempt_file(spec.key, "1", "job.json"), spec)
    return spec


@pytest.fixture
def machine(store: Store, spec: JobSpec, tmp_path: Path) -> Iterator[Machine]:
    with machines() as made:

        def make(**options: object) -> Vm:
            options = {"archive": ship_source(store), "silence": 0.0, **options}
            made.append(Vm(tmp_path, store, spec, **options))  # type: ignore[arg-type]
            return made[-1]

        yield make


def test_a_real_environment_from_the_package_index(machine: Machine, store: Store, spec: JobSpec, tmp_path: Path) -> None:
    """Installed with uv, all but libtpu, which is large and useless here; then from the archive that the first machine has left."""
    overrides = tmp_path / "overrides.txt"
    overrides.write_text("libtpu ; sys_platform == 'never'\n")
    settings = {name: value for name, value in os.environ.items() if name.startswith(("UV_", "SSL_", "HTTPS_", "https_"))}
    vm = machine(LYCEUM_VM_PYTHON="", UV_OVERRIDE=str(overrides), silence=3000.0, **settings).boot()
    assert vm.final(900).state == "succeeded", vm.serial
    until(lambda: "was left in the store" in vm.serial, seconds=600)
    vm.kill()
    shutil.rmtree(vm.root)
    store.remove(f"work/{spec.key}/1/status.json")
    store.discard(spec.kind, spec.key)
    vm.environment["UV_OFFLINE"] = "1"
    vm.boot()
    status = vm.final(300)
    assert status.state == "succeeded", status.error
    assert "another machine has left in the store" in vm.log(final=True)
    manifest = store.valid(spec.kind, spec.key)
    assert manifest is not None
    assert manifest.execution["packages"]["jax"]
    assert isinstance(store.read_json(f"work/{spec.key}/1/status.json", JobStatus), JobStatus)
