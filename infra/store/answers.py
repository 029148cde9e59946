"""Paid answers of teachers and judges in the store: `answers/<two characters>/<digest>`, one object
each.

The digest is of the request (model, messages, parameters), so an answer outlives the stage that
paid for it: after a kill, or in another recipe, the same request is free.
"""

import hashlib
import logging

from infra.store.store import Store

log = logging.getLogger("lyceum")


class Answers:
    """The answers of a store. Safe to use from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, digest: str) -> bytes | None:
        """The answer to the request of that digest, or None if there is none, or it is damaged,
        which is logged."""
        raw = self._store.read_bytes(self._object(digest))
        if raw is None:
            return None
        checksum, _, body = raw.partition(b"\n")
        if checksum != hashlib.sha256(body).hexdigest().encode():
            log.warning("the answer %s in the store is damaged; it will be asked for again", digest)
            return None
        return body

    def put(self, digest: str, body: bytes) -> None:
        """Store an answer durably."""
        self._store.write_bytes(
            self._object(digest), hashlib.sha256(body).hexdigest().encode() + b"\n" + body
        )

    @staticmethod
    def _object(digest: str) -> str:
        return f"answers/{digest[:2]}/{digest}"
