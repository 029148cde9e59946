"""Starts workers fast: one process imports JAX, Tunix and the stages once, and forks for each job.

A worker takes six seconds to import what it needs and one to do the work of a test; forked before
JAX has a backend, it starts at once. Run as a program it reads one request per line from stdin, a
list of workers that run side by side, and answers with the list of their exit codes, negative for a
signal. `LYCEUM_TEST_LAYERS` in a worker's environment gives it a `gemma3-tiny` of so many layers.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PRELOADED = (
    "tasks.training.loop",
    "tasks.sampling.sampler",
    "tasks.training.checkpoints",
    "tasks.models.lora",
)


@dataclass(frozen=True)
class Start:
    """A worker to start: the path of its job.json, crash points (`sitecustomize.Point`), and what
    is its own of its environment."""

    job: str
    points: Sequence[Sequence[Any]] = ()
    environment: dict[str, str] = field(default_factory=dict)


class Workers:
    """A context manager around the preloaded process. `environment` is what workers see beside the
    caller's."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment

    def __enter__(self) -> "Workers":
        path = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env={
                **os.environ,
                "JAX_PLATFORMS": "cpu",
                "PYTHONHASHSEED": "0",
                "PYTHONPATH": path,
                **self._environment,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.stdin.close()
        self._process.wait(30)

    def run(self, job: Path, points: Sequence[Sequence[Any]] = ()) -> int:
        """Run the worker of a job to its end, or to the first of the crash points; returns its exit
        code."""
        return self.run_together([Start(str(job), points)])[0]

    def run_together(self, starts: Sequence[Start]) -> list[int]:
        """Run workers side by side, the hosts of a job, until all have ended; returns their exit
        codes."""
        self._process.stdin.write(json.dumps([asdict(start) for start in starts]) + "\n")
        self._process.stdin.flush()
        codes: list[int] = json.loads(self._process.stdout.readline())
        return codes


def _serve() -> None:
    import importlib

    for module in PRELOADED:
        importlib.import_module(module)
    for line in sys.stdin:
        children = []
        for start in json.loads(line):
            children.append(os.fork())
            if children[-1] == 0:
                _work(Start(**start))
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        sys.stdout.write(f"{json.dumps(codes)}\n")
        sys.stdout.flush()


def _work(start: Start) -> None:
    """In the child: become the worker of a job. Never returns."""
    code = 1
    try:
        os.setsid()
        os.environ.update(start.environment)
        job = Path(start.job)
        log = os.open(job.with_name("log.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        import sitecustomize

        from tasks.models.decoder import SIZES
        from tasks.worker.__main__ import main

        tiny = SIZES["gemma3-tiny"]
        SIZES["gemma3-tiny"] = replace(
            tiny, num_layers=int(os.environ.get("LYCEUM_TEST_LAYERS", tiny.num_layers))
        )

        points = [sitecustomize.Point(*point) for point in start.points]
        sitecustomize.install(points, json.loads(job.read_bytes())["kind"])
        code = main([str(job)])
        sys.stdout.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    _serve()
