"""Asking an endpoint of 200 ms and 64 slots: Lyceum's teacher and judge engines beside what a user would write or install instead.

    python -m benchmarks.engines SCRATCH [--rounds 3] [--only teacher|judge]

teacher     a stream of prompts of 150 words, answered with as many. Lyceum: the chat engine, as the teacher `openai_compatible` uses it.
judge       rollouts of 512 responses, one question each. Lyceum: the reward `rubric_judge` scores them, which includes its rules, making
            the question, and reading the ruling; the others are given the questions and only ask.

Others: the asynchronous `openai` client with a semaphore of 64; 64 threads, and one (serial, of fewer questions), with the blocking client;
curator and distilabel, in environments below SCRATCH that the first call makes. The endpoint is `tests.fakes.chat_server` as a process of
its own; client and endpoint share this machine's cores. All sides take turns within a round, each in a new process.

answers/s, ideal   while it asks, without its start; the ideal is 64 answers every 200 ms. Of the judge, of the rollouts after the first
ratio              a side's seconds per answer to Lyceum's of the same round: above 1 Lyceum is ahead
wall, CPU          of the whole process, start to end; processor time with its children, for 1,000 answers; `endpoint`: of that process
memory             the most that its process tree has resident, sampled
right              answers that are the one right answer to their question, of those asked for, in all rounds
paid again         SIGKILL in the middle, then the same command until it is done: answers that were made a second or more before the kill
                   and are billed once more; then of those made after that. The provider ignores Idempotency-Key
outage             503 to everything for 8 s, from the middle of a rollout on: rewards that were lost, and those that changed

Speeds are medians over the rounds (lowest to highest); kill and outage are done once.
"""

import argparse
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
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.engine_peers.clients import CLIENTS, SLOTS
from benchmarks.engine_peers.endpoint import LATENCY
from benchmarks.engine_peers.questions import reward_of, ruled, taught, write_judge, write_teacher
from benchmarks.side_by_side import installed, machine, resident, spread

ROOT = Path(__file__).resolve().parent.parent
INSTALLS = {
    "curator": ("bespokelabs-curator==0.1.31",),
    "distilabel": ("distilabel[openai]==1.5.3", "openai==3.54.0", "datasets==5.2.0", "requests==2.34.2"),
}
SIDES = ("Lyceum", *CLIENTS)
PROMPTS, REWARDS, ROLLOUTS = 1600, 512, 3
SERIAL = 20
"""Questions that the client without concurrency is given."""
KILLED = 1200
OUTAGE = 8.0
PATIENCE, AFTER_KILL = 240.0, 60.0
"""Seconds after which a client that has not ended is reported; alone, and begun again after a kill."""
NOT_EQUAL = """\
Not equal: Lyceum and curator keep every answer, distilabel a batch of 64 when its step is done with it, the clients nothing. Lyceum also
keeps a budget and halves its slots when the endpoint says "too much". In the judge's part Lyceum makes its questions
and reads the rulings, the others have both for nothing. Serial was given {serial} questions; its wall is of those, and its processor
time is mostly its start. distilabel works in batches of 64, of which each waits for its last answer, and is
given a name for each set of questions, or its cache would answer with another set's; curator and distilabel are called anew
for each rollout, the others keep their connections. Lyceum waits for an endpoint that is down, the clients have their own two retries,
curator and distilabel theirs."""


@dataclass(frozen=True)
class Ran:
    """A client's process: seconds of each file and of all, its answers, processor seconds (its own, the endpoint's), bytes resident."""

    seconds: list[float]
    answers: list[list[Any]]
    wall: float
    cpu: float
    endpoint_cpu: float
    peak: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("teacher", "judge"))
    options = parser.parse_args()
    scratch: Path = options.scratch.absolute()
    pythons = {name: installed(scratch, name, packages) for name, packages in INSTALLS.items()}
    questions = scratch / "questions"
    questions.mkdir(parents=True, exist_ok=True)
    say(
        machine("openai", "aiohttp")
        + f"; load {os.getloadavg()[0]:.1f} before; {', '.join(one for all_ in INSTALLS.values() for one in all_)}\n"
    )
    for kind in ("teacher", "judge"):
        if options.only in (None, kind):
            Table(kind, scratch, questions, pythons).show(options.rounds)
    say(NOT_EQUAL.format(serial=SERIAL))


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Table:
    """One part's measurements."""

    def __init__(self, kind: str, scratch: Path, questions: Path, pythons: dict[str, Path]) -> None:
        self.kind, self._scratch, self._pythons = kind, scratch, pythons
        self.files = [questions / f"{kind}-{number}.jsonl" for number in range(1 if kind == "teacher" else ROLLOUTS)]
        self._killed = questions / "killed-0.jsonl"
        for number, file in enumerate(self.files):
            write_teacher(file, PROMPTS) if kind == "teacher" else write_judge(file, number, REWARDS)
        if kind == "teacher":
            write_teacher(self._killed, KILLED)
        self._asked: dict[Path, list[str]] = {}

    def show(self, rounds: int) -> None:
        """Measure, and print the table."""
        ran: defaultdict[str, list[Ran]] = defaultdict(list)
        for number in range(rounds):
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                ran[side].append(self.run(side, self.files))
                sys.stderr.write(f"{self.kind}, round {number + 1}, {side}: {ran[side][-1].wall:.1f} s\n")
        last, cell = ("paid again", self.kill) if self.kind == "teacher" else ("outage: lost, changed", self.outage)
        say(f"\n| {self.kind} | answers/s | of ideal | ratio | wall s | CPU s | endpoint CPU s | memory MB | right | {last} |")
        say("|" + "---|" * 10)
        for side in SIDES:
            say(f"| {side} | {' | '.join(self.cells(ran[side], ran['Lyceum']))} | {cell(side)} |")
        if self.kind == "teacher":
            say(f"\nLyceum, of a provider that honours Idempotency-Key, paid again: {self.kill('Lyceum', 'honours')}")
        say("")

    def cells(self, ran: Sequence[Ran], ours: Sequence[Ran]) -> list[str]:
        """A side's figures."""
        rates = [self.rate(one) for one in ran]
        given = [sum(map(len, one.answers)) for one in ran]
        right = sum(self.right(file, found) for one in ran for file, found in zip(self.files, one.answers, strict=False))
        return [
            spread(rates, ",.0f" if min(rates) > 20 else ".1f"),
            spread([rate / (SLOTS / LATENCY) for rate in rates], ".1%"),
            spread([self.rate(mine) / rate for mine, rate in zip(ours, rates, strict=True)], ".2f") if ran is not ours else "1",
            spread([one.wall for one in ran], ".1f"),
            spread([one.cpu / count * 1000 for one, count in zip(ran, given, strict=True)], ".2f"),
            spread([one.endpoint_cpu / count * 1000 for one, count in zip(ran, given, strict=True)], ".2f"),
            f"{max(one.peak for one in ran) / 1e6:,.0f}",
            f"{right:,} of {sum(given):,}",
        ]

    def rate(self, ran: Ran) -> float:
        """Answers per second: of the rollouts after the first, if there are any."""
        each = [len(found) / seconds for found, seconds in zip(ran.answers, ran.seconds, strict=True)]
        return statistics.median(each[1:] or each)

    def right(self, file: Path, found: Sequence[Any]) -> int:
        """How many answers are as they have to be."""
        return sum(given is not None and same for given, same in zip(found, self.compared(file, found), strict=True))

    def compared(self, file: Path, found: Sequence[Any]) -> list[bool]:
        """Whether each answer, or reward, is the right one."""
        if file not in self._asked:
            lines = file.read_text(encoding="utf-8").splitlines()
            self._asked[file] = [json.loads(line)["messages"][-1]["content"] for line in lines]
        asked = self._asked[file][: len(found)]
        if self.kind == "teacher":
            return [given == taught(question) for question, given in zip(asked, found, strict=True)]
        values = [given if given is None or isinstance(given, float) else reward_of(given) for given in found]
        return [value is not None and math.isclose(value, reward_of(ruled(one))) for one, value in zip(asked, values, strict=True)]

    def run(self, side: str, files: Sequence[Path], after: int = 0) -> Ran:
        """A side's client as a process, until it ends."""
        with self.work() as directory, endpoint(self.kind, after) as (url, server):
            began = time.perf_counter()
            client = self.start(side, url, directory, files)
            peak, usage = 0, None
            while usage is None:
                peak = max(peak, resident(client.pid))
                time.sleep(0.1)
                pid, status, usage = os.wait4(client.pid, os.WNOHANG)
                usage = usage if pid else None
                if time.perf_counter() - began > PATIENCE:
                    os.killpg(client.pid, signal.SIGKILL)
                    raise SystemExit(f"{side} has not ended after {PATIENCE:g} s: {told(directory)}")
            client.returncode = os.waitstatus_to_exitcode(status)
            if client.returncode:
                raise SystemExit(f"{side} failed: {told(directory)}")
            wall = time.perf_counter() - began
            found = json.loads((directory / "found.json").read_text(encoding="utf-8"))
            times = psutil.Process(server).cpu_times()
        return Ran(found["seconds"], found["answers"], wall, usage.ru_utime + usage.ru_stime, times.user + times.system, peak)

    @contextmanager
    def work(self) -> Iterator[Path]:
        """A new directory for what a client keeps."""
        with tempfile.TemporaryDirectory(dir=self._scratch, ignore_cleanup_errors=True) as directory:
            yield Path(directory)

    def start(self, side: str, url: str, directory: Path, files: Sequence[Path]) -> subprocess.Popen[bytes]:
        """The client of a side, with what it says in `directory/log`."""
        python = str(self._pythons.get(side, sys.executable))
        client = [str(ROOT / "benchmarks" / "engine_peers" / "clients.py"), side]
        if side == "Lyceum":
            client = ["-m", "benchmarks.engine_peers.lyceum_side", self.kind]
        few = SERIAL if side == "serial" else 0
        command = [python, *client, url, str(directory), str(few), *map(str, files[:1] if few else files)]
        with (directory / "log").open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)

    def kill(self, side: str, honours: str = "") -> str:
        """What a SIGKILL costs. The clients that keep nothing differ in nothing but their speed, so one of them is killed."""
        if side in ("64 threads", "serial"):
            return "keeps nothing"
        with self.work() as directory, endpoint(self.kind, 0, honours) as (url, _):
            client = self.start(side, url, directory, [self._killed])
            while told_by(url, "counts")["billed"] < KILLED // 3:
                if client.poll() is not None:
                    raise SystemExit(f"{side} ended before it was killed: {told(directory)}")
                time.sleep(0.05)
            answered = told_by(url, "billed")
            time.sleep(1.0)
            os.killpg(client.pid, signal.SIGKILL)
            client.wait()
            time.sleep(2 * LATENCY)  # what is under way is made and billed
            billed = told_by(url, "billed")
            client = self.start(side, url, directory, [self._killed])
            try:
                if client.wait(AFTER_KILL):
                    return f"the same command then fails: {told(directory).strip().splitlines()[-1]}"
            except subprocess.TimeoutExpired:
                os.killpg(client.pid, signal.SIGKILL)
                client.wait()
                return f"the same command has not ended after {AFTER_KILL:g} s"
            found = json.loads((directory / "found.json").read_text(encoding="utf-8"))["answers"][0]
            after = told_by(url, "billed")
        again = sum(after[question] > billed[question] for question in answered)
        late = sum(after[question] > count for question, count in billed.items() if question not in answered)
        missing = KILLED - self.right(self._killed, found)
        told_of = f"{again:,} of {len(answered):,}; {late:,} of the {len(billed) - len(answered):,} after them"
        return f"{told_of}; {missing} not answered" if missing else told_of

    def outage(self, side: str) -> str:
        """What 503 for a while does to one rollout."""
        if side == "serial":
            return "as threads"
        found = self.run(side, self.files[:1], after=REWARDS // 2).answers[0]
        lost = sum(one is None for one in found)
        return f"{lost}, {len(found) - lost - self.right(self.files[0], found)}"


@contextmanager
def endpoint(kind: str, after: int, honours: str = "") -> Iterator[tuple[str, int]]:
    """The endpoint as a process: its URL and its id."""
    command = [sys.executable, "-m", "benchmarks.engine_peers.endpoint", kind, str(after), str(OUTAGE), honours]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.terminate()
        process.wait()


def told_by(url: str, what: str) -> dict[str, Any]:
    """What the endpoint has counted."""
    with urllib.request.urlopen(f"{url.removesuffix('/v1')}/{what}") as answer:
        value: dict[str, Any] = json.load(answer)
    value.pop("", None)  # curator's question about the headers
    return value


def told(directory: Path) -> str:
    """The end of what a client has said."""
    return (directory / "log").read_text(encoding="utf-8", errors="replace")[-2000:]


if __name__ == "__main__":
    main()
