"""Starts workers fast: one process imports JAX, Tunix and the stages once, and forks for each job.

A worker takes six seconds to import what it needs and one to do the work of a test; forked before JAX has a backend, it starts at once. Run
as a program it reads one request per line from stdin, `{"job": path of job.json, "points": [...]}`, and answers with the exit code of the
worker, negative for a signal.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
PRELOADED = ("tunix.rl.trainer", "tunix.sft.dpo.dpo_trainer", "tasks.training", "tasks.sampling", "tasks.checkpoints", "tasks.models.lora")


class Workers:
    """A context manager around the preloaded process. `environment` is what workers see beside the caller's."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment

    def __enter__(self) -> "Workers":
        path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": "0", "PYTHONPATH": path, **self._environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def run(self, job: Path, points: Sequence[Sequence[Any]] = ()) -> int:
        """Run the worker of a job to its end, or to the first of the crash points (`sitecustomize.Point`); returns its exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"job": str(job), "points": list(points)}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def _serve() -> None:
    import importlib

    for module in PRELOADED:
        importlib.import_module(module)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _work(request)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _work(request: dict[str, Any]) -> None:
    """In the child: become the worker of a job. Never returns."""
    code = 1
    try:
        os.setsid()
        job = Path(request["job"])
        log = os.open(job.with_name("log.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        import sitecustomize

        from tasks.worker import main

        points = [sitecustomize.Point(*point) for point in request["points"]]
        sitecustomize.install(points, json.loads(job.read_bytes())["kind"])
        code = main([str(job)])
        sys.stdout.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    _serve()
