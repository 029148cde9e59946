"""Objects in a directory (`infra.store.objects`).

Durability: `create` and `put_tree` reach the disk before they return; `write` is atomic but may be
lost with the machine's power (status files, run records: views that can be rebuilt).
"""

import base64
import errno
import fcntl
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

import google_crc32c

from infra.store.objects import Found, Objects, checked_name, name_problem
from schemas.artifact import FileEntry
from schemas.base import InputError

TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}")
"""Names of files that become objects when they are written to the end."""
_OF_SYSTEM = re.compile(r"\.DS_Store|\._.*|\.nfs[0-9a-f]+|\.fuse_hidden[0-9a-f]+")
"""Names of files that a system leaves beside those that it is shown, or that are open."""
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)
_ROTTEN = (errno.EIO, errno.EBADMSG, errno.ENOENT)
"""What a file answers whose bytes are lost, as file systems with checksums say it."""
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
_A_FILE = (
    "this path, or a part of it, is a file, and a store is a directory. Give --store another path,"
    " for example ./.lyceum."
)
_NOT_A_DIRECTORY = (errno.ENOTDIR, errno.EEXIST)
_NO_NAME = (errno.ENAMETOOLONG, errno.ELOOP)


def is_disk_full(error: BaseException) -> bool:
    """Whether this error, or one of its causes, means that the disk is full (native libraries say
    so in words only)."""
    return any(
        (isinstance(link, OSError) and link.errno in _DISK_FULL)
        or "No space left on device" in str(link)
        for link in causes(error)
    )


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it wraps."""
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


class Files(Objects):
    """Objects below `root`, an absolute directory; `uri` names it in messages."""

    def __init__(self, root: Path, uri: str) -> None:
        self.root = root
        self.uri = uri

    def path(self, name: str) -> Path:
        """The path of the object `name`. Raises ValueError for a name that is not allowed."""
        return self.root / checked_name(name)

    def require(self) -> None:
        """See Objects: raises InputError when something that is no directory lies where the root
        should be."""
        with self._possible():
            if self.root.exists() and not self.root.is_dir():
                raise InputError(f"store {self.uri}: {self.root}: {_A_FILE}")

    def prepare(self) -> None:
        """Create the root if it is missing, and prove that a file can be written below it. Raises
        InputError when it cannot."""
        with self._possible():
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

    def location(self) -> None:
        return None

    @contextmanager
    def _possible(self) -> Iterator[None]:
        """`explained`; any other error of the system means that the place is wrong, too, as long as
        no store has been there."""
        try:
            with self.explained(self.root):
                yield
        # a directory of a thousand levels is made by recursion
        except (OSError, RecursionError) as error:
            why = getattr(error, "strerror", None) or error
            raise InputError(
                f"store {self.uri}: {self.root}: {why}. Give --store another path, for example"
                " ./.lyceum."
            ) from error

    @contextmanager
    def explained(self, what: Path | str) -> Iterator[None]:
        """Turn the operating system's errors into InputError: what is unreadable or unwritable,
        why, and the fix."""
        try:
            yield
        except OSError as error:
            place = f"store {self.uri}: {error.filename or what}"
            if is_disk_full(error):
                raise InputError(
                    f"{place}: no space is left on the disk. Free some, or give --store a place on"
                    " another disk."
                ) from error
            if error.errno in _NOT_WRITABLE:
                raise InputError(
                    f"{place}: {error.strerror}. Give --store a directory that you may read and"
                    " write, or change its permissions."
                ) from error
            if error.errno in _NOT_A_DIRECTORY:
                raise InputError(f"{place}: {_A_FILE}") from error
            if error.errno in _NO_NAME:
                raise InputError(
                    f"{place}: {error.strerror}. Give --store a shorter path, for example"
                    " ./.lyceum."
                ) from error
            raise

    def read(self, name: str, seconds: float | None = None) -> bytes | None:
        path = self.path(name)
        with self.explained(path):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                return None

    def read_all(self, names: Sequence[str]) -> list[bytes | None]:
        return [self.read(name) for name in names]

    def write(self, name: str, data: bytes, seconds: float | None = None) -> None:
        """See Objects. A directory answers at once or not at all: `seconds` changes nothing."""
        path = self.path(name)
        with self.explained(path), temporary_beside(path) as temporary:
            temporary.write_bytes(data)
            os.replace(temporary, path)

    def create(self, name: str, data: bytes) -> bool:
        path = self.path(name)
        with self.explained(path), temporary_beside(path) as temporary:
            _write_durably(temporary, data)
            if not self._link(temporary, path):
                return False
            self._sync_directories(path.parent)
            return True

    def _link(self, path: Path, target: Path) -> bool:
        """Give a file a second name, unless something has it. A file system without hard links
        loses the first one, and keeps processes of one machine apart, of several not."""
        try:
            os.link(path, target)
        except FileExistsError:
            # NFS repeats a request whose answer was lost, and finds what it has made itself
            return path.stat().st_nlink == 2
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            with (self.root / ".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if target.exists():
                    return False
                path.rename(target)
        return True

    def set_aside(self, name: str, aside: str, expected: bytes) -> bool:
        """See Objects.

        It compares before the rename, and again after it, for another may have come between: then
        whoever looks finds no object for a moment, rather than a wrong one.
        """
        path, target = self.path(name), self.path(aside)
        with self.explained(path):
            try:
                if path.read_bytes() != expected:
                    return False
                path.rename(target)
            except FileNotFoundError:
                return False
            if target.read_bytes() == expected:
                return True
            self._link(target, path)  # a third one that was created meanwhile stays
            target.unlink(missing_ok=True)
            return False

    def children(self, name: str) -> list[str]:
        """See Objects; temporary files are left out."""
        path = self.path(name)
        with self.explained(path):
            try:
                return sorted(child for child in os.listdir(path) if name_problem(child) is None)
            except (FileNotFoundError, NotADirectoryError):
                return []

    def objects(self, name: str) -> Iterator[Found]:
        """See Objects; temporary files that a killed process left are objects too: their size
        counts."""
        top = self.path(name)
        with self.explained(top):
            for parent, directories, files in os.walk(top):
                directories.sort()
                for file in sorted(files):
                    path = Path(parent, file)
                    with suppress(FileNotFoundError):
                        status = path.lstat()
                        yield Found(
                            path.relative_to(self.root).as_posix(), status.st_size, status.st_mtime
                        )

    def each(self, name: str, *files: str) -> Iterator[Found]:
        for found in (f"{name}/{child}/{file}" for child in self.children(name) for file in files):
            path = self.path(found)
            with self.explained(path), suppress(FileNotFoundError, NotADirectoryError):
                status = path.lstat()
                yield Found(found, status.st_size, status.st_mtime)

    def remove(self, name: str) -> None:
        path = self.path(name)
        with self.explained(path), suppress(FileNotFoundError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()

    def put_tree(self, directory: Path, name: str, entries: Sequence[FileEntry]) -> None:
        """See Objects: a rename where both lie on one file system."""
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

    def check_tree(self, name: str, entries: Sequence[FileEntry]) -> list[str]:
        """See Objects: reads every byte."""
        directory = self.path(name)
        with self.explained(directory):
            try:
                present = set(files_below(directory))
            except ValueError as error:
                return [str(error)]
        problems = [
            f"{extra}: is not in the manifest"
            for extra in sorted(present - {entry.path for entry in entries})
        ]
        for entry in entries:
            if entry.path not in present:
                problems.append(f"{entry.path}: is missing")
                continue
            with self.explained(directory / entry.path):
                try:
                    found = file_entry(directory, entry.path)
                except OSError as error:
                    if error.errno not in _ROTTEN:
                        raise
                    problems.append(f"{entry.path}: cannot be read ({error.strerror})")
                    continue
            if found.size != entry.size:
                problems.append(f"{entry.path}: has {found.size} bytes instead of {entry.size}")
            elif found.sha256 != entry.sha256:
                said = f"has sha256 {found.sha256} instead of {entry.sha256}"
                problems.append(f"{entry.path}: {said}")
        return problems

    def get_tree(
        self, name: str, entries: Sequence[FileEntry], wanted: Collection[str] | None = None
    ) -> Path:
        """See Objects: the files in place, without comparing them again, since `check_tree` has
        just read them."""
        return self.path(name)

    def _sync_directories(self, directory: Path) -> None:
        """Make the names of `directory` and of every directory between it and the root survive a
        power cut."""
        while directory != self.root.parent:
            _sync(directory)
            directory = directory.parent


def files_below(directory: Path) -> list[str]:
    """POSIX paths of all regular files below `directory`, sorted, without those that the system has
    left there; none if there is no such directory.

    Raises:
        ValueError: a symbolic link, a special file, or a name that is not allowed; an artifact is
            made of plain files.
        OSError: a directory cannot be read.
    """

    def refuse(error: OSError) -> None:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise error

    found = []
    for parent, subdirectories, names in os.walk(directory, onerror=refuse):
        for name in [*subdirectories, *(one for one in names if not _OF_SYSTEM.fullmatch(one))]:
            path = Path(parent, name)
            relative = PurePosixPath(path.relative_to(directory)).as_posix()
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise ValueError(
                    f"{relative!r} is not a plain file; an artifact holds no links, sockets or"
                    " devices"
                )
            problem = name_problem(relative)
            if problem:
                raise ValueError(problem)
            if path.is_file():
                found.append(relative)
    return sorted(found)


def file_entry(directory: Path, name: str) -> FileEntry:
    """The size and digests of a local file, read once."""
    sha256, crc32c, size = hashlib.sha256(), google_crc32c.Checksum(), 0
    with (directory / name).open("rb", buffering=0) as file:
        # no larger than the file, for making a buffer takes longer than reading a small file
        most = min(1 << 20, os.fstat(file.fileno()).st_size + 1)
        buffer = memoryview(bytearray(most))
        while count := file.readinto(buffer):
            sha256.update(buffer[:count])
            crc32c.update(bytes(buffer[:count]))
            size += count
    return FileEntry(
        path=name,
        size=size,
        sha256=sha256.hexdigest(),
        crc32c=base64.b64encode(crc32c.digest()).decode("ascii"),
    )


@contextmanager
def temporary_beside(path: Path) -> Iterator[Path]:
    """A name for a temporary file in the same directory; the file is removed in any case."""
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
        shutil.rmtree(directory, ignore_errors=True)  # else what was copied would be removed, too


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # SMB and others sync no directories
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(descriptor)
