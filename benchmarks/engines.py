"""Asking an endpoint of 200 ms and 64 slots: Lyceum's teacher and judge engines beside what a user
would write or install instead.

    python -m benchmarks.engines SCRATCH [--rounds 3] [--only teacher|judge] [--clients NAME,...]

teacher  a stream of prompts of 150 words, answered with as many. Lyceum: the chat engine, as the
         teacher `openai_compatible` uses it.
judge    rollouts of 512 responses, one question each. Lyceum: the reward `rubric_judge` scores
         them, which includes its rules, making the question, and reading the ruling; the others are
         given the questions and only ask.

Others: the asynchronous `openai` client with a semaphore of 64; 64 threads with the blocking
client; curator and distilabel, in environments below SCRATCH
that the first call makes. The endpoint is `tests.fakes.chat_server` as a process of its own; client
and endpoint share this machine's cores. Each side is a new process in every round.

answers/s, ideal  while it asks, without its start; the ideal is 64 answers every 200 ms. Of the
                  judge, of the rollouts after the first
ratio             a side's seconds per answer to Lyceum's of the same round
wall, CPU         of the whole process; processor time for 1,000 answers, the endpoint's beside
memory            the most that its process tree has resident
right             answers that are the one right answer to their question, of those asked for
paid again        SIGKILL in the middle, then the same command until it is done: answers that were
                  made a second or more before the kill and are billed once more; then of those made
                  after that. The provider ignores Idempotency-Key
outage            503 to everything for 8 s, from the middle of a rollout on: rewards that were
                  lost, and those that changed

Kill and outage are done once.
"""

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks import paired
from benchmarks.engine_peers.clients import CLIENTS, SLOTS
from benchmarks.engine_peers.endpoint import LATENCY
from benchmarks.engine_peers.questions import reward_of, ruled, taught, write_judge, write_teacher
from benchmarks.paired import ROOT, end_of, spread

INSTALLS = {
    "curator": ("bespokelabs-curator==0.1.31",),
    "distilabel": (
        "distilabel[openai]==1.5.3",
        "openai==3.54.0",
        "datasets==5.2.0",
        "requests==2.34.2",
    ),
}
OURS = "Lyceum"
PROMPTS, REWARDS, ROLLOUTS = 1600, 512, 3
KILLED = 1200
OUTAGE = 8.0
PATIENCE, AFTER_KILL = 240.0, 60.0
"""Seconds after which a client that has not ended is reported; alone, and begun after a kill."""


@dataclass(frozen=True)
class Ran:
    """A client's process, seconds of each file, its answers, the endpoint's processor seconds."""

    process: paired.Watched
    seconds: list[float]
    answers: list[list[Any]]
    endpoint: float

    @property
    def rate(self) -> float:
        """Answers per second: of the rollouts after the first, if there are any."""
        each = [len(got) / s for got, s in zip(self.answers, self.seconds, strict=True)]
        return statistics.median(each[1:] or each)


def main() -> None:
    made = paired.parser(__doc__, rounds=3, scratch=True)
    made.add_argument("--only", choices=("teacher", "judge"))
    made.add_argument("--clients", default=",".join(CLIENTS), help="beside Lyceum")
    options = made.parse_args()
    clients = options.clients.split(",")
    if unknown := {*clients} - {*CLIENTS}:
        made.error(f"--clients: there is no {', '.join(unknown)}; there are {', '.join(CLIENTS)}")
    pythons = {
        name: paired.installed(options.scratch, name, packages)
        for name, packages in INSTALLS.items()
        if name in clients
    }
    (options.scratch / "questions").mkdir(parents=True, exist_ok=True)
    packages = ", ".join(one for name in pythons for one in INSTALLS[name])
    print(f"{paired.machine('openai', 'aiohttp')}; {packages or 'no others installed'}")
    for kind in ("teacher", "judge"):
        if options.only in (None, kind):
            Table(kind, options.scratch, [OURS, *clients], pythons).show(options.rounds)


class Table:
    """One part's measurements."""

    def __init__(
        self, kind: str, scratch: Path, sides: list[str], pythons: dict[str, Path]
    ) -> None:
        self.kind, self._scratch, self._sides, self._pythons = kind, scratch, sides, pythons
        questions = scratch / "questions"
        if kind == "teacher":
            self.files, self._killed = [questions / "teacher-0.jsonl"], questions / "killed-0.jsonl"
            write_teacher(self.files[0], PROMPTS)
            write_teacher(self._killed, KILLED)
        else:
            self.files = [questions / f"judge-{number}.jsonl" for number in range(ROLLOUTS)]
            for number, file in enumerate(self.files):
                write_judge(file, number, REWARDS)

    def show(self, rounds: int) -> None:
        """Measure, and print the table."""
        turns = {side: partial(self.run, side, self.files) for side in self._sides}
        found = paired.take_turns(turns, rounds)
        teaching = self.kind == "teacher"
        last, cell = ("paid again", self.kill) if teaching else ("lost, changed", self.outage)
        columns = ("answers/s", "of ideal", "ratio", "wall s", "CPU s", "endpoint CPU s")
        paired.heading(self.kind, *columns, "memory MB", "right", last)
        for side, each in found.items():
            paired.row(side, *self.cells(each, found[OURS]), cell(side))
        if teaching:
            again = self.kill(OURS, "honours")
            print(f"\nLyceum, of a provider that honours Idempotency-Key, paid again: {again}")

    def cells(self, ran: Sequence[Ran], ours: Sequence[Ran]) -> list[str]:
        """A side's figures."""
        rates = [one.rate for one in ran]
        given = [sum(map(len, one.answers)) for one in ran]
        right = 0
        for one in ran:
            right += sum(map(self.right, self.files, one.answers))
        thousands = [count / 1000 for count in given]
        return [
            spread(rates, ",.0f"),
            spread([rate / (SLOTS / LATENCY) for rate in rates], ".1%"),
            spread(paired.ratios((one.rate for one in ours), rates), ".2f"),
            spread([one.process.wall for one in ran], ".1f"),
            spread(paired.ratios((one.process.cpu for one in ran), thousands), ".2f"),
            spread(paired.ratios((one.endpoint for one in ran), thousands), ".2f"),
            f"{max(one.process.peak for one in ran) / 1e6:,.0f}",
            f"{right:,} of {sum(given):,}",
        ]

    def right(self, file: Path, found: Sequence[Any]) -> int:
        """How many answers, or rewards, are as they have to be."""
        lines = file.read_text(encoding="utf-8").splitlines()
        asked = [json.loads(line)["messages"][-1]["content"] for line in lines]
        return sum(map(self._is_right, asked, found))

    def _is_right(self, question: str, answer: Any) -> bool:
        if answer is None or self.kind == "teacher":
            return bool(answer == taught(question))
        value = answer if isinstance(answer, float) else reward_of(answer)
        return math.isclose(value, reward_of(ruled(question)))

    def run(self, side: str, files: Sequence[Path], _: int = 0, after: int = 0) -> Ran:
        """A side's client as a process, until it ends."""
        with self.work() as directory, endpoint(self.kind, after) as (url, server):
            command = self.command(side, url, directory, files)
            process = paired.watch(command, directory / "log", PATIENCE, cwd=ROOT)
            found = json.loads((directory / "found.json").read_text(encoding="utf-8"))
            times = psutil.Process(server).cpu_times()
        return Ran(process, found["seconds"], found["answers"], times.user + times.system)

    @contextmanager
    def work(self) -> Iterator[Path]:
        """A new directory for what a client keeps."""
        made = tempfile.TemporaryDirectory(dir=self._scratch, ignore_cleanup_errors=True)
        with made as directory:
            yield Path(directory)

    def command(self, side: str, url: str, directory: Path, files: Sequence[Path]) -> list[str]:
        """The command that runs the client of a side."""
        python = str(self._pythons.get(side, sys.executable))
        client = [str(ROOT / "benchmarks/engine_peers/clients.py"), side]
        if side == OURS:
            client = ["-m", "benchmarks.engine_peers.lyceum_side", self.kind]
        return [python, *client, url, str(directory), *map(str, files)]

    def kill(self, side: str, honours: str = "") -> str:
        """Measure what a SIGKILL costs. The clients that keep nothing differ in nothing but their
        speed, so one of them is killed."""
        if side == "64 threads":
            return "keeps nothing"
        with self.work() as directory, endpoint(self.kind, 0, honours) as (url, _):
            log = directory / "log"
            client = start(command := self.command(side, url, directory, [self._killed]), log)
            while told_by(url, "counts")["billed"] < KILLED // 3:
                if client.poll() is not None:
                    raise SystemExit(f"{side} ended before it was killed: {end_of(log)}")
                time.sleep(0.05)
            answered = told_by(url, "billed")
            time.sleep(1.0)
            kill(client)
            time.sleep(2 * LATENCY)  # answers under way are made and billed
            billed = told_by(url, "billed")
            client = start(command, log)
            try:
                if client.wait(AFTER_KILL):
                    return f"the same command then fails: {end_of(log).strip().splitlines()[-1]}"
            except subprocess.TimeoutExpired:
                kill(client)
                return f"the same command has not ended after {AFTER_KILL:g} s"
            found = json.loads((directory / "found.json").read_text(encoding="utf-8"))
            after = told_by(url, "billed")
        late = {question: count for question, count in billed.items() if question not in answered}
        again = sum(after[question] > billed[question] for question in answered)
        again_late = sum(after[question] > count for question, count in late.items())
        missing = KILLED - self.right(self._killed, found["answers"][0])
        text = f"{again:,} of {len(answered):,}; {again_late:,} of the {len(late):,} after them"
        return f"{text}; {missing} not answered" if missing else text

    def outage(self, side: str) -> str:
        """Measure what 503 for a while does to one rollout."""
        found = self.run(side, self.files[:1], after=REWARDS // 2).answers[0]
        lost = sum(one is None for one in found)
        return f"{lost}, {len(found) - lost - self.right(self.files[0], found)}"


def start(command: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
    with log.open("ab") as out:
        return subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, start_new_session=True)


def kill(client: "subprocess.Popen[bytes]") -> None:
    os.killpg(client.pid, signal.SIGKILL)
    client.wait()


@contextmanager
def endpoint(kind: str, after: int, honours: str = "") -> Iterator[tuple[str, int]]:
    """The endpoint as a process: its URL and its id."""
    module = [sys.executable, "-m", "benchmarks.engine_peers.endpoint"]
    command = [*module, kind, str(after), str(OUTAGE), honours]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.terminate()
        process.wait()


def told_by(url: str, what: str) -> dict[str, Any]:
    """The endpoint's counters."""
    with urllib.request.urlopen(f"{url.removesuffix('/v1')}/{what}") as answer:
        value: dict[str, Any] = json.load(answer)
    value.pop("", None)  # curator's question about the headers
    return value


if __name__ == "__main__":
    main()
