"""How long a command takes to begin, where no Prefect server runs: this checkout beside another
commit of ours.

    python -m benchmarks.starts SCRATCH [--than COMMIT] [--rounds 5]

help, doctor   `lyceum --help`, `lyceum doctor`: the whole process
again          the same `lyceum run` once more, everything cached: the whole process
first word     the last stage has to run: from the command to the first word of its worker (its
               status in the store); then the run is stopped
first step     a worker of the stage `sft`, its programs compiled before: from its start to the
               report of its first step, which comes at a tick of 0.2 s
CPU            of a whole command, with the processes that it waits for

The recipe has every kind of stage, as small as it can be; the first call makes its artifacts, in
some minutes. The other commit is unpacked below SCRATCH, and runs in this environment, on a copy of
the same store. The last column is the other's time over ours, of the same round.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.paired import ROOT, heading, machine, parser, ratios, row, spread, take_turns
from infra.context import context
from infra.distribution import DISTRIBUTION
from infra.process import worker_environment
from infra.store.store import attempt_file, open_store
from schemas.job import JobSpec, JobStatus

RECIPE = (
    ROOT / "tests/end_to_end/crash/chain.toml",
    "--set",
    "stages.grpo.config.response_length=60",
)
PATIENCE = 300.0
Found = tuple[float, float]
"""Seconds, and processor seconds, where they were measured."""

ROWS = {
    **dict.fromkeys(("help", "doctor", "again"), ("", ", CPU")),
    **dict.fromkeys(("first word", "first step"), ("",)),
}
"""What is measured, and what of it."""


class Side:
    """A commit of ours, and a store and a Prefect home for it."""

    def __init__(self, source: Path, home: Path) -> None:
        self.source, self.store = source, home / "store"
        hidden = ("PREFECT_", "LYCEUM_", "VIRTUAL_ENV")
        kept = {name: one for name, one in os.environ.items() if not name.startswith(hidden)}
        own = {"PYTHONPATH": str(source), "PREFECT_HOME": str(home / "prefect")}
        self.environment = {**kept, **own}

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", "flows.cli.main", *arguments],
            cwd=self.source,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def whole(self, *arguments: str) -> Found:
        """Seconds of a command, and processor seconds."""
        began, process = time.perf_counter(), self.start(*arguments)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"lyceum {' '.join(arguments)} ended with {process.returncode}")
        return time.perf_counter() - began, usage.ru_utime + usage.ru_stime

    def run(self, *arguments: str) -> tuple[str, ...]:
        return ("run", *map(str, RECIPE), "--store", str(self.store), *arguments)

    def first_word(self) -> Found:
        seen, began = set(self._statuses()), time.perf_counter()
        process = self.start(*self.run("--set", "stages.safety_eval.config.min_items=7"))
        while set(self._statuses()) <= seen:
            if process.poll() is not None or time.perf_counter() - began > PATIENCE:
                raise SystemExit("the worker of the last stage said nothing")
            time.sleep(0.005)
        took = time.perf_counter() - began
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)
        return took, 0.0

    def _statuses(self) -> Iterator[Path]:
        return self.store.glob("work/*/*/status.json")

    def first_step(self) -> Found:
        """Of another attempt of the stage, whose artifact is set aside meanwhile."""
        store = open_store(self.store)
        [made] = store.artifacts("sft")
        artifact, aside = self.store / "artifacts/sft" / made.key, self.store / "aside"
        known = store.read_json(attempt_file(made.key, made.attempt, "job.json"), JobSpec)
        assert known is not None
        spec = known.model_copy(update={"attempt": f"9-{time.time_ns()}", "store": store.uri})
        name, status = (
            attempt_file(spec.key, spec.attempt, file) for file in ("job.json", "status.json")
        )
        artifact.rename(aside)
        try:
            store.write_json(name, spec)
            began = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, "-m", "tasks.worker", str(store.path(name))],
                cwd=self.source,
                env={
                    **worker_environment(context().settings.compile_cache),
                    "PYTHONPATH": str(self.source),
                    "LYCEUM_PARENT_PID": str(os.getpid()),
                },
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            while (found := store.read_here(status, JobStatus)) is None or not found.progress.done:
                if process.poll() or time.perf_counter() - began > PATIENCE:
                    raise SystemExit(f"the worker made no step: {found}")
                time.sleep(0.005)
            took = time.perf_counter() - began
            process.wait(PATIENCE)
        finally:
            shutil.rmtree(artifact, ignore_errors=True)
            aside.rename(artifact)
        return took, 0.0


def main() -> None:
    made = parser(__doc__, rounds=5, scratch=True)
    made.add_argument("--than", default="")
    options = made.parse_args()
    scratch: Path = options.scratch
    sides = {"ours": Side(ROOT, scratch / "ours")}
    if not sides["ours"].store.exists():
        sides["ours"].whole(*sides["ours"].run())
    if options.than:
        other = Side(unpacked(scratch, options.than), scratch / "other")
        if not other.store.exists():
            shutil.copytree(scratch / "ours", scratch / "other")
        sides["other"] = other
    turns: dict[str, Callable[[int], Found]] = {}
    for name, side in sides.items():
        turns[f"help, {name}"] = partial(_timed, side, "--help")
        turns[f"doctor, {name}"] = partial(_timed, side, "doctor", "--store", str(side.store))
        turns[f"again, {name}"] = partial(_timed, side, *side.run())
        turns[f"first word, {name}"] = lambda _, side=side: side.first_word()
        turns[f"first step, {name}"] = lambda _, side=side: side.first_step()
    found = take_turns(turns, options.rounds)
    print(
        f"{machine(DISTRIBUTION, 'prefect', 'jax')}; {options.rounds} rounds; than {options.than}"
    )
    heading("", *(f"{name}, s" for name in sides), "other / ours")
    for what, measures in ROWS.items():
        for which, measure in enumerate(measures):
            each = [[one[which] for one in found[f"{what}, {name}"]] for name in sides]
            of_both = spread(ratios(each[1], each[0]), ".2f") if options.than else ""
            row(f"{what}{measure}", *(spread(one, ".2f") for one in each), of_both)


def _timed(side: Side, *arguments: object) -> Found:
    """`whole`; the last argument is the number of the round."""
    return side.whole(*map(str, arguments[:-1]))


def unpacked(scratch: Path, commit: str) -> Path:
    """The files of a commit."""
    source = scratch / f"source-{commit}"
    if not source.exists():
        archive = subprocess.run(
            ["git", "archive", commit], cwd=ROOT, check=True, capture_output=True
        )
        source.mkdir(parents=True)
        subprocess.run(["tar", "-x"], cwd=source, input=archive.stdout, check=True)
    return source


if __name__ == "__main__":
    main()
