"""Executions a second in the sandbox, beside starting Python, and starting it in plain bubblewrap.

    python -m benchmarks.sandbox [--rounds 3] [--executions 120]

An execution is an answer's code run and judged: HumanEval's own solutions against HumanEval's tests
(../shared/data/humaneval; without it one small function), by `tasks.sandbox.examination.examine`,
which is two guests: one with the code, one with the tests. The others run the same code and tests
in one process, a `python -S -c`, and look at its exit status: which keeps code neither from doing
harm nor from passing by a trick (python), or only from doing harm (bwrap python). All with as many
threads as there are cores. The ratio is the sandbox's rate to another's of the same round.
"""

import gzip
import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from benchmarks.paired import ROOT, heading, machine, parser, ratios, row, spread, take_turns
from tasks.sandbox import bubblewrap
from tasks.sandbox.examination import examine

HUMANEVAL = ROOT.parent / "shared/data/humaneval/HumanEval.jsonl.gz"


@dataclass(frozen=True)
class Job:
    """Code that is run before an answer, the answer, and its tests."""

    prefix: str
    answer: str
    tests: str


def jobs(count: int) -> list[Job]:
    """As many as are executed in one turn."""
    if not HUMANEVAL.exists():
        small = Job("", "def add(a, b):\n    return a + b\n", "assert add(2, 2) == 4")
        return [small] * count
    with gzip.open(HUMANEVAL, "rt", encoding="utf-8") as file:
        tasks = [json.loads(line) for line in file][:count]
    return [
        Job(
            task["prompt"],
            task["canonical_solution"],
            f"{task['test']}\ncheck({task['entry_point']})",
        )
        for task in tasks
    ]


def sandboxed(job: Job) -> bool:
    return examine(job.answer, job.tests, prefix=job.prefix).ok


def in_process(command: Sequence[str], job: Job) -> bool:
    """Whether a process that runs it all ends well."""
    program = [*command, "-c", f"{job.prefix}{job.answer}\n{job.tests}"]
    return subprocess.run(program, env={}, cwd="/", stderr=subprocess.DEVNULL).returncode == 0


def rate(run: Callable[[Job], bool], work: Sequence[Job], _: int = 0) -> float:
    """Executions a second, all of which must pass."""
    began = time.perf_counter()
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        passed = sum(threads.map(run, work))
    if passed != len(work):
        raise RuntimeError(f"only {passed} of {len(work)} passed")
    return len(work) / (time.perf_counter() - began)


def main() -> None:
    made = parser(__doc__, rounds=3)
    made.add_argument("--executions", type=int, default=120)
    options = made.parse_args()
    work, python = jobs(options.executions), [*bubblewrap._PYTHON]
    way_in = [bubblewrap.require_sandbox(), *bubblewrap._MODE, "--unshare-all"]
    ways: dict[str, Callable[[Job], bool]] = {
        "sandbox": sandboxed,
        "python": partial(in_process, python),
        "bwrap python": partial(in_process, [*way_in, *bubblewrap._mounts(), "--", *python]),
    }
    for run in ways.values():
        rate(run, work[:8])
    found = take_turns(
        {name: partial(rate, run, work) for name, run in ways.items()}, options.rounds
    )
    print(f"{machine()}; {len(work)} executions a turn, {options.rounds} rounds")
    heading("", "executions/s", "sandbox / this")
    for name, rates in found.items():
        row(name, spread(rates, ".1f"), spread(ratios(found["sandbox"], rates), ".2f"))


if __name__ == "__main__":
    main()
