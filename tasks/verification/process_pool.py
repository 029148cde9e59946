"""Answers questions in reusable processes with limits of CPU time and memory, for libraries that
some inputs make run for ever or out of memory.

A process is started by command line (never forked: the caller may run JAX and threads) and ends
with its caller. An answer must be a function of the question alone: when a used process meets a
limit, perhaps because of what it has gathered, a fresh one gets the question again.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from schemas.base import StageFailed
from tasks.sandbox.bubblewrap import readable

_MOST_QUESTIONS = 500  # of one process: libraries gather caches
# wall-clock seconds for each CPU second, and to start: a busy machine must not decide what is right
_PATIENCE = 20
_KILLED = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT}
"""Exit codes that no limit gives: its signal is SIGPROF, or Python has no memory left."""


class Unanswered(Exception):
    """The process met its limits, or failed, as the message states."""


class ProcessPool:
    """A pool of processes that run `python -m <module>`, whose main calls `serve`: one for each
    thread that asks at once. Thread-safe."""

    def __init__(self, module: str, *, cpu_s: int, memory_bytes: int) -> None:
        self.module, self.cpu_s, self.memory_bytes = module, cpu_s, memory_bytes
        self._idle: list[_Process] = []

    def ask(self, question: Any) -> Any:
        """The answer to a question; both are JSON.

        Raises:
            Unanswered: the question met the limits, or an exception.
            StageFailed: nothing is known of the answer. No process can be started, or two were
                killed by somebody else.
        """
        try:
            process = self._idle.pop()  # atomic, as append is
        except IndexError:
            process = _Process(self)
        answer = process.ask(question)
        if answer is None and (process.asked > 1 or process.killed):
            process = _Process(self)
            answer = process.ask(question)
        if answer is None and process.killed:
            killed = f"two processes for {self.module} were killed, and not by us"
            raise StageFailed(f"{killed}: is the machine out of memory? Run again.")
        if answer is None:
            raise Unanswered(
                f"met a limit: {self.cpu_s} CPU seconds, {self.memory_bytes / 2**20:.0f} MiB"
            )
        found = json.loads(answer)
        if process.asked < _MOST_QUESTIONS and "failed" not in found:
            self._idle.append(process)
        else:
            process.end()
        if "failed" in found:
            raise Unanswered(f"failed with {found['failed']}")
        return found["answer"]


class _Process:
    def __init__(self, pool: ProcessPool) -> None:
        self.asked, self.killed = 0, False
        self.patience_s = _PATIENCE * (pool.cpu_s + 1)
        with tempfile.TemporaryFile() as said:
            self.process = subprocess.Popen(
                # -P: the working directory may have a file with a library's name
                [sys.executable, "-P", "-m", pool.module, str(pool.cpu_s), str(pool.memory_bytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                env={"PYTHONPATH": str(Path(__file__).resolve().parents[2]), "PYTHONHASHSEED": "0"},
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for the asker
            )
            if self._line() is None:
                said.seek(0)
                why = said.read()[-1000:].decode(errors="replace").strip() or "it did not say why"
                raise StageFailed(f"the process for {pool.module} does not start here: {why}")

    def ask(self, question: Any) -> bytes | None:
        """A line of JSON, or None: it died, or took too long and was killed."""
        assert self.process.stdin
        self.asked += 1
        with contextlib.suppress(BrokenPipeError):  # it has died: the next read says so
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
        return self._line()

    def _line(self) -> bytes | None:
        assert self.process.stdout
        out, deadline, line = self.process.stdout.fileno(), time.monotonic() + self.patience_s, b""
        while not line.endswith(b"\n"):
            ready = readable(out, deadline - time.monotonic())
            part = os.read(out, 2**16) if ready else b""
            if not part:
                self.killed = ready and self.process.wait() in _KILLED
                self.end()
                return None
            line += part
        return line

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
    out, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # what a library prints is no answer
        os.dup2(nothing, stream)
    os.write(out, b"ready\n")
    for line in sys.stdin.buffer:
        question = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        try:
            reply = {"answer": answer(question)}
        except Exception as error:  # noqa: BLE001  of a library, for some crafted text
            reply = {"failed": f"{type(error).__name__}: {error}"[:500].removesuffix(": ")}
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.write(out, json.dumps(reply).encode() + b"\n")
