"""Compiled programs in the store: a new machine begins with the programs of earlier ones, after a
preemption or the next night.

    compiled/<target>/<kind>/<name>    entries of JAX's persistent compilation cache, by JAX's own
                                       names

A name is a digest of the program, the compiler and its options, so an entry fits everybody who asks
for its name, and is written once. An entry that cannot be read or written is logged, and its
program compiled again. The bucket's lifecycle rule (infra/terraform/bucket.tf) removes entries a
month after they were written; `lyceum gc` ignores them.
"""

import logging
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

from infra.store.store import Store
from schemas.base import InputError

log = logging.getLogger("lyceum")

SMALLEST = 64 * 1024
"""The least bytes of an entry: smaller programs compile faster than they transfer."""

_SUFFIX = "-cache"


class Compiled:
    """A context that synchronises JAX's cache directory with its place in the store.

    Entering fetches the store's entries. A thread sends new ones, each once it has stopped growing,
    and leaving sends the last.

    Args:
        name: the place in the store.
        directory: JAX's cache directory; empty for none, which makes this do nothing.
        send: whether to send entries, too; on one host of several.
        seconds: time between two looks for new entries.
    """

    def __init__(
        self, store: Store, name: str, directory: str, *, send: bool = True, seconds: float = 20.0
    ):
        self._store, self._name, self._directory = store, name, Path(directory)
        self._send, self._seconds = send, seconds
        self._active = bool(directory)
        self._known: set[str] = set()
        self._sizes: dict[str, int] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="compiled-programs", daemon=True)

    def __enter__(self) -> Self:
        if self._active:
            self._bring()
            self._known = set(self._entries())
            if self._send:
                self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._active and self._send:
            self.look(finished=True)

    def _entries(self) -> dict[str, int]:
        """Name -> size of the local entries worth sending. Some may go meanwhile."""
        sizes: dict[str, int] = {}
        with suppress(OSError):
            for entry in self._directory.glob(f"*{_SUFFIX}"):
                with suppress(FileNotFoundError):
                    sizes[entry.name] = entry.stat().st_size
        return {name: size for name, size in sizes.items() if size >= SMALLEST}

    def _bring(self) -> None:
        try:
            wanted = [
                name
                for name in self._store.children(self._name)
                if not (self._directory / name).exists()
            ]
            for name in wanted:
                data = self._store.read_bytes(f"{self._name}/{name}")
                if data is not None:
                    self._directory.mkdir(parents=True, exist_ok=True)
                    part = self._directory / f".{name}.part"
                    part.write_bytes(data)
                    part.replace(self._directory / name)
        except (OSError, InputError) as error:
            log.warning("programs compiled before cannot be had and are compiled again: %s", error)
            return
        if wanted:
            log.info("%d compiled programs came from the store", len(wanted))

    def _watch(self) -> None:
        while not self._ended.wait(self._seconds):
            self.look(finished=False)

    def look(self, *, finished: bool) -> None:
        """Send the new entries; while JAX may be writing, only those whose size has not changed
        since the last look."""
        entries = self._entries()
        for name, size in entries.items():
            if name in self._known or not (finished or self._sizes.get(name) == size):
                continue
            self._known.add(name)
            try:
                self._store.create_bytes(
                    f"{self._name}/{name}", (self._directory / name).read_bytes()
                )
            except (OSError, InputError) as error:
                log.warning("compiled program %s is not kept in the store: %s", name, error)
        self._sizes = entries
