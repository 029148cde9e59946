"""The cloud for newcomers: a command runs in it, hears of both fakes, and is told what it made and
left behind."""

import os
import signal
import subprocess
import sys

from tests.fakes.process import ROOT

FAKE_CLOUD = (sys.executable, "-m", "tests.fakes.fake_cloud")
LEAVE = """
from infra.context import context
from infra.tpu.api import TpuApi
from infra.tpu.types import TPU_TYPES
context().store("gs://demo/lyceum")
api = TpuApi(TPU_TYPES["v5e-8"], context().tpu)
api.create(api.name("us-west4-a", "left-1"), {}, {"startup-script": "sleep 60"}, 60)
"""


def in_the_cloud(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*FAKE_CLOUD, *command], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_command_that_leaves_a_tpu_is_told_so() -> None:
    done = in_the_cloud(sys.executable, "-c", LEAVE)
    assert done.returncode == 1, done.stderr
    assert "TPU 1  asked for: v5litepod-8 (spot) in us-west4-a" in done.stderr
    assert "Left behind" in done.stderr
    assert "projects/lyceum-test/locations/us-west4-a/queuedResources/left-1" in done.stderr


def test_the_exit_code_is_the_command_s() -> None:
    done = in_the_cloud("bash", "-c", "exit 3")
    assert done.returncode == 3
    assert "No TPU was asked for." in done.stderr
    assert "Nothing is left." in done.stderr


def test_without_a_command_it_prints_variables_and_serves_until_it_is_interrupted() -> None:
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(FAKE_CLOUD, cwd=ROOT, **piped)
    exported = {}
    while (line := process.stdout.readline()).startswith("export "):
        name, _, value = line.removeprefix("export ").partition("=")
        exported[name] = value.strip()
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(120) == 0
    assert exported.keys() >= {"STORAGE_EMULATOR_HOST", "LYCEUM_TPU_ENDPOINT", "LYCEUM_TPU_PROJECT"}
