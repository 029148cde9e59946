"""A directory as an object store: named byte strings that are read whole, replaced atomically, or created exactly once.

Names are POSIX paths below the root, every segment from an allow-list, so no name can leave the root. What is not expressible on an object
store is not offered: no appending, no locks, no renaming of what others read. Durability: `create` and `move_in` reach the disk before they
return; `write` is atomic but may be lost with the machine's power (status files, run records: views that can be rebuilt).
"""

import errno
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from schemas.base import InputError

_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=@-]{0,127}")
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
_A_FILE = "this path, or a part of it, is a file, and a store is a directory. Give --store another path, for example ./.lyceum."
_NOT_A_DIRECTORY = (errno.ENOTDIR, errno.EEXIST)


def checked_name(name: str) -> str:
    """`name` if it is an allowed object name: see `_problem`. Raises InputError otherwise, e.g. for `../x`, `/etc/passwd` or `a//b`."""
    problem = _problem(name)
    if problem:
        raise InputError(problem)
    return name


def _problem(name: str) -> str | None:
    for segment in name.split("/"):
        if not _SEGMENT.fullmatch(segment):
            return (
                f"the name {name!r} is not allowed in a store: its part {segment!r} must be 1 to 128 letters, digits or _ . + = @ - "
                "and must not start with a dot."
            )
    return None


def is_disk_full(error: BaseException) -> bool:
    """Whether this error, or one that it was raised from, says that the disk is full (native libraries say it in words only)."""
    link: BaseException | None = error
    while link is not None:
        if (isinstance(link, OSError) and link.errno in _DISK_FULL) or "No space left on device" in str(link):
            return True
        link = link.__cause__ or link.__context__
    return False


class Files:
    """Objects below `root`, an absolute directory; `uri` names it in messages."""

    def __init__(self, root: Path, uri: str) -> None:
        self.root = root
        self.uri = uri

    def path(self, name: str) -> Path:
        """Where the object `name` lies. Raises ValueError for a name that is not allowed."""
        return self.root / checked_name(name)

    def require_directory(self) -> None:
        """Raise InputError when something that is no directory lies where the root should be. Creates nothing."""
        if self.root.exists() and not self.root.is_dir():
            raise InputError(f"store {self.uri}: {self.root}: {_A_FILE}")

    def prepare(self) -> None:
        """Create the root if it is missing, and prove that a file can be written below it. Raises InputError when it cannot."""
        with self.explained(self.root):
            created = not self.root.exists()
            try:
                self.root.mkdir(parents=True, exist_ok=True)
                probe = self.root / f".probe-{uuid.uuid4().hex}"
                _write_durably(probe, b"\0" * 4096)
                probe.unlink()
            except OSError:
                if created and self.root.is_dir():
                    self.root.rmdir()
                raise

    @contextmanager
    def explained(self, what: Path | str) -> Iterator[None]:
        """Turn the operating system's refusals into InputError: what could not be read or written, why, and the fix."""
        try:
            yield
        except OSError as error:
            place = f"store {self.uri}: {error.filename or what}"
            if is_disk_full(error):
                raise InputError(f"{place}: no space is left on the disk. Free some, or give --store a place on another disk.") from error
            if error.errno in _NOT_WRITABLE:
                raise InputError(
                    f"{place}: {error.strerror}. Give --store a directory that you may read and write, or change its permissions."
                ) from error
            if error.errno in _NOT_A_DIRECTORY:
                raise InputError(f"{place}: {_A_FILE}") from error
            raise

    def read(self, name: str) -> bytes | None:
        """The object's bytes, or None if there is none."""
        path = self.path(name)
        with self.explained(path):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes) -> None:
        """Create or replace the object: readers see the old bytes or the new ones, nothing between."""
        path = self.path(name)
        with self.explained(path), _temporary_beside(path) as temporary:
            temporary.write_bytes(data)
            os.replace(temporary, path)

    def create(self, name: str, data: bytes) -> bool:
        """Create the object with all its bytes, durably; False, and nothing changes, if it exists. Of many racers exactly one gets True."""
        path = self.path(name)
        with self.explained(path), _temporary_beside(path) as temporary:
            _write_durably(temporary, data)
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            self._sync_directories(path.parent)
            return True

    def set_aside(self, name: str, aside: str, expected: bytes) -> bool:
        """Rename the object to `aside` if it still holds the `expected` bytes; False if it is gone or another.

        The rename comes first and the comparison second: whoever looks in between finds no object rather than a wrong one.
        """
        path, target = self.path(name), self.path(aside)
        with self.explained(path):
            try:
                path.rename(target)
            except FileNotFoundError:
                return False
            if target.read_bytes() == expected:
                return True
            with suppress(FileExistsError):  # a third one that was created meanwhile stays
                os.link(target, path)
            target.unlink()
            return False

    def children(self, name: str) -> list[str]:
        """Names directly below a prefix, sorted; those that are not allowed (temporary files) are left out."""
        path = self.path(name)
        with self.explained(path):
            try:
                return sorted(child for child in os.listdir(path) if _SEGMENT.fullmatch(child))
            except FileNotFoundError:
                return []

    def move_in(self, directory: Path, name: str) -> None:
        """Move a directory's files to the prefix `name`, durably, replacing what lay there. A failed move leaves nothing there."""
        target = self.path(name)
        with self.explained(target):
            self.remove(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                _move(directory, target)
                for parent, _, files in os.walk(target):
                    for file in files:
                        _sync(Path(parent, file))
                    _sync(Path(parent))
                self._sync_directories(target.parent)
            except BaseException:
                self.remove(name)
                raise

    def remove(self, name: str) -> None:
        """Remove every object below a prefix, if there are any."""
        shutil.rmtree(self.path(name), ignore_errors=True)

    def _sync_directories(self, directory: Path) -> None:
        """Make the names of `directory` and of every directory between it and the root survive a power cut."""
        while directory != self.root.parent:
            _sync(directory)
            directory = directory.parent


def files_below(directory: Path) -> list[str]:
    """POSIX paths of all regular files below `directory`, sorted.

    Raises:
        ValueError: a symbolic link, a special file, or a name that is not allowed; an artifact is made of plain files.
    """
    found = []
    for parent, subdirectories, names in os.walk(directory):
        for name in [*subdirectories, *names]:
            path = Path(parent, name)
            relative = PurePosixPath(path.relative_to(directory)).as_posix()
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise ValueError(f"{relative!r} is not a plain file; an artifact holds no links, sockets or devices")
            problem = _problem(relative)
            if problem:
                raise ValueError(problem)
            if path.is_file():
                found.append(relative)
    return sorted(found)


@contextmanager
def _temporary_beside(path: Path) -> Iterator[Path]:
    """A name for a temporary file in the same directory, which is gone afterwards whatever happens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _write_durably(path: Path, data: bytes) -> None:
    try:
        with path.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _move(directory: Path, target: Path) -> None:
    """Rename, or copy and remove when the two lie on different file systems."""
    try:
        directory.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copytree(directory, target)
        shutil.rmtree(directory)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
