"""The startup script of a TPU VM, run as it is: from metadata to a running agent, and what is told
when that does not work out."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows.recipe.resolve import resolve
from infra.backend import FINAL
from infra.source import ship_source
from infra.store.store import Store, attempt_file, open_store
from schemas.job import JobSpec
from tests.fakes.gcs_emulator import Emulator
from tests.fakes.http import Handler, HttpServer
from tests.fakes.vm import NAME, SCRIPT, Vm, machines, until
from tests.tasks.jobs import spec_of

Machine = Callable[..., Vm]
Tools = Callable[..., str]


@pytest.fixture
def store(gcs_bucket: str) -> Store:
    return open_store(f"gs://{gcs_bucket}/a/b+c")


@pytest.fixture
def spec(store: Store, tiny_recipe: Path) -> JobSpec:
    """The real stage `distill` of the tiny recipe, submitted for a TPU."""
    stage = resolve(str(tiny_recipe), [], None).stages[0]
    spec = spec_of(stage, store, target="v5e-8", run="r")
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


Deletions = tuple[str, list[tuple[str, str | None]]]


@pytest.fixture
def deletions() -> Iterator[Deletions]:
    """The address of a stand-in for the REST API of Cloud TPU, and the deletions that it was asked
    for: path, authorization."""
    asked: list[tuple[str, str | None]] = []

    class Deleting(Handler):
        def do_DELETE(self) -> None:
            asked.append((self.path, self.headers.get("Authorization")))
            self.answer(200, {})

    with HttpServer(Deleting) as server:
        yield server.url, asked


@pytest.fixture
def tools(tmp_path: Path) -> Callable[..., str]:
    """Stand-ins for programs by name, each a line of bash; returns a PATH on which they come first.
    `sleep` takes no time."""

    def make(**programs: str) -> str:
        place = tmp_path / "tools"
        place.mkdir()
        for name, line in {"sleep": f"echo $1 >>{tmp_path}/slept", **programs}.items():
            (place / name).write_text(f"#!/bin/bash\n{line}\n")
            (place / name).chmod(0o755)
        return f"{place}:{os.environ['PATH']}"

    return make


def test_the_script_is_sound(tmp_path: Path) -> None:
    """It is text for metadata (256 KiB at most), bash takes it, and it knows every state in which a
    job has ended: one that it does not know is begun again by a second boot. shellcheck looks at it
    where there is one."""
    assert SCRIPT.stat().st_size < 100_000
    assert f"({'|'.join(FINAL)})" in SCRIPT.read_text(encoding="utf-8")
    checks = [
        ["bash", "-n"],
        *([["shellcheck", "-Swarning"]] if shutil.which("shellcheck") else []),
    ]
    for command in checks:
        done = subprocess.run([*command, str(SCRIPT)], capture_output=True, text=True, check=False)
        assert done.stdout + done.stderr == ""


def test_a_machine_runs_a_real_stage_with_the_code_it_was_sent_and_a_second_boot_only_deletes_it(
    machine: Machine, spec: JobSpec, store: Store, deletions: Deletions
) -> None:
    vm = machine(silence=300.0, LYCEUM_VM_TPU_API=deletions[0]).boot()
    status = vm.final()
    assert (status.state, status.exit_code, status.error) == ("succeeded", 0, None)
    manifest = store.valid(spec.kind, spec.key)
    assert status.artifact == manifest.ref()
    assert manifest.execution["git"] is None  # it was no checkout that ran
    assert manifest.execution["target"] == "v5e-8"
    log = vm.log(final=True)
    begins = f"bootstrap: host 0 of 1, job {store.uri}/work/{spec.key}/1/job.json"
    assert log.splitlines()[0].endswith(begins)
    assert "starting the agent" in log
    assert vm.children() == ["job.json", "log.txt", "status.json"]
    [directory] = (vm.root / "src").iterdir()
    assert f"src/{directory.name}.tar.gz" == ship_source(store)

    vm.kill()
    raw = store.read_bytes(f"work/{spec.key}/1/status.json")
    assert vm.boot().wait() == 0
    assert "the job has ended" in vm.serial
    assert deletions[1] == [(f"/v2alpha1/{NAME}?force=true", "Bearer ya29.fake-lyceum-test-1-0")]
    assert store.read_bytes(f"work/{spec.key}/1/status.json") == raw
    assert vm.processes() == []


def failure(vm: Vm, asked: list[tuple[str, str | None]]) -> str:
    """Wait for a script that fails; returns the error that it left in the store. The machine has
    deleted itself."""
    assert vm.boot().wait() != 0
    status = vm.status()
    assert (status.state, status.exit_code, status.lost) == ("failed", 1, False)
    assert asked == [(f"/v2alpha1/{NAME}?force=true", f"Bearer ya29.fake-lyceum-test-1-{vm.host}")]
    return status.error


def test_a_damaged_archive_is_refused(machine, store, gcs, deletions, tools):
    gcs_bucket = store.uri.split("/")[2]
    archive = ship_source(store)
    gcs.corrupt(gcs_bucket, f"a/b+c/{archive}", recompute=True)
    vm = machine(LYCEUM_VM_TPU_API=deletions[0], PATH=tools())
    error = failure(vm, deletions[1])
    assert f"{store.uri}/{archive} is missing or damaged. Remove it" in error
    assert "has the sha256" in error
    assert not (vm.root / "src").exists()
    assert vm.log(final=True).count("fetch failed") == 4


def test_a_missing_archive_is_told_at_once_and_another_host_speaks_for_itself(
    machine: Machine, store: Store, deletions: Deletions
) -> None:
    vm = machine(archive=f"src/{'0' * 64}.tar.gz", host=1, hosts=2, LYCEUM_VM_TPU_API=deletions[0])
    error = failure(vm, deletions[1])
    assert error.startswith(f"host 1: {store.uri}/src/{'0' * 64}.tar.gz is missing")
    assert vm.children() == ["hosts", "job.json"]
    assert vm.children("hosts") == ["1.json", "1.log.txt"]
    assert "once more in" not in vm.serial


def test_metadata_that_are_missing_are_named(machine: Machine, deletions: Deletions) -> None:
    vm = machine(LYCEUM_VM_TPU_API=deletions[0])
    del vm.metadata["instance/attributes/lyceum-source"]
    assert "reading the metadata attribute lyceum-source failed" in failure(vm, deletions[1])


def test_a_machine_that_does_not_know_its_store_says_so_on_its_console(machine: Machine) -> None:
    vm = machine()
    del vm.metadata["instance/attributes/lyceum-store"]
    assert vm.boot().wait() != 0
    said = "reading the metadata attribute lyceum-store failed, so nobody can be told of it"
    assert said in vm.serial
    assert vm.status() is None


INSTALLER = """
echo "uv $*" >>{record}
case "$1 $2" in
"venv --quiet") mkdir -p "${{@: -1}}/bin"; ln -s {python} "${{@: -1}}/bin/python" ;;
"pip install") {install} ;;
esac
"""

PYTHON = """#!/bin/bash
if [[ "$*" == "-m infra.tpu.host" ]]; then exec env; fi
exec {python} "$@"
"""


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    """An interpreter in whose place of the agent one is told the environment, which succeeds."""
    path = tmp_path / "python"
    path.write_text(PYTHON.format(python=sys.executable))
    path.chmod(0o755)
    return path


@pytest.fixture
def installer(tools: Callable[..., str], tmp_path: Path, stub: Path) -> Callable[..., str]:
    """A PATH with a stand-in for uv, whose environments have `stub` for an interpreter; what it was
    asked is in the file `uv`."""

    def make(install: str = ":", **programs: str) -> str:
        uv = INSTALLER.format(record=tmp_path / "uv", python=stub, install=install)
        return tools(uv=uv, **programs)

    return make


def test_a_store_that_does_not_answer_for_a_moment_is_asked_again(
    machine: Machine, gcs: Emulator, tools: Callable[..., str], stub: Path, tmp_path: Path
) -> None:
    for skip, action in enumerate(("status", "reset_before", "truncate")):
        gcs.faults.add(action, kind="download", name="src/", skip=skip, times=1)
    assert machine(PATH=tools(), LYCEUM_VM_PYTHON=str(stub)).boot().wait() == 0
    assert (tmp_path / "slept").read_text().split() == ["1", "3", "9"]


def test_a_metadata_server_that_is_away_for_long_is_waited_for(machine, tools, stub, tmp_path):
    """Who knows nothing of its machine cannot delete it, and it was paid for on and on."""
    count = tmp_path / "asked"
    curl = f'echo >>{count}; (($(wc -l <{count}) > 7)) || exit 7; exec {shutil.which("curl")} "$@"'
    assert machine(PATH=tools(curl=curl), LYCEUM_VM_PYTHON=str(stub)).boot().wait() == 0
    assert (tmp_path / "slept").read_text().split() == ["1", "3", "9", "20", "60", "1", "3"]


def test_an_environment_is_installed_once_for_this_machine_and_those_after_it(
    machine: Machine, store: Store, installer: Tools, tmp_path: Path, gcs: Emulator
) -> None:
    """The second boot finds it on the disk, the next machine in the store; one that is damaged
    there is installed and replaced. While it is packed Python writes bytecode into it, of which tar
    says that a directory changed, with exit code 1."""
    tar = f'{shutil.which("tar")} "$@" || exit; if [[ $1 == -cf ]]; then exit 1; fi'
    vm = machine(LYCEUM_VM_PYTHON="", PATH=installer(tar=tar))

    def installs() -> int:
        assert vm.boot().wait() == 0
        return (tmp_path / "uv").read_text().count("uv pip install")

    def kept() -> str:
        """The archive's name in the bucket, once there is one."""
        [pointer] = [name for name in store.children("env") if name.endswith(".sha256")] or [""]
        sha = store.read_bytes(f"env/{pointer}") if pointer else None
        return f"a/b+c/env/{pointer.removesuffix('.sha256')}/{sha.decode()}.tar.gz" if sha else ""

    assert installs() == 1
    asked = (tmp_path / "uv").read_text()
    assert f"--python {sys.version_info.major}.{sys.version_info.minor} " in asked
    [code] = (vm.root / "src").iterdir()
    files = {"-r": "requirements.txt", "-c": "constraints.txt", "--overrides": "overrides.txt"}
    options = [f"{option} {code}/environment/{name}" for option, name in files.items()]
    assert " ".join(options) in asked
    first = until(kept)
    assert installs() == 1
    # neither installed nor fetched
    assert "environment" not in (vm.root / "boot.log").read_text().partition("LYCEUM_")[0]
    shutil.rmtree(vm.root)
    assert installs() == 1
    assert "another machine has left in the store" in (vm.root / "boot.log").read_text()
    gcs.corrupt(store.uri.split("/")[2], first, recompute=True)
    shutil.rmtree(vm.root)
    assert installs() == 2
    until(kept, lambda name: name not in ("", first))


def test_an_environment_that_cannot_be_installed_is_told_with_the_last_words(
    machine: Machine, installer: Callable[..., str], deletions: Deletions, tmp_path: Path
) -> None:
    words = r"""printf 'No solution: "jax" \\ https://u:secret@mirror × \t1\n' >&2; exit 2"""
    where = {"LYCEUM_VM_PYTHON": "", "PATH": installer(words), "LYCEUM_VM_TPU_API": deletions[0]}
    vm = machine(**where, silence=7.0)
    error = failure(vm, deletions[1])
    what = "host 0: preparing the Python environment failed with exit code 2\nthe end of its log:\n"
    assert error.startswith(what)
    assert 'No solution: "jax" \\ https://***@mirror  \t1\n' in error
    assert "secret" not in vm.log(final=True)
    assert (tmp_path / "uv").read_text().count("uv pip install") == 5
    assert (tmp_path / "slept").read_text().split() == ["1", "3", "9", "20", "7"]


def test_a_full_disk_is_called_by_its_name(machine, tools, deletions):
    path = tools(tar="echo 'tar: x: Cannot write: No space left on device' >&2; exit 2")
    vm = machine(PATH=path, LYCEUM_VM_TPU_API=deletions[0])
    what = f"host 0: getting the code failed with exit code 2\nthe disk of {vm.root} is full: "
    assert what in failure(vm, deletions[1])


def dying(tmp_path: Path) -> str:
    """An interpreter that is killed."""
    python = tmp_path / "python"
    python.write_text("#!/bin/bash\necho 'last words' >&2; kill -KILL $$\n")
    python.chmod(0o755)
    return str(python)


def test_an_agent_that_dies_is_spoken_for(machine, deletions, tmp_path):
    python = dying(tmp_path)
    vm = machine(LYCEUM_VM_PYTHON=python, LYCEUM_VM_TPU_API=deletions[0]).boot()
    assert vm.wait() == 137
    status = vm.status()
    assert (status.state, status.lost) == ("failed", True)
    assert "running the agent failed with exit code 137" in status.error
    assert "last words" in status.error
    assert len(deletions[1]) == 1


def test_a_machine_whose_deletion_is_refused_for_long_asks_until_it_is_accepted(
    machine: Machine, tools: Callable[..., str], tmp_path: Path
) -> None:
    """Its agent was killed before the script waited for it, and nobody else is left to ask."""
    asked: list[str] = []
    slow = tmp_path / "slow.sh"
    slow.write_text("set -T; trap '[[ $BASH_COMMAND != kill* ]] || /bin/sleep 1' DEBUG\n")

    class Refusing(Handler):
        def do_DELETE(self) -> None:
            asked.append(self.path)
            self.answer(200 if len(asked) == 12 else 503, {})

    with HttpServer(Refusing) as api:
        where = {"LYCEUM_VM_PYTHON": dying(tmp_path), "LYCEUM_VM_TPU_API": api.url}
        vm = machine(**where, PATH=tools(), BASH_ENV=str(slow))
        assert vm.boot().wait() == 137
    assert len(asked) == 12


def test_a_machine_that_is_shut_down_while_it_boots_is_lost(
    machine: Machine, installer: Callable[..., str], tmp_path: Path, deletions: Deletions
) -> None:
    path = installer("touch $HOME/installing; exec /bin/sleep 30")
    where = {"LYCEUM_VM_PYTHON": "", "PATH": path, "LYCEUM_VM_TPU_API": deletions[0]}
    vm = machine(**where, silence=300.0).boot()
    until((tmp_path / "installing").exists)
    vm.signal(signal.SIGTERM)
    assert vm.wait() == 143
    status = vm.status()
    assert (status.state, status.lost) == ("failed", True)
    assert len(deletions[1]) == 1


def test_hosts_know_each_other_and_get_the_settings_of_the_job(machine, stub):
    vm = machine(LYCEUM_VM_PYTHON=str(stub), host=3, hosts=4)
    assert vm.boot().wait() == 0
    lines = (vm.root / "boot.log").read_text().splitlines()
    seen = dict(line.split("=", 1) for line in lines if "=" in line)
    hosts = {"HOST": "3", "HOSTS": "4", "COORDINATOR": "127.0.0.1:8476"}
    assert {name: seen[f"LYCEUM_{name}"] for name in hosts} == hosts
    assert json.loads(seen["LYCEUM_ENVIRONMENT"])["LYCEUM_STOP_SECONDS"] == "2"
    assert seen["LYCEUM_CACHE"].startswith(str(vm.root))
    assert seen["JAX_PLATFORMS"] == "cpu"
