"""A directory as the place of a store: Lyceum's own `Files` on a real (memory) disk, whose
operations, and the system calls inside them, others may come between."""

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from infra.store.local_objects import Files
from infra.store.objects import Found
from schemas.artifact import FileEntry
from tests.simulation.faults import Faults
from tests.simulation.naming import operation
from tests.simulation.world import EPOCH, World

T = TypeVar("T")
SECONDS = 8.0
"""How long the system may keep what is written in memory."""


class Disk:
    """What has been written without waiting for the disk, by machine; `watched` if anybody will
    ask. Until `refused` whoever writes hears the number of an error, `refusal`. What a file's time
    lacks to virtual time is `late`: files are as old as the history at most."""

    def __init__(self, world: World, watched: bool) -> None:
        self._world, self.watched = world, watched
        self.refused, self.refusal = 0.0, 0
        self.late = EPOCH - time.time()
        self._written: list[tuple[float, str, str, bytes | None]] = []

    def note(self, name: str, before: bytes | None) -> None:
        machine = self._world.check().process.machine
        self._written.append((self._world.now, machine, name, before))

    def require_room(self, name: str) -> None:
        """Raises what the system says where nothing can be written."""
        if self._world.now < self.refused:
            raise OSError(self.refusal, os.strerror(self.refusal), name)

    def lost(self, machine: str) -> list[tuple[str, bytes | None]]:
        """What a power cut may take back: names, and the bytes before the oldest such write."""
        since = self._world.now - SECONDS
        found = [one for one in reversed(self._written) if one[1] == machine and one[0] > since]
        return list({name: before for _, _, name, before in found}.items())


class SimulatedFiles(Files):
    """`Files` whose operations go through `Faults`."""

    def __init__(self, root: Path, uri: str, faults: Faults, disk: Disk) -> None:
        super().__init__(root, uri)
        self._faults, self._disk = faults, disk
        self._paths: dict[str, Path] = {}

    def path(self, name: str) -> Path:
        if name not in self._paths:
            self._paths[name] = super().path(name)
        return self._paths[name]

    def _writing(self, name: str, effect: Callable[[], T]) -> Callable[[], T]:
        def write() -> T:
            with self.explained(self.path(name)):
                self._disk.require_room(name)
            return effect()

        return write

    def prepare(self) -> None:
        """See Files."""
        prepared = super().prepare
        self._faults.operation("write any", "probe", self._writing("probe", prepared))

    def read(self, name: str, seconds: float | None = None) -> bytes | None:
        return self._faults.operation(operation("read", name), name, partial(super().read, name))

    def write(self, name: str, data: bytes, seconds: float | None = None) -> None:
        if self._disk.watched:
            self._disk.note(name, super().read(name))
        write = self._writing(name, partial(super().write, name, data, seconds))
        return self._faults.operation(operation("write", name), name, write)

    def create(self, name: str, data: bytes) -> bool:
        create = self._writing(name, partial(super().create, name, data))
        return self._faults.operation(operation("create", name), name, create)

    def set_aside(self, name: str, aside: str, expected: bytes) -> bool:
        move = partial(super().set_aside, name, aside, expected)
        return self._faults.operation(operation("move", name), name, move)

    def children(self, name: str) -> list[str]:
        return self._faults.operation("list any", name, partial(super().children, name))

    def objects(self, name: str) -> Iterator[Found]:
        found = partial(super().objects, name)
        listed = self._faults.operation("list any", name, lambda: [*found()])
        return (replace(one, written=one.written + self._disk.late) for one in listed)

    def remove(self, name: str) -> None:
        remove = partial(super().remove, name)
        return self._faults.operation(operation("remove", name), name, remove)

    def put_tree(self, directory: Path, name: str, entries: Sequence[FileEntry]) -> None:
        put = self._writing(name, partial(super().put_tree, directory, name, entries))
        return self._faults.operation("put tree", name, put)

    def check_tree(self, name: str, entries: Sequence[FileEntry]) -> list[str]:
        return self._faults.operation("read any", name, partial(super().check_tree, name, entries))

    def get_tree(
        self, name: str, entries: Sequence[FileEntry], wanted: Collection[str] | None = None
    ) -> Path:
        get = partial(super().get_tree, name, entries, wanted)
        return self._faults.operation("read any", name, get)
