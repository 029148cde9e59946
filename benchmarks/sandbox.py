"""Executions a second in the sandbox, beside starting Python, and starting it in plain bubblewrap, for each of them.

    python -m benchmarks.sandbox

An execution is an answer's code run and judged: HumanEval's own solutions against HumanEval's tests (../shared/data/humaneval; without it
one small function), by `tasks.sandbox.examination.examine`, which is two guests: one with the code, one with the tests. The others run the
same code and tests in one process, a `python -S -c`, and look at its exit status: which keeps code neither from doing harm nor from passing
by a trick (python), or only from doing harm (bwrap python). All with as many threads as there are cores, in turns, so that ratios hold on a
machine that others use; the fastest of three turns each.

sandbox         124.5 executions/s    1.00 x as fast is the sandbox
python          177.5 executions/s    0.70 x as fast is the sandbox
bwrap python    127.1 executions/s    0.98 x as fast is the sandbox

Two quiet cores, Python 3.11, bubblewrap 0.8.0, Linux 6.18, 2026-11-22. With a load of 2 and one small function: 156 a second, and 33 with
a container and a Python for every guest, which is what a warden that forks them replaces.

With the protocol in which the tests' process only asks, and the answer's only returns plain data, an execution takes 1.15 times as long as
with the symmetric one before it (commit 2f660a8; median of 24 turns of 20 of HumanEval's solutions each, in alternation, two cores with a
load of 3; the middle half of the turns 1.10 to 1.22; 92 and 106 executions a second), and 1.14 times for tests of hundreds of calls.
"""

import gzip
import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tasks.sandbox import bubblewrap
from tasks.sandbox.examination import examine

HUMANEVAL = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "humaneval" / "HumanEval.jsonl.gz"
EXECUTIONS, TURNS = 120, 3


class Job(NamedTuple):
    prefix: str
    answer: str
    tests: str


def jobs() -> list[Job]:
    """As many as are executed in one turn."""
    if not HUMANEVAL.exists():
        return [Job("", "def add(a, b):\n    return a + b\n", "assert add(2, 2) == 4")] * EXECUTIONS
    with gzip.open(HUMANEVAL, "rt", encoding="utf-8") as file:
        tasks = [json.loads(line) for line in file]
    found = [Job(task["prompt"], task["canonical_solution"], f"{task['test']}\ncheck({task['entry_point']})") for task in tasks]
    return found[:EXECUTIONS]


def sandboxed(job: Job) -> bool:
    return examine(job.answer, job.tests, prefix=job.prefix).ok


def in_process(command: Sequence[str], job: Job) -> bool:
    """Whether a process that runs it all ends well."""
    program = f"{job.prefix}{job.answer}\n{job.tests}"
    return subprocess.run([*command, "-c", program], env={}, cwd="/", stderr=subprocess.DEVNULL).returncode == 0


def rate(run: Callable[[Job], bool], work: list[Job]) -> float:
    """Executions a second, all of which must pass."""
    began = time.perf_counter()
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        passed = sum(threads.map(run, work))
    if passed != len(work):
        raise RuntimeError(f"only {passed} of {len(work)} passed")
    return len(work) / (time.perf_counter() - began)


def main() -> None:
    work = jobs()
    python = [*bubblewrap._PYTHON]
    container = [bubblewrap.require_sandbox(), *bubblewrap._MODE, "--unshare-all", *bubblewrap._mounts(), "--"]
    ways: dict[str, Callable[[Job], bool]] = {
        "sandbox": sandboxed,
        "python": lambda job: in_process(python, job),
        "bwrap python": lambda job: in_process([*container, *python], job),
    }
    for run in ways.values():
        rate(run, work[:8])
    best = dict.fromkeys(ways, 0.0)
    for _ in range(TURNS):
        for name, run in ways.items():
            best[name] = max(best[name], rate(run, work))
    for name, found in best.items():
        print(f"{name:<14} {found:6.1f} executions/s   {best['sandbox'] / found:5.2f} x as fast is the sandbox")
    print(f"{os.cpu_count()} cores, {len(work)} executions a turn")


if __name__ == "__main__":
    main()
