"""Examines whether an answer's code passes its tests: two sandboxed guests joined by pipes, of
which one, the examiner, gives the verdict.

An answer passes when the examiner writes so, within the limits, to a pipe that the candidate never
had. Exit statuses and printed text count for nothing. `tasks.sandbox.guest` says why an answer
cannot trick it.
"""

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, Any

from schemas.examples import Prompt
from tasks.contract.check import unusable
from tasks.sandbox.bubblewrap import Guest, Limits, SandboxFailed, guest, readable, require_sandbox

_LONGEST_VERDICT = 1024 * 1024  # bytes


@dataclass(frozen=True)
class Examined:
    """The result of an examination.

    Attributes:
        ok: whether all tests passed.
        detail: if not, what happened, for a person.
        verifiable: whether the tests could examine the code. If not, it has not passed, and
            `detail` says why.
        passed, cases: with `every`, how many of how many cases passed. Tests without assertions
            have no cases.
    """

    ok: bool
    detail: str
    passed: int = 0
    cases: int = 0
    verifiable: bool = True


def examine_answer(prompt: Prompt, answer: str, *, every: bool = False) -> Examined:
    """`examine` with a prompt's tests. Raises InputError also where the prompt has none."""
    if not prompt.tests:
        raise unusable(prompt, "it has no tests")
    return examine(answer, prompt.tests, prefix=prompt.code_prefix, every=every)


def examine(
    answer: str, tests: str, *, prefix: str = "", limits: Limits = Limits(), every: bool = False
) -> Examined:
    """Run `tests` against the code in `answer`.

    Args:
        answer: text with Python in it: in a fenced block, or all of it.
        tests: Python that raises when the answer's code is wrong. It sees the functions, classes
            and constants of the answer by their names. Functions called test... without parameters
            are run.
        prefix: code that precedes an answer that is no whole program. The tests use its full
            definitions, even where the answer redefines them.
        every: go on after a case that failed, and count them (`tasks.sandbox.assembly.divide`). A
            failure outside of a case ends the function, or the module, that it happens in.

    Raises:
        InputError: bubblewrap is missing or does not work here.
        SandboxFailed: the sandbox itself failed, twice.
    """
    require_sandbox()
    run = partial(_examine, answer, tests, prefix, limits, every)
    examined, unseen = _surely(partial(run, shown=False))
    if unseen and (examined.ok or examined.passed):
        again, _ = _surely(partial(run, shown=True))
        if examined.ok and not again.ok:
            why = f"{again.detail} (once the tests see what calls made of their arguments)"
            return replace(again, detail=why)
        return replace(examined, passed=min(examined.passed, again.passed))
    return examined


def _surely(run: Callable[[], tuple[Examined, bool]]) -> tuple[Examined, bool]:
    """The result of an examination; it tries a second time when the sandbox fails."""
    with suppress(SandboxFailed):
        return run()
    try:
        return run()
    except SandboxFailed as error:
        raise SandboxFailed(
            f"the sandbox for a model's code failed twice, the second time because: {error}. No"
            " code was judged: see `lyceum doctor`, make sure of free memory, and run again."
        ) from error


def _examine(
    answer: str, tests: str, prefix: str, limits: Limits, every: bool, *, shown: bool
) -> tuple[Examined, bool]:
    """The result of one examination, and whether tests kept copies of arguments that calls
    changed."""
    with ExitStack() as stack:
        from_examiner, to_candidate = _pipe(stack)
        from_candidate, to_examiner = _pipe(stack)
        hears, says = _pipe(stack)
        code = {"prefix": prefix, "answer": answer}
        questions = {"prefix": prefix, "tests": tests, "every": every, "shown": shown}
        of_candidate = [from_examiner, to_examiner]
        of_examiner = [from_candidate, to_candidate, says]
        candidate = stack.enter_context(guest("candidate", code, limits, of_candidate))
        examiner = stack.enter_context(guest("examiner", questions, limits, of_examiner))
        for end in (*of_candidate, *of_examiner):
            end.close()  # so that each reads the end of what the other wrote
        deadline = time.monotonic() + limits.wall_s
        said = _read(hears.fileno(), deadline)
        verdict: dict[str, Any] = {"ok": False, "detail": ""}
        if said and "ok" in said[-1]:
            verdict = said[-1]
        detail = verdict["detail"]
        if not verdict["ok"]:  # each raises SandboxFailed if that is why
            candidate.status(0)
            # one that is gone: its keeper knows why
            examiner.status(0 if detail else deadline - time.monotonic())
        if verdict.get("gone"):
            detail += f" ({_end(candidate, limits)})"
    if not verdict["ok"] and not detail:
        detail = f"no verdict: a limit was met ({limits.wall_s:g} s, {limits.cpu_s} CPU seconds)"
    passed = {line["case"]: line["passed"] for line in said if "case" in line}
    cases = next((line["cases"] for line in said if "cases" in line), 0)
    verifiable = verdict.get("verifiable", True)
    found = Examined(verdict["ok"], detail, sum(passed.values()), cases, verifiable)
    return found, verdict.get("unseen", False)


def _pipe(stack: ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    """The end to read from and the end to write to. The stack closes both."""
    reader, writer = os.pipe()
    ends = os.fdopen(reader, "rb", buffering=0), os.fdopen(writer, "wb", buffering=0)
    for end in ends:
        stack.enter_context(end)
    return ends


def _end(candidate: Guest, limits: Limits) -> str:
    """How a candidate that is gone ended."""
    status = candidate.status(1)
    if status is None:
        return "and closed its pipe before"
    if status == -signal.SIGKILL:
        return f"killed: more than {limits.cpu_s} CPU seconds"
    return f"by signal {-status}" if status < 0 else f"with exit status {status}"


def _read(end: int, deadline: float) -> list[dict[str, Any]]:
    """The lines that are written to a pipe until it is closed, or until a moment of
    `time.monotonic`."""
    content = b""
    while len(content) < _LONGEST_VERDICT and readable(end, deadline - time.monotonic()):
        part = os.read(end, _LONGEST_VERDICT)
        if not part:
            break
        content += part
    return [json.loads(line) for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
