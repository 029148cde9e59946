"""The startup script of a TPU VM installs a real environment from the package index."""

import os
import shutil

from schemas.job import JobStatus
from tests.end_to_end.infra.tpu import test_bootstrap
from tests.fakes.vm import until

store = test_bootstrap.store
spec = test_bootstrap.spec
machine = test_bootstrap.machine


def test_a_real_environment_from_the_package_index(machine, store, spec, tmp_path):
    """Installed with uv, all but libtpu, which is large and useless here; then from the archive
    that the first machine has left."""
    overrides = tmp_path / "overrides.txt"
    overrides.write_text("libtpu ; sys_platform == 'never'\n")
    settings = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("UV_", "SSL_", "HTTPS_", "https_"))
    }
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
    assert manifest.execution["packages"]["jax"]
    assert isinstance(store.read_json(f"work/{spec.key}/1/status.json", JobStatus), JobStatus)
