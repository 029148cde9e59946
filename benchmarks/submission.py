"""What Lyceum itself adds to a stage on a TPU: from a stage's begin to the request for its machine, and from its end to the next request.

    python -m benchmarks.submission [--rounds 3]

Runs a recipe of two short stages with `--target v5e-8` against the fakes of Cloud TPU and Cloud Storage in tests/, which are told not to
wait, with a Prefect server that is running. The cloud's own times (queue, boot) and the job are not in these figures: the first stage
begins when the run does, a request arrives when the fake says so, and a job ends when its worker's last status says so.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from flows.runs.record import read_run
from flows.server.prefect_api import free_port, prefect_server
from infra.store.store import attempt_file, open_store
from schemas.job import JobStatus
from tests.fakes.gcs_emulator import Emulator
from tests.fakes.tpu_fake import FakeTpu

BUCKET = "lyceum-submission"
RECIPE = """
name = "tiny"
model = "gemma3-tiny"

[stages.distill]
kind = "distill"
[[stages.distill.config.teachers]]
name = "procedural"
rows = { summarization = 60 }
grounded = {}

[stages.rebalance]
kind = "rebalance"
inputs = { examples = "distill" }
[stages.rebalance.config.quotas]
summarization = { train = 20, validation = 1, heldout = 2 }
"""
INSTANT = {"CREATING": 0.0, "ACCEPTED": 0.0, "WAITING_FOR_RESOURCES": 0.0, "PROVISIONING": 0.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds: int = parser.parse_args().rounds
    print(f"{'round':>5} {'begin of the run to request':>28} {'end of the job to next request':>31}")
    with tempfile.TemporaryDirectory() as scratch, Emulator(BUCKET) as gcs:
        os.environ |= {**gcs.environment, "LYCEUM_CACHE": scratch, "PREFECT_HOME": f"{scratch}/prefect"}
        recipe = Path(scratch, "tiny.toml")
        recipe.write_text(RECIPE, encoding="utf-8")
        server = prefect_server(free_port(), {"PREFECT_SERVER_UI_ENABLED": "false"}, threading.Event(), print, print)
        with server as api, FakeTpu(vm_environment=gcs.environment) as tpu:
            tpu.set_seconds(**INSTANT)
            os.environ |= {**tpu.environment, **api.environment}
            for number in range(rounds):
                begin, end = one(recipe, tpu, number)
                print(f"{number + 1:5} {begin:26.1f} s {end:29.1f} s")


def one(recipe: Path, tpu: FakeTpu, number: int) -> tuple[float, float]:
    """One run of its own store; the two figures in seconds."""
    store = f"gs://{BUCKET}/{number}"
    known = len(tpu.resources())
    command = [sys.executable, "-m", "flows.cli.main", "run", str(recipe), "--target", "v5e-8", "--store", store, "--json"]
    answer = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    opened = open_store(store, write=False)
    run = read_run(opened, answer["run_id"])
    first, second = tpu.resources()[known:]
    status = opened.read_json(attempt_file(str(run.stages[0].key), "1", "status.json"), JobStatus)
    assert status is not None
    asked = [resource.history[0][0] for resource in (first, second)]
    return asked[0] - run.started, asked[1] - status.heartbeat


if __name__ == "__main__":
    main()
