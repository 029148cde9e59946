"""One TPU VM for tests of what runs on it: the startup script as a process, a stand-in metadata
server, and a job of the tests' own kind.

The job's stage executes the code in its config; the archive that the VM is sent is the real one
with this stage added. `tests/fakes/tpu_fake.py` is the whole cloud.
"""

import contextlib
import gzip
import hashlib
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infra import source
from infra.process import ROOT
from infra.store.remote import host_status, read_log
from infra.store.store import Store, attempt_file
from schemas.artifact import stage_key
from schemas.job import JobSpec, JobStatus
from tests.fakes.process import until
from tests.fakes.tpu_metadata import MetadataServer, instance_values
from tests.processes import marked

SCRIPT = ROOT / "infra" / "tpu" / "bootstrap_tpu.sh"
NAME = "projects/lyceum-test/locations/us-central1-a/queuedResources/lyceum-test-1"
MARKER = "LYCEUM_TEST_VM"
STAGE = """
import os, signal, sys, time
from schemas.base import InputError, StageFailed, StrictModel
from tasks.contract.kind import Kind, Product

class Config(StrictModel):
    code: str

def run(job):
    scope = {"job": job, "metrics": {"loss": 0.5}, **globals()}
    exec(job.config.code, scope)
    return scope["metrics"]

small = lambda config, sizes: config
KIND = Kind(version=1, config=Config, inputs={}, produces=Product.ROWS, run=run, small=small)
"""

_numbers = itertools.count()


def ship_toy(store: Store) -> str:
    """As `infra.source.ship_source`, with the tests' stage kind `toy` in it."""
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(source.archive()[1]))) as real:
        contents = {member.name: real.extractfile(member).read() for member in real}  # type: ignore[union-attr]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, data in {**contents, "tasks/stages/toy.py": STAGE.encode()}.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    name = f"src/{hashlib.sha256(packed.getvalue()).hexdigest()}.tar.gz"
    store.create_bytes(name, packed.getvalue())
    return name


def toy_job(store: Store, code: str, **changes: Any) -> JobSpec:
    """A job that executes `code`; its spec is in the store."""
    config = {"code": code}
    key = stage_key("toy", 1, {}, config, {})
    given = {"stage": "play", "kind": "toy", "attempt": "1", "target": "v5e-8", "run": "r"}
    spec = JobSpec(key=key, store=store.uri, config=config, **given).model_copy(update=changes)
    store.create_json(attempt_file(spec.key, spec.attempt, "job.json"), spec)
    return spec


class Vm:
    """A host of a slice. `boot` may be called again: the disk stays.

    Args:
        root: directory for its disk.
        spec: the job.
        archive: name of the code's archive.
        resource: complete name of the queued resource.
        environment: more variables for the script.
    """

    def __init__(
        self,
        root: Path,
        store: Store,
        spec: JobSpec,
        archive: str,
        *,
        host: int = 0,
        hosts: int = 1,
        silence: float = 300.0,
        resource: str = NAME,
        **environment: str,
    ) -> None:
        self.store, self.spec, self.host = store, spec, host
        self.root = root / f"vm-{host}"
        hurry = {"LYCEUM_HEARTBEAT_SECONDS": "0.2", "LYCEUM_STOP_SECONDS": "2"}
        metadata = {
            "lyceum-store": store.uri,
            "lyceum-source": archive,
            "lyceum-port": "8476",
            "lyceum-job": attempt_file(spec.key, spec.attempt, "job.json"),
            "lyceum-resource": resource,
            "lyceum-environment": json.dumps(hurry),
            "lyceum-silence": f"{silence:g}",
        }
        values = instance_values(
            project="lyceum-test",
            name="lyceum-test-1",
            host=host,
            hosts=hosts,
            email="vm@lyceum-test.iam.gserviceaccount.com",
            metadata=metadata,
        )
        self.metadata = MetadataServer(values)
        self._mark = f"{os.getpid()}-{next(_numbers)}"
        prefixes = ("STORAGE_", "NO_", "no_", "DISABLE_GCS", "GOOGLE_")
        inherited = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(root),
            "GCE_METADATA_HOST": self.metadata.address,
            "LYCEUM_VM_ROOT": str(self.root),
            "LYCEUM_VM_PYTHON": sys.executable,
            "LYCEUM_VM_TPU_API": "http://127.0.0.1:9",  # nobody listens there
            "JAX_PLATFORMS": "cpu",
            **inherited,
            **environment,
            MARKER: self._mark,
        }
        self.process: subprocess.Popen[str] | None = None

    def boot(self) -> "Vm":
        """Run the startup script; its output is `serial`."""
        where = {"env": self.environment, "cwd": self.root.parent, "start_new_session": True}
        with (self.root.parent / f"serial-{self.host}").open("a") as out:
            said = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": subprocess.STDOUT}
            self.process = subprocess.Popen(["bash", str(SCRIPT)], **where, **said)
        return self

    def wait(self, seconds: float = 120) -> int:
        """Wait for the script's end; returns its exit code."""
        return self.process.wait(seconds)

    @property
    def serial(self) -> str:
        return (self.root.parent / f"serial-{self.host}").read_text()

    def status(self) -> JobStatus | None:
        name = host_status(self.spec.key, self.spec.attempt, self.host)
        return self.store.read_json(name, JobStatus)

    def final(self, seconds: float = 120) -> JobStatus:
        """Wait for the host's last word."""
        unfinished = (None, "queued", "running")
        until(self.status, lambda one: (one and one.state) not in unfinished, seconds)
        return self.status()

    def log(self, offset: int = 0, *, final: bool = False) -> str:
        return read_log(self.store, self.spec.key, self.spec.attempt, offset, final)[0]

    def children(self, name: str = "") -> list[str]:
        """Names below the attempt's directory in the store."""
        return self.store.children(attempt_file(self.spec.key, self.spec.attempt, name).rstrip("/"))

    def processes(self, command: str = "") -> list[int]:
        """Processes of the VM in whose command line this occurs."""
        found = marked(f"{MARKER}={self._mark}")
        return [process for process, line in found.items() if command in line]

    def signal(self, number: signal.Signals, command: str = "") -> None:
        """A signal to all its processes in whose command line this occurs."""
        for process in self.processes(command):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def kill(self) -> None:
        """As when the power fails."""
        while self.processes():
            self.signal(signal.SIGKILL)
            time.sleep(0.01)
        if self.process is not None:
            self.process.wait()

    def end(self) -> None:
        self.kill()
        self.metadata.stop()


@contextlib.contextmanager
def machines() -> Iterator[list[Vm]]:
    """A list of machines that are killed at its end."""
    made: list[Vm] = []
    try:
        yield made
    finally:
        for vm in made:
            vm.end()
