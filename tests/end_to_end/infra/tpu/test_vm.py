"""Whole TPU jobs: the backend, the fake of Cloud TPU, and on its VMs the real startup script, agent
and worker."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import infra.tpu.backend
from infra.backend import JobHandle
from infra.store.lease import attempts
from schemas.artifact import stage_key
from schemas.job import JobSpec
from tests.fakes.process import python
from tests.fakes.tpu_fake import FakeTpu
from tests.fakes.vm import ship_toy
from tests.infra.tpu.workshop import Workshop, final, until

GO = """
print("before", flush=True)
job.progress(1, 2, "steps")
while not os.path.exists({go!r}): time.sleep(0.02)
print("after", flush=True)
"""
FLOW = """
import sys, time
import infra.tpu.backend
from infra.targets import open_backend
from schemas.job import JobSpec
from tests.fakes.vm import ship_toy
infra.tpu.backend.ship_source = ship_toy
backend = open_backend("v5e-8")
handle = backend.submit(JobSpec.model_validate_json(sys.argv[1]))
while backend.poll(handle).progress.done == 0: time.sleep(0.05)
print("running", flush=True)
time.sleep(600)
"""


class Cloud(Workshop):
    """A store, backends, and jobs that execute code on their VMs."""

    def __init__(self, uri: str, tpu: FakeTpu, go: Path) -> None:
        super().__init__(uri, tpu)
        self.go = go

    def job(self, code: str = "", attempt: str = "1") -> JobSpec:
        config = {"code": code or GO.format(go=str(self.go))}
        made = self.spec(attempt, stage_key("toy", 1, {}, config, {}))
        return made.model_copy(update={"kind": "toy", "config": config})

    def flow(self, spec: JobSpec) -> subprocess.Popen[str]:
        """Another process that submits the job, says `running` when it runs, and then does
        nothing."""
        return python("-c", FLOW, spec.model_dump_json())


@pytest.fixture
def cloud(
    tpu_cloud: str, tpu: FakeTpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cloud]:
    monkeypatch.setattr(infra.tpu.backend, "ship_source", ship_toy)
    monkeypatch.setenv("LYCEUM_TPU_POLL_SECONDS", "0.2")
    made = Cloud(tpu_cloud, tpu, tmp_path / "go")
    yield made
    made.clear()


def test_a_job_runs_on_a_vm_and_its_log_comes_live(cloud: Cloud) -> None:
    backend = cloud.backend()
    handle = backend.submit(cloud.job())
    until(lambda: "before\n" in backend.log(handle, 0)[0])
    until(lambda: backend.poll(handle).progress.done == 1)
    offset = backend.log(handle, 0)[1]
    assert "after" not in backend.log(handle, 0)[0]
    cloud.go.touch()
    status = final(backend, handle)
    assert (status.state, status.exit_code) == ("succeeded", 0)
    assert status.artifact is not None
    manifest = cloud.store.valid("toy", handle.key)
    assert manifest.metrics == {"loss": 0.5}
    assert status.usage.seconds >= manifest.execution["seconds"], (
        "what the worker measured comes with its status"
    )
    text = backend.log(handle, offset)[0]
    assert "after\n" in text
    assert "before\n" not in text
    backend.cancel(handle)
    assert backend.close() == []
    assert cloud.tpu.leaked() == []


@pytest.mark.parametrize(("action", "parameters"), [("preempt", {"notice": 2.0}), ("die", {})])
def test_a_machine_that_is_lost_is_replaced_and_the_job_ends_well(cloud, action, parameters):
    backend = cloud.backend(tpu_silence_seconds=3.0)
    handle = backend.submit(cloud.job())
    until(lambda: backend.poll(handle).progress.done == 1)
    cloud.tpu.strike(action, handle.key[:24], **parameters)
    status = final(backend, handle)
    assert (status.state, status.lost) == ("failed", True)
    backend.cancel(handle)
    cloud.go.touch()
    status = final(backend, backend.submit(cloud.job(attempt="1-1")))
    assert status.state == "succeeded"


def test_a_machine_that_starts_again_goes_on(cloud: Cloud) -> None:
    """The startup script runs anew on the same disk, before anybody takes the machine for dead.
    Who follows the log reads every line once."""
    backend = cloud.backend()
    handle = backend.submit(cloud.job())
    until(lambda: "before\n" in backend.log(handle, 0)[0])
    cloud.tpu.strike("reboot", handle.key[:24])
    cloud.go.touch()
    assert final(backend, handle).state == "succeeded"
    text = backend.log(handle, 0)[0]
    words = ("starting the agent", "before\n", "after\n")
    assert [text.count(one) for one in words] == [2, 2, 1]


@pytest.mark.parametrize("moment", ["PROVISIONING", "running"])
def test_a_flow_that_is_killed_leaves_a_job_that_the_next_one_takes_over(cloud, moment):
    spec = cloud.job()
    flow = cloud.flow(spec)
    try:
        if moment == "running":
            assert flow.stdout.readline() == "running\n"
        else:
            cloud.tpu.faults.add("stuck", state=moment)
            cloud.tpu.wait(spec.key[:24], moment)
    finally:
        flow.send_signal(signal.SIGKILL)
        flow.wait()
    backend = cloud.backend()
    handle = backend.attach(cloud.store, spec.key, spec.run, attempts(cloud.store, spec.key))
    assert handle == JobHandle(cloud.store.uri, spec.key, "1")
    cloud.tpu.faults.clear()
    cloud.go.touch()
    assert final(backend, handle).state == "succeeded"
    assert "before\n" in backend.log(handle, 0)[0]
    assert [one.starts for one in cloud.tpu.resources()] == [1]


def test_a_machine_that_nobody_follows_deletes_itself(cloud, monkeypatch):
    """The flow is killed and never comes back: nothing is left all the same, and what was made is
    found by the next."""
    monkeypatch.setenv("LYCEUM_TPU_SILENCE_SECONDS", "2")
    spec = cloud.job("job.progress(1, 2, 'steps'); time.sleep(2)")
    flow = cloud.flow(spec)
    assert flow.stdout.readline() == "running\n"
    flow.send_signal(signal.SIGKILL)
    flow.wait()
    cloud.tpu.wait(spec.key[:24], "GONE", seconds=120)
    assert cloud.store.valid("toy", spec.key) is not None
    backend = cloud.backend()
    handle = backend.attach(cloud.store, spec.key, spec.run, attempts(cloud.store, spec.key))
    assert final(backend, handle).state == "succeeded"
    backend.close()
    cloud.store.discard("toy", spec.key)  # --force: the old job must not be taken for the answer
    assert (
        cloud.backend().attach(cloud.store, spec.key, spec.run, attempts(cloud.store, spec.key))
        is None
    )
