"""The agent on a machine of its own, with the real startup script and worker: what it tells the
store while the job runs, and after the power failed."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra.source import ship_data
from infra.store.remote import read_log
from infra.store.store import Store, open_store
from schemas.job import Progress
from tests.fakes.vm import Vm, machines, ship_toy, toy_job, until

SECRET = "hf_abcdefghijklmnop"


@pytest.fixture
def store(gcs_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    return open_store(f"gs://{gcs_bucket}/lyceum")


@pytest.fixture
def start(store: Store, tmp_path: Path) -> Iterator[Callable[..., Vm]]:
    """Boots a machine with a job that executes the code; options as of `Vm`, `spec` changes the
    job."""
    with machines() as made:

        def make(code: str, spec: dict[str, object] | None = None, **options: object) -> Vm:
            job = toy_job(store, code, **(spec or {}))
            made.append(Vm(tmp_path, store, job, ship_toy(store), **options))  # type: ignore[arg-type]
            return made[-1].boot()

        yield make


def test_a_job_is_followed_to_its_end_from_the_store_alone(
    start: Callable[..., Vm], store: Store, tmp_path: Path
) -> None:
    """Progress, a log of 5 MB line by line without secrets, data that came by way of the store, the
    artifact."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.jsonl").write_text("from the user")
    code = """
import pathlib
print((job.data / "rows.jsonl").read_text())
os.write(1, f"a library says {os.environ['HF_TOKEN']}\\n".encode())
job.progress(3, 4, "steps", loss=0.5)
while not pathlib.Path(os.environ["HOME"], "go").exists(): time.sleep(0.02)
for number in range(50_000): os.write(1, f"line {number:05d} {'x' * 88}\\n".encode())
os.write(1, b"no end")
"""
    vm = start(code, {"data": ship_data(store, tmp_path / "data")}, HF_TOKEN=SECRET)
    running = until(vm.status, lambda status: status is not None and status.progress.done == 3)
    assert running is not None
    assert running.state == "running"
    assert until(
        vm.status, lambda status: status is not None and status.heartbeat > running.heartbeat
    )
    until(vm.log, lambda text: "a library says ***\n" in text)
    assert vm.log().endswith("\n")

    text, offset = "", 0
    (tmp_path / "go").touch()
    while (status := vm.status()) is None or status.state == "running":
        new, offset = read_log(store, vm.spec.key, "1", offset, final=False)
        text += new
        time.sleep(0.05)
    assert (status.state, status.progress) == (
        "succeeded",
        Progress(done=3, total=4, values={"loss": 0.5}),
    )
    assert text.count("line") > 0
    new, offset = read_log(store, vm.spec.key, "1", offset, final=True)
    text += new
    assert text == vm.log(final=True)
    assert len(text) == offset > 5_000_000
    assert SECRET not in text
    lines = text.splitlines()
    assert "bootstrap: host 0 of 1" in lines[0]
    assert "from the user" in lines
    assert [line for line in lines if line.startswith("line")] == [
        f"line {number:05d} {'x' * 88}" for number in range(50_000)
    ]
    assert lines[-1] == "no end"
    assert vm.children() == ["job.json", "log.txt", "status.json"]
    assert store.valid("toy", vm.spec.key) is not None


def test_a_machine_that_boots_again_goes_on_with_the_job_and_its_log(
    start: Callable[..., Vm], store: Store
) -> None:
    """The power fails. The worker starts anew; who follows the log reads every line once."""
    code = """
if job.work.read("seen") is None:
    job.work.write("seen", b"")
    print("blocking", flush=True)
    while True: time.sleep(0.1)
print("the second time")
"""
    vm = start(code)
    until(vm.log, lambda text: "blocking" in text)
    vm.kill()
    text, offset = read_log(store, vm.spec.key, "1", 0, final=False)
    vm.boot()
    assert vm.final().state == "succeeded"
    text += read_log(store, vm.spec.key, "1", offset, final=True)[0]
    assert text == vm.log(final=True)
    assert [
        text.count(words) for words in ("starting the agent", "blocking", "the second time")
    ] == [2, 1, 1]
