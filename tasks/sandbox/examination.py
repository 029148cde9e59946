"""Whether an answer's code passes its tests: two sandboxed guests joined by pipes, and what the examiner of the two says.

A pass is a verdict that the examiner wrote to a pipe which the candidate never had, within the limits. No verdict is no pass: exit
statuses and printed text count for nothing. `tasks.sandbox.guest` says why an answer cannot trick it.
"""

import json
import os
import select
import signal
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO

from tasks.sandbox.bubblewrap import Limits, guest
from tasks.sandbox.wire import ENDED

_LONGEST_VERDICT = 64 * 1024  # bytes


@dataclass(frozen=True)
class Examined:
    """Whether all tests passed, and if not, what was seen: for a person."""

    ok: bool
    detail: str


def examine(answer: str, tests: str, *, prefix: str = "", limits: Limits = Limits()) -> Examined:  # noqa: B008  frozen
    """Run `tests` against the code in `answer`.

    Args:
        answer: text with Python in it: in a fenced block, or all of it.
        tests: Python that raises when the answer's code is wrong. It sees the functions, classes and constants of the answer by their
            names. Functions called test... without parameters are run.
        prefix: what goes before an answer that is no whole program. What it defines in full is the tests' own.

    Raises:
        InputError: bubblewrap is missing or does not work here.
    """
    with ExitStack() as stack:
        from_examiner, to_candidate = _pipe(stack)
        from_candidate, to_examiner = _pipe(stack)
        hears, says = _pipe(stack)
        code, questions = {"prefix": prefix, "answer": answer}, {"prefix": prefix, "tests": tests}
        candidate = stack.enter_context(guest("candidate", code, limits, stdin=from_examiner, stdout=to_examiner))
        stack.enter_context(guest("examiner", questions, limits, stdin=from_candidate, stdout=to_candidate, verdict=says.fileno()))
        for end in (from_examiner, to_candidate, from_candidate, to_examiner, says):
            end.close()  # so that each reads the end of what the other wrote
        verdict = _read(hears.fileno(), limits.wall_s)
        if not verdict:
            return Examined(ok=False, detail=f"no verdict: a limit was met ({limits.wall_s:g} s, {limits.cpu_s} CPU seconds)")
        result = json.loads(verdict)
        detail = result["detail"]
        return Examined(ok=result["ok"] is True, detail=f"{detail} ({_end(candidate, limits)})" if ENDED in detail else detail)


def _pipe(stack: ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    """The end to read from and the end to write to; both are closed with the stack at the latest."""
    reader, writer = os.pipe()
    return stack.enter_context(os.fdopen(reader, "rb", buffering=0)), stack.enter_context(os.fdopen(writer, "wb", buffering=0))


def _end(candidate: subprocess.Popen[bytes], limits: Limits) -> str:
    """How a candidate that is no more has ended."""
    try:
        status = candidate.wait(timeout=5)
    except subprocess.TimeoutExpired:
        return "and closed its pipe before"
    if status == 128 + signal.SIGKILL:
        return f"killed: more than {limits.cpu_s} CPU seconds"
    return f"by signal {status - 128}" if status > 128 else f"with exit status {status}"


def _read(end: int, seconds: float) -> bytes:
    """What is written to a pipe until it is closed; nothing when that takes longer than `seconds`."""
    deadline, content = time.monotonic() + seconds, b""
    while len(content) < _LONGEST_VERDICT:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([end], [], [], left)[0]:
            return b""
        part = os.read(end, _LONGEST_VERDICT)
        if not part:
            break
        content += part
    return content
