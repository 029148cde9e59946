"""Exports that `lyceum push` made and the hub has not yet: a directory each, in `push/` of this
machine's cache.

Of the processes of this machine one at a time works with those of a store: of two pushes of the
same thing the second would send files that the first removes, and so would a push of what
`lyceum gc` removes.
"""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.context import context
from infra.store.objects import Found
from infra.store.space import unwritable
from infra.store.store import Store
from schemas.base import digest


def unsent_directory(store: Store, told: object) -> Path:
    """The directory of the export of something in a store; `told`: all that its bytes follow
    from."""
    return _all(store) / digest(told)


@contextmanager
def alone(store: Store) -> Iterator[bool]:
    """Whether this process alone works with a store's exports while inside; False: another does.
    Raises InputError: this machine's cache cannot be written."""
    place = _all(store).with_suffix(".lock")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        opened = place.open("w")
    except OSError as error:
        raise unwritable(place.parent, error) from error
    with opened as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def unsent(store: Store) -> dict[str, list[Found]]:
    """A store's exports with their files, by their directories; none while a push is at work."""
    exports = {path for path in _all(store).glob("*") if path.is_dir()}
    if not exports:
        return {}
    with alone(store) as idle:
        return {str(path): list(_files(path)) for path in sorted(exports)} if idle else {}


def discard_unsent(store: Store, export: str) -> bool:
    """Remove an export. False: a push is at work."""
    with alone(store) as idle:
        if idle:
            shutil.rmtree(export, ignore_errors=True)
    return idle


def _files(directory: Path) -> Iterator[Found]:
    for path in directory.rglob("*"):
        if path.is_file():
            told = path.stat()
            yield Found(str(path), told.st_size, told.st_mtime)


def _all(store: Store) -> Path:
    return Path(context().settings.cache) / "push" / digest(store.uri)[:16]
