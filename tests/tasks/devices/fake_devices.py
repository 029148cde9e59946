"""Programs in a process of their own, which has several CPU devices: what JAX must know before it
is imported."""

import json
import os
from typing import Any

from infra.process import ROOT
from tests.conftest import QUICK_COMPILE
from tests.fakes.process import run_python


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
    done = run_python("-c", program, *arguments, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
