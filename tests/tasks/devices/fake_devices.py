"""Programs in a process of their own, which has several CPU devices: what JAX must know before it
is imported."""

import json
import os
import subprocess
import sys
from typing import Any

from infra.process import ROOT
from tests.conftest import QUICK_COMPILE


def printed(
    program: str, *arguments: str, devices: int = 1, flags: str = QUICK_COMPILE, **changes: str
) -> Any:
    """What `program` prints in its last line, as JSON; `changes` of its environment."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} {flags}",
        "PYTHONPATH": str(ROOT),
        **changes,
    }
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
