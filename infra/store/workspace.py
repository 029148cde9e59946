"""A stage's files between its attempts: objects below `work/<key>/` in the store until its artifact
is committed.

A runner of the stage finds there the trees (checkpoints) and single objects (journal entries) of
earlier attempts. All of them are functions of the stage key alone, so it does not matter which
attempt wrote them, and losing them costs only time.
"""

import shutil
from pathlib import Path
from typing import Any

from infra.store.answers import Answers
from infra.store.store import Store, attempt_file

KEPT = "kept"
"""The directory below `work/<key>/`, beside the attempts' own, for files that outlive them."""


class Workspace:
    """The workspace of one stage key, seen by one attempt: methods of `Store`, whose names are
    relative to `work/<key>/kept/` here.

    In a job on several hosts only host 0 writes and removes; for other hosts these calls do
    nothing, since host 0 makes the same.

    Attributes:
        answers: paid answers of teachers and judges, which the store keeps for all stages.
    """

    def __init__(self, store: Store, key: str, attempt: str, host: int = 0) -> None:
        self._store = store
        self._key = key
        self._host = host
        self.attempt = attempt
        self.writes = host == 0
        self.answers = Answers(store)

    def read(self, name: str) -> bytes | None:
        return self._store.read_bytes(self._name(name))

    def write(self, name: str, data: bytes) -> None:
        if self.writes:
            self._store.write_bytes(self._name(name), data)

    def children(self, name: str) -> list[str]:
        return self._store.children(self._name(name))

    def remove(self, name: str) -> None:
        if self.writes:
            self._store.remove(self._name(name))

    def clear(self) -> None:
        """Remove all that the stage's attempts have kept."""
        if self.writes:
            self._store.remove(f"work/{self._key}/{KEPT}")

    def local(self, name: str) -> Path:
        """A path on this machine for this attempt and host alone; on the store's disk if the store
        is a directory."""
        own = f"hosts/{self._host}/{name}" if self._host else name
        return self._store.path(attempt_file(self._key, self.attempt, own))

    def scratch(self, name: str) -> Path:
        """A fresh empty directory at `local(name)`."""
        path = self.local(name)
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def save_tree(self, name: str, directory: Path, about: dict[str, Any]) -> None:
        self._store.save_tree(self._name(name), directory, about)

    def load_tree(self, name: str) -> tuple[Path, dict[str, Any]] | None:
        return self._store.load_tree(self._name(name))

    def _name(self, name: str) -> str:
        return f"work/{self._key}/{KEPT}/{name}"
