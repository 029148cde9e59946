"""Answers questions in reusable processes with limits of CPU time and memory, for libraries that
some inputs make run for ever or out of memory.

A process is started by command line (never forked: the caller may run JAX and threads) and ends
with its caller. An answer must be a function of the question alone: when a used process meets a
limit, perhaps because of what it has gathered, a fresh one gets the question again.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_MOST_QUESTIONS = 500  # of one process: libraries gather caches
# wall-clock seconds for each CPU second, and to start: a busy machine must not decide what is right
_PATIENCE = 20


class LimitMet(Exception):
    """The process met its limits, which the message states."""


class ProcessPool:
    """A pool of processes that run `python -m <module>`, whose main calls `serve`: one for each
    thread that asks at once. Thread-safe."""

    def __init__(self, module: str, *, cpu_s: int, memory_bytes: int) -> None:
        self.module, self.cpu_s, self.memory_bytes = module, cpu_s, memory_bytes
        self._idle: list[_Process] = []

    def ask(self, question: Any) -> Any:
        """The answer to a question; both are JSON. Raises LimitMet."""
        try:
            process = self._idle.pop()  # atomic, as append is
        except IndexError:
            process = _Process(self)
        answer = process.ask(question)
        if answer is None and process.asked > 1:
            process = _Process(self)
            answer = process.ask(question)
        if answer is None:
            raise LimitMet(
                f"met a limit: {self.cpu_s} CPU seconds, {self.memory_bytes / 2**20:.0f} MiB"
            )
        if process.asked < _MOST_QUESTIONS:
            self._idle.append(process)
        else:
            process.end()
        return json.loads(answer)


class _Process:
    def __init__(self, pool: ProcessPool) -> None:
        self.asked = 0
        self.cpu_s = pool.cpu_s
        self.process = subprocess.Popen(
            [sys.executable, "-m", pool.module, str(pool.cpu_s), str(pool.memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PYTHONPATH": str(Path(__file__).resolve().parents[2]), "PYTHONHASHSEED": "0"},
            bufsize=0,
        )

    def ask(self, question: Any) -> bytes | None:
        """A line of JSON, or None: it died, or took too long and was killed."""
        assert self.process.stdin
        assert self.process.stdout
        self.asked += 1
        deadline, answer = time.monotonic() + _PATIENCE * (self.cpu_s + 1), b""
        with contextlib.suppress(BrokenPipeError):  # it has died: the next read says so
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
        while not answer.endswith(b"\n"):
            left = max(0, deadline - time.monotonic())
            ready, _, _ = select.select([self.process.stdout], [], [], left)
            part = os.read(self.process.stdout.fileno(), 2**16) if ready else b""
            if not part:
                self.end()
                return None
            answer += part
        return answer

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def serve(answer: Callable[[Any], Any]) -> None:
    """The main of such a process: answer questions until its input ends.

    The limit of CPU time is one of the kernel, whose signal ends the process: a handler in Python
    would wait for 9**9**9 to end.
    """
    import resource

    cpu_s, memory_bytes = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    out = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer
    for line in sys.stdin.buffer:
        question = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        reply = answer(question)
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.write(out, json.dumps(reply).encode() + b"\n")
