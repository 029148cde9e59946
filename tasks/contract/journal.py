"""A journal: costly results (a sampled batch, an answer of a teacher or a judge), stored for later
attempts.

Each entry is one object in the stage's workspace: a line with the sha256 of the rest, and a JSON
list. An entry is a function of the stage key and its name, so any attempt may have written it. With
several hosts, host 0 decides whether an entry is used.
"""

import hashlib
import json
import logging
from typing import Any

from infra.store.workspace import Workspace
from tasks.devices.hosts import agree

log = logging.getLogger("lyceum")

Rows = list[dict[str, Any]]


class Journal:
    """The entries `journal/<name>/<entry>` of a workspace. Names are letters, digits and `_ . + = @
    -`; others raise InputError."""

    def __init__(self, work: Workspace, name: str) -> None:
        self._work, self._name = work, name

    def get(self, entry: str) -> Rows | None:
        """The rows of an entry; None if there is none or it is damaged, which is logged.

        Raises:
            OSError: host 0 has the entry and this host cannot read it.
        """
        rows = self._read(entry)
        if not agree(rows is not None):
            return None
        if rows is None:
            raise OSError(
                f"host 0 uses journal entry {self._name}/{entry}, which cannot be read here"
            )
        return rows

    def _read(self, entry: str) -> Rows | None:
        raw = self._work.read(self._object(entry))
        if raw is None:
            return None
        checksum, _, body = raw.partition(b"\n")
        if checksum != _checksum(body):
            log.warning(
                "journal entry %s/%s is damaged and will be computed again", self._name, entry
            )
            return None
        rows: Rows = json.loads(body)
        return rows

    def put(self, entry: str, rows: Rows) -> None:
        """Create or replace an entry. Rows are JSON; floats survive exactly, so a float32 does as a
        Python float."""
        body = json.dumps(rows, ensure_ascii=False).encode()
        self._work.write(self._object(entry), _checksum(body) + b"\n" + body)

    def _object(self, entry: str) -> str:
        return f"journal/{self._name}/{entry}"


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()
