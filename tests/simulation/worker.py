"""The life of a stage as its worker lives it, without a model: inputs, steps, a journal of what was
paid for, checkpoints, heartbeats, the commit. Store, workspace and journal are Lyceum's own.

A step's result is a digest of the step before, so what is committed tells whether every step was
made once and in order, wherever the worker went on.
"""

import hashlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infra.backend import pause_file
from infra.context import context
from infra.gcs.files import fetch
from infra.store.compiled import Compiled
from infra.store.objects import Damaged
from infra.store.store import Store, attempt_file
from infra.store.workspace import KEPT, Workspace
from infra.tpu.types import TPU_TYPES
from schemas.artifact import ArtifactRef, Manifest
from schemas.base import InputError, StageFailed, Stopped, canonical_json, digest
from schemas.job import JobSpec, JobStatus, Progress
from tasks.contract.journal import Journal
from tests.simulation.bucket import MODEL, WEIGHTS
from tests.simulation.world import Process, World

STEPS = 5
EVERY = 2
"""A checkpoint is saved after so many steps."""
STEP_SECONDS = 2.5
JOIN_SECONDS = 30.0
"""How long hosts of a slice wait for each other."""
_SPLITS = {"train": 2, "validation": 0, "heldout": 0}
METRICS: dict[str, dict[str, Any]] = {
    "distill": {"rows": 2, "domains": {"math": 2}, "groundings": {}, "teachers": []},
    "rebalance": {
        **{"rows": _SPLITS, "domains": {}, "groundings": {}, "licences": {}, "dropped": {}},
        **{"read": 2, "unused": 0, "prompts": 2, "pairs": 0, "contaminated_by": {}, "top_ups": []},
    },
}
"""Kind -> the metrics that reports read of it."""


def made_of(kind: str, config: Any, inputs: dict[str, ArtifactRef]) -> str:
    """What a stage's worker commits: the result of its last step."""
    state = _begin(kind, config, inputs)
    for step in range(STEPS):
        state = _following(state, step)
    return state


def _begin(kind: str, config: Any, inputs: dict[str, ArtifactRef]) -> str:
    return digest([kind, config, {name: ref.digest for name, ref in inputs.items()}])


def _following(state: str, step: int) -> str:
    return hashlib.sha256(f"{state} {step}".encode()).hexdigest()


class _HostLost(Exception):
    """Another host of the slice does not compute any more."""


class Work:
    """One worker process; of a slice of several hosts the first one computes, and the others stay
    for as long as it does.

    Args:
        job: the path of `job.json`.
        told: is told of each step that begins.
        paid: is told of each answer that is paid for, and when the store was asked for it.
    """

    def __init__(
        self,
        world: World,
        process: Process,
        job: Path,
        told: Callable[[JobSpec, int], None],
        paid: Callable[[str, float], None],
    ) -> None:
        self._world, self._process, self._told, self._paid = world, process, told, paid
        self._spec = JobSpec.model_validate_json(job.read_bytes())
        self._store: Store = context().store(self._spec.store, write=False)
        self._progress, self._over = Progress(total=STEPS), threading.Event()

    def run(self) -> int:
        """Returns the exit code."""
        self._say(JobStatus(state="running", heartbeat=time.time()))
        heart = threading.Thread(target=self._beat, name="heart")
        heart.start()
        self._host = int(self._process.machine.partition(".")[2] or 0)
        try:
            final = self._outcome()
        finally:
            self._over.set()
        heart.join()
        self._say(final.model_copy(update={"progress": self._progress}))
        return final.exit_code or 0

    def _say(self, status: JobStatus) -> None:
        name = attempt_file(self._spec.key, self._spec.attempt, "status.json")
        self._store.write_here(name, status)

    def _beat(self) -> None:
        while not self._over.wait(context().settings.heartbeat_seconds):
            self._say(JobStatus(state="running", heartbeat=time.time(), progress=self._progress))

    def _outcome(self) -> JobStatus:
        try:
            self._join()
            if self._host:
                return self._stay()
            manifest = self._make()
            self._store.remove(f"work/{self._spec.key}/{KEPT}")
            return self._final("succeeded", 0, artifact=manifest.ref())
        except _HostLost as error:
            return self._final("failed", 1, str(error)).model_copy(update={"lost": True})
        except KeyboardInterrupt:
            return self._final("cancelled", 130, "cancelled")
        except Stopped as stopped:
            return self._final("paused", 130, str(stopped))
        except InputError as error:
            return self._final("failed", 2, str(error))
        except (OSError, StageFailed) as error:
            return self._final("failed", 1, f"{type(error).__name__}: {error}")

    def _fellows(self) -> list[Process]:
        """The workers of the other hosts that have begun; a machine of a slice has no others."""
        if self._spec.target == "local":
            return []
        mine = self._process.machine.partition(".")[0]
        workers = (one for one in self._world.processes if one.role == "worker")
        found = [one for one in workers if one.machine.partition(".")[0] == mine]
        return [one for one in found if one is not self._process]

    def _join(self) -> None:
        """Wait for the other hosts. Raises _HostLost."""
        others = TPU_TYPES[self._spec.target].hosts - 1 if self._spec.target != "local" else 0
        until = self._world.now + JOIN_SECONDS
        while len(self._fellows()) < others:
            self._pass(1.0)
            if self._world.now > until:
                raise _HostLost("the other hosts are not reached")

    def _stay(self) -> JobStatus:
        """Until the first host has ended. Raises _HostLost."""
        first = next(one for one in self._fellows() if "." not in one.machine)
        while first.alive:
            self._pass(1.0)
        made = self._store.valid(self._spec.kind, self._spec.key) if first.code == 0 else None
        if made is not None:
            return self._final("succeeded", 0, artifact=made.ref())
        if self._pausing:
            raise Stopped("paused with the first host")
        raise _HostLost("the first host is gone")

    @property
    def _pausing(self) -> bool:
        return self._store.path(pause_file(self._spec.key, self._spec.attempt)).exists()

    @staticmethod
    def _final(
        state: Any, code: int, error: str | None = None, artifact: ArtifactRef | None = None
    ) -> JobStatus:
        return JobStatus(
            state=state, heartbeat=time.time(), exit_code=code, error=error, artifact=artifact
        )

    def _make(self) -> Manifest:
        spec, store = self._spec, self._store
        if (adopted := store.valid(spec.kind, spec.key)) is not None:
            return adopted
        for name, ref in spec.inputs.items():
            self._read_input(name, ref)
        self._read_data()
        work = Workspace(store, spec.key, spec.attempt)
        out = work.scratch("out")
        programs = Path(context().settings.cache, "programs") if spec.target != "local" else ""
        with Compiled(store, f"compiled/{spec.target}/{spec.kind}", str(programs), seconds=4.0):
            (out / "result").write_text(self._result(work, programs), encoding="utf-8")
        if spec.kind == "distill":
            row = {"domain": "math", "family": "sums", "source": "", "day": spec.config}
            rows = [{"id": str(number), **row} for number in range(2)]
            (out / "examples.jsonl").write_text("\n".join(map(json.dumps, rows)))
        (out / "config.json").write_bytes(canonical_json(spec.config))
        draft = Manifest(
            kind=spec.kind,
            key=spec.key,
            version=1,
            dependencies=spec.dependencies,
            config=spec.config,
            inputs=spec.inputs,
            attempt=spec.attempt,
            files=(),
            metrics=METRICS.get(spec.kind, {}),
        )
        return store.commit(draft, out)

    def _read_input(self, name: str, ref: ArtifactRef) -> None:
        manifest = self._store.valid(ref.kind, ref.key)
        if manifest is not None and manifest.digest == ref.digest:
            try:
                (self._store.local_dir(manifest) / "result").read_bytes()
                return
            except (Damaged, FileNotFoundError):
                pass
        raise StageFailed(f"input {name} is missing or damaged")

    def _read_data(self) -> None:
        """The files of `--data`, and a model's weights of other people in a bucket."""
        data, here = self._spec.data, context().settings
        if data and not Path(data).is_absolute() and self._store.load_tree(data) is None:
            raise StageFailed(f"the files of --data, {data}, are missing or damaged")
        if self._spec.kind == "sft" and not self._store.is_directory:
            try:
                files = fetch(MODEL, here, lambda names: sorted(names))
            except ConnectionError as error:
                raise StageFailed(str(error)) from error
            if {one.name for one in files.iterdir()} < {*WEIGHTS}:
                raise StageFailed("a file of the model is missing")

    def _result(self, work: Workspace, programs: Path | str) -> str:
        """The steps, from the newest checkpoint on; their program is compiled to where `programs`
        are."""
        spec = self._spec
        first = _begin(spec.kind, spec.config, spec.inputs)
        state, step = self._newest(work) or (first, 0)
        journal = Journal(work, "steps")
        if programs:
            Path(programs).mkdir(parents=True, exist_ok=True)
            Path(programs, f"{spec.key[:8]}-cache").write_bytes(b"program " * 8)
        while step < STEPS:
            self._told(spec, step)
            rows = journal.get(str(step))
            if rows is None:
                if spec.kind == "distill" and step == 1:
                    self._ask(work, digest([spec.key, step]))
                self._pass(STEP_SECONDS)
                rows = [{"state": _following(state, step)}]
                journal.put(str(step), rows)
            state, step = rows[0]["state"], step + 1
            self._progress = Progress(done=step, total=STEPS)
            pausing = self._pausing
            if (step % EVERY == 0 or pausing) and step < STEPS:
                self._save(work, state, step)
            if pausing and step < STEPS:
                raise Stopped(f"paused after step {step} of {STEPS}")
        return state

    def _ask(self, work: Workspace, question: str) -> None:
        """An endpoint that must be paid, unless the store has its answer."""
        asked = self._world.now
        if work.answers.get(question) is None:
            self._paid(question, asked)
            self._world.sleep(1.0)
            work.answers.put(question, f"the answer to {question}".encode())

    def _pass(self, seconds: float) -> None:
        """Time goes by. Raises KeyboardInterrupt: asked to stop, or nobody waits any more; and
        _HostLost."""
        self._world.sleep(seconds)
        parent = self._process.parent
        if self._process.asked_to_stop or (parent is not None and not parent.alive):
            raise KeyboardInterrupt
        if not self._host and not all(one.alive for one in self._fellows()):
            raise _HostLost("another host is gone")

    def _newest(self, work: Workspace) -> tuple[str, int] | None:
        """As `tasks.training.checkpoints` does: others are looked for when all known ones are
        gone."""
        found, known = None, set[str]()
        while found is None and (names := set(work.children("checkpoints")) - known):
            known |= names
            loaded = (self._load(work, name) for name in sorted(names, reverse=True))
            found = next((one for one in loaded if one is not None), None)
        return found

    @staticmethod
    def _load(work: Workspace, name: str) -> tuple[str, int] | None:
        try:
            loaded = work.load_tree(f"checkpoints/{name}")
            if loaded is not None:
                values = json.loads((loaded[0] / "values.json").read_bytes())
                return values["state"], values["step"]
        except FileNotFoundError:
            pass
        return None

    def _save(self, work: Workspace, state: str, step: int) -> None:
        """As `tasks.training.checkpoints` does: this one, then earlier ones are removed."""
        mine = f"{step:08d}-{work.attempt}"
        directory = work.scratch("checkpoint")
        (directory / "values.json").write_text(json.dumps({"state": state, "step": step}))
        work.save_tree(f"checkpoints/{mine}", directory, {"step": step})
        for other in work.children("checkpoints"):
            if other.partition("-")[0] < mine.partition("-")[0]:
                work.remove(f"checkpoints/{other}")
