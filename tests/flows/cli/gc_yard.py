"""A store with whatever a test of `lyceum gc` puts into it: artifacts, attempts, run records, by
short numbers instead of stage keys."""

from pathlib import Path
from typing import Any

import pytest

from flows.recipe.resolve import resolve
from flows.runs.record import record_name
from infra.process_identity import this_process
from infra.store.lease import LeaseRecord
from infra.store.store import Store, attempt_file
from schemas.artifact import ArtifactRef, Manifest
from schemas.job import JobSpec
from schemas.reports import Process, RunRecord, StageRecord
from tests.flows.lab import say

DEAD = this_process().model_copy(update={"pid": 2**22 + 1})
ELSEWHERE = Process(host="elsewhere", namespace="", pid=1)


def key(number: int) -> str:
    return f"{number:064x}"


class Yard:
    """A store with whatever a test puts into it, and `lyceum gc` on it."""

    def __init__(
        self, store: Store, recipe: Path, capsys: pytest.CaptureFixture[str], scratch: Path
    ) -> None:
        self.store, self._recipe, self._capsys, self._scratch = store, recipe, capsys, scratch

    def commit(self, number: int, attempt: str = "1", text: str = "weights") -> Manifest:
        out = self._scratch / "out"
        out.mkdir()
        (out / "model.txt").write_text(text)
        made = {"kind": "sft", "version": 1, "config": {}, "inputs": {}, "files": ()}
        return self.store.commit(Manifest(key=key(number), attempt=attempt, **made), out)

    def run(
        self, run_id: str, *numbers: int, status: Any = "failed", process: Process | None = None
    ) -> None:
        """The record of a run that worked on these keys."""
        stage = {"kind": "sft", "status": "running"}
        stages = [StageRecord(name=f"s{number}", key=key(number), **stage) for number in numbers]
        given = {"recipe": resolve(str(self._recipe)).recipe, "stages": tuple(stages)}
        given |= {"target": "local", "store": self.store.uri, "started": 1.0}
        record = RunRecord(run_id=run_id, status=status, process=process, **given)
        self.store.write_json(record_name(run_id), record)

    def attempt(
        self,
        number: int,
        attempt: str = "1",
        process: Process = DEAD,
        inputs: tuple[int, ...] = (),
        released: bool = False,
    ) -> None:
        """What an attempt leaves in its directory, and beside it for the next one."""
        mark = {"owner": "sft", "nonce": "0", "renewed": 0.0, "released": released}
        lease = LeaseRecord(**process.model_dump(), **mark)
        self.store.create_json(attempt_file(key(number), attempt, "lease.json"), lease)
        refs = {str(one): ArtifactRef(kind="sft", key=key(one), digest="d") for one in inputs}
        place = {"store": self.store.uri, "target": "local", "config": {}, "inputs": refs}
        spec = JobSpec(stage="s", kind="sft", key=key(number), attempt=attempt, **place)
        self.store.create_json(attempt_file(key(number), attempt, "job.json"), spec)
        left = [f"{attempt}/{name}" for name in ("status.json", "log.txt", "out/model.txt")]
        for name in (*left, "kept/step-10/seal.json"):
            self.store.write_bytes(f"work/{key(number)}/{name}", b"text")

    def names(self) -> set[str]:
        """Every object in the store, keys shortened to their numbers."""
        tops = ("artifacts", "work", "runs")
        return {short(found.name) for top in tops for found in self.store.objects(top)}

    def gc(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """What `lyceum gc --json` prints; its messages are kept."""
        where = ("--store", self.store.uri, "--json")
        said = say(self._capsys, "gc", *where, *arguments, code=code)
        self.messages = said.err
        return said.json if code == 0 else {}

    def found(self, *arguments: str) -> set[tuple[str, str]]:
        """Kind and name of all garbage."""
        return {(item["kind"], short(item["name"])) for item in self.gc(*arguments)["items"]}


def short(name: str) -> str:
    return "/".join(str(int(part, 16)) if len(part) == 64 else part for part in name.split("/"))
