"""Answers of the compiler of a TPU, or of this machine's accelerator (`tasks.planning.compiler`),
kept on this machine: what has been compiled once is not compiled again.

Two kinds of files below `<LYCEUM_CACHE>/plan/`: `stages/` says which programs a stage has, by
everything that decides it (kind, config, model, upstream configs, our source, versions, target), so
that a plan seen before starts no compiler at all; `programs/` holds the compiler's report of each
program by the program's own digest, so that stages with the same program, and sources that differ
in something else, share it. Deleting the directory costs only time.

Programs compile side by side in processes of their own, as many as cores and free memory allow.
They end with this process, however it ends: their standard input is closed then.
"""

import json
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any, Self

from flows.planning.machine import free_bytes
from infra.accelerator import find
from infra.context import context
from infra.cores import usable_cores
from infra.distribution import install
from infra.process import ROOT, worker_environment
from infra.settings import Settings
from infra.store.space import unwritable, write_whole
from infra.tpu.types import GIB
from schemas.base import InputError, StageFailed, digest

COMPILE_BYTES = 5 * GIB
"""Host memory that a process that compiles may take: 4 to 7 GB for a 1B program without a scan over
layers, 1.5 to 3 GB with one (measured with libtpu 0.0.42.1 in November 2026), more for larger
models."""

COMMAND = (sys.executable, "-m", "tasks.planning.compiler")
"""The command that compiles; the target is appended."""

_PACKAGES = ("jax", "jaxlib", "libtpu", "flax", "google-tunix", "optax", "qwix")
_LINES_IN_ERROR = 5


def has_compiler() -> bool:
    return bool(_version("libtpu"))


@dataclass(frozen=True)
class Question:
    """A stage whose programs are asked for.

    Attributes:
        name: the stage's name in the recipe, for messages.
        version: the kind's VERSION.
        upstream, models: see `tasks.planning.compiler.StageQuestion`.
    """

    name: str
    kind: str
    version: int
    config: dict[str, Any]
    model: str
    upstream: dict[str, tuple[str, dict[str, Any]]]
    models: dict[str, str] = field(default_factory=dict)

    @property
    def stage(self) -> dict[str, Any]:
        """A question of the form of `tasks.planning.compiler.StageQuestion`."""
        asked = ("kind", "config", "model", "upstream", "models")
        return {name: getattr(self, name) for name in asked}


@dataclass(frozen=True)
class Compiled:
    """A program of a stage and the compiler's report (`tasks.planning.compiler.ProgramReport`),
    None where it was not asked for.

    Attributes:
        beside: see `tasks.planning.programs.Program`.
    """

    name: str
    digest: str
    calls: float
    resident_bytes: int
    report: dict[str, Any] | None
    beside: bool = False


@dataclass
class _Worker:
    """A process that compiles; started at its first question."""

    target: str
    process: "subprocess.Popen[str] | None" = None
    errors: IO[str] | None = None
    lowered: set[str] = field(default_factory=set)
    ended: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            if self.ended:
                return {"error": "stopped", "kind": "failed"}
            process, errors = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
        answer = process.stdout.readline()
        if answer.endswith("\n"):  # else it ended before, or within it
            found: dict[str, Any] = json.loads(answer)
            return found
        code = process.wait()
        if self.ended:
            return {"error": "stopped", "kind": "failed"}
        errors.seek(0)
        end = " / ".join(errors.read().strip().splitlines()[-_LINES_IN_ERROR:])
        self.stop()
        said = "the process that compiles"
        if code == -signal.SIGKILL:
            killed = f"{said} was killed, most likely because memory ran out"
            return {"error": killed, "kind": "killed"}
        return {"error": f"{said} ended with exit code {code}: {end}", "kind": "failed"}

    def _started(self) -> "tuple[subprocess.Popen[str], IO[str]]":
        if self.process is None or self.errors is None:
            self.errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  as long as the process
            self.process = subprocess.Popen(
                [*COMMAND, self.target],
                cwd=ROOT,
                env=_environment() if self.target == "local" else None,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                text=True,
                start_new_session=True,  # Ctrl-C is ours to handle
            )
        return self.process, self.errors

    def end(self) -> None:
        """End the process, whatever it does, for good."""
        with self.lock:
            self.ended = True
            self.stop()

    def stop(self) -> None:
        """End the process; the next question starts another one."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
            self.lowered.clear()


class Compiler:
    """The compiler for one target, as a context manager: leaving it ends its processes.

    Args:
        target: a TPU type, or `local` for the accelerator of this machine.
        say: takes a line of progress at a time.

    Raises:
        InputError: there is no TPU compiler on this machine.
    """

    def __init__(self, target: str, settings: Settings, say: Callable[[str], None]) -> None:
        if target != "local" and not has_compiler():
            raise InputError(
                f"to plan for {target} the TPU compiler has to be installed: {install('tpu')}"
                " (200 MB; no TPU is needed)."
            )
        self.target, self.say = target, say
        self._settings, self._directory = settings, Path(settings.cache) / "plan"
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        # a device is one process's at a time
        workers = 1 if target == "local" else _workers()
        self._workers = [_Worker(target) for _ in range(workers)]
        self._alone = threading.Lock()
        self._since, self._lock = time.monotonic(), threading.Lock()
        self._begun = self._done = self._compiles = 0

    def __enter__(self) -> Self:
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(len(self._workers))
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self._workers:
            worker.end()
        self._threads.shutdown(cancel_futures=True)

    def programs(self, questions: Sequence[Question]) -> list[list[Compiled]]:
        """The programs of each stage, not compiled.

        Raises:
            InputError: a stage does not accept its config on this target.
            StageFailed: the programs could not be made; says of which stage.
        """
        new = [question for question in questions if _read(self._stage_path(question)) is None]
        if new:
            self.say(f"reading the programs of {', '.join(question.name for question in new)}")
        list(self._threads.map(self._make_programs, new))  # the first failure ends it
        return [self._known(question) for question in questions]

    def compile(
        self, questions: Sequence[Question], only: frozenset[str] | None = None
    ) -> list[list[Compiled]]:
        """The programs of each stage with their reports; with `only`, just those of these names.

        Raises:
            InputError, StageFailed: see `programs`; also when a program does not compile for
                another reason than its size.
        """
        found = self.programs(questions)
        todo: dict[str, tuple[Question, int, str]] = {}
        for question, programs in zip(questions, found, strict=True):
            for index, program in enumerate(programs):
                if program.report is None and (only is None or program.name in only):
                    todo.setdefault(program.digest, (question, index, program.name))
        self._begun, self._done, self._compiles = 0, 0, len(todo)
        longest_first = sorted(todo.items(), key=lambda item: item[1][2] != "train_step")
        list(self._threads.map(self._compile_one, longest_first))
        found = [self._known(question) for question in questions]
        return [
            [program for program in programs if only is None or program.name in only]
            for programs in found
        ]

    def known(self, question: Question) -> list[Compiled] | None:
        """The programs of a stage that was planned before, all with reports; None for any other.
        Starts nothing."""
        if _read(self._stage_path(question)) is None:
            return None
        programs = self._known(question)
        return programs if all(program.report for program in programs) else None

    def _make_programs(self, question: Question) -> None:
        answer = self._ask(question, {"stage": question.stage}, "its programs")
        _write(self._stage_path(question), answer["programs"])

    def _compile_one(self, item: tuple[str, tuple[Question, int, str]]) -> None:
        key, (question, index, name) = item
        with self._lock:
            self._begun += 1
            self.say(f"compiling {self._begun} of {self._compiles}: {question.name} {name}")
        answer = self._ask(question, {"stage": question.stage, "program": index}, f"program {name}")
        _write(self._directory / "programs" / f"{key}.json", answer["report"])
        with self._lock:
            self._done += 1
            took, since = answer["report"]["compile_seconds"], time.monotonic() - self._since
            done = f"{self._done} of {self._compiles} done, {since:.0f} s so far"
            self.say(f"{question.name} {name} took {took:.0f} s; {done}")

    def _ask(self, question: Question, asked: dict[str, Any], what: str) -> dict[str, Any]:
        key = digest(question.stage)
        worker = self._take(key)
        try:
            answer = worker.ask(asked)
            worker.lowered.add(key)
        finally:
            self._idle.put(worker)
        if answer.get("kind") == "killed" and len(self._workers) > 1:
            answer = self._ask_alone(asked)
        if "error" in answer:
            text = f"stage {question.name}, {what} on {self.target}: {answer['error']}"
            raise InputError(text) if answer["kind"] == "input" else StageFailed(text)
        return answer

    def _ask_alone(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Ask while nothing else is compiled, so that there is more memory."""
        with self._alone:
            workers = [self._idle.get() for _ in self._workers]
            try:
                for worker in workers:
                    worker.stop()
                return workers[0].ask(asked)
            finally:
                for worker in workers:
                    self._idle.put(worker)

    def _take(self, key: str) -> _Worker:
        """An idle worker, one that knows the stage if there is one."""
        idle = [self._idle.get()]
        with suppress(queue.Empty):
            while True:
                idle.append(self._idle.get_nowait())
        idle.sort(key=lambda worker: key not in worker.lowered)
        for worker in idle[1:]:
            self._idle.put(worker)
        return idle[0]

    # Files

    @cached_property
    def _surroundings(self) -> list[Any]:
        """The parts of the key that decide a stage's programs beside the question: our source,
        packages, the target and its settings."""
        files = sorted(
            file for place in ("tasks", "schemas") for file in (ROOT / place).rglob("*.py")
        )
        source = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in files}
        versions = [_version(name) for name in _PACKAGES]
        found = find().accelerator if self.target == "local" else None
        machine = [self.target, found.model_dump() if found else None]
        spread = [self._settings.tensor_parallel, self._settings.whole_weights_gib]
        return [digest(source), versions, *machine, *spread]

    def _stage_path(self, question: Question) -> Path:
        config = Path(question.model) / "config.json"
        architecture = config.read_text(encoding="utf-8") if config.is_file() else ""
        key = digest([question.stage, question.version, architecture, self._surroundings])
        return self._directory / "stages" / f"{key}.json"

    def _known(self, question: Question) -> list[Compiled]:
        path = self._stage_path(question)
        if (listed := _read(path)) is None:
            raise StageFailed(f"{path} cannot be read back; is the disk full?")
        return [
            Compiled(**one, report=_read(self._directory / "programs" / f"{one['digest']}.json"))
            for one in listed
        ]


def _environment() -> dict[str, str]:
    """The variables of a process that compiles for this machine's accelerator: a job's, which then
    finds the programs compiled. It keeps no memory."""
    environment = worker_environment(context().settings.compile_cache)
    found = find().accelerator
    variables = found.environment(environment) if found else environment
    return {**variables, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def _workers() -> int:
    return max(1, min(usable_cores(), free_bytes() // COMPILE_BYTES))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _read(path: Path) -> Any:
    """The JSON in a file; None where none can be read, or a damaged one."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _write(path: Path, value: Any) -> None:
    """Write JSON to a file. Raises InputError when the cache cannot be written."""
    try:
        write_whole(path, json.dumps(value))
    except OSError as error:
        raise unwritable(path.parent, error) from error
