"""Objects: named byte strings that are read whole, replaced atomically, or created exactly once. A
directory and a bucket both hold them.

Names are POSIX paths below the root, every segment from an allow-list (`checked_name`), so no name
can leave the root. The interface is limited to what an object store can do: no appending, no locks,
no renaming of objects that others read. A set of objects below one prefix, a *tree*, is written
file by file and never changed; something else says whether it is complete (a manifest, created
last).

`infra.store.local_objects.Files` is a directory, `infra.gcs.bucket.Bucket` a prefix of a Cloud
Storage bucket; `infra.store.store` is their only user.
"""

import functools
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from schemas.artifact import FileEntry
from schemas.base import InputError

_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=@-]{0,127}")


def checked_name(name: str) -> str:
    """`name` if it is an allowed object name. Raises InputError otherwise, e.g. for `../x`,
    `/etc/passwd` or `a//b`."""
    problem = name_problem(name)
    if problem:
        raise InputError(problem)
    return name


@functools.lru_cache(4096)
def name_problem(name: str) -> str | None:
    """Why an object may not have this name, or None."""
    for segment in name.split("/"):
        if not _SEGMENT.fullmatch(segment):
            return (
                f"the name {name!r} is not allowed in a store: its part {segment!r} must be 1 to"
                " 128 letters, digits or _ . + = @ - and must not start with a dot."
            )
    return None


class Damaged(Exception):
    """The bytes read differ from those written; `problems` has a line for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = list(problems)


@dataclass(frozen=True)
class Found:
    """An object in a listing: its name, its size in bytes, and when it was last written (seconds
    since the epoch, the store's clock)."""

    name: str
    size: int
    written: float


class Objects(Protocol):
    """The interface of a place for a store's bytes. Every method may raise InputError for a cause
    that a person can fix.

    Attributes:
        uri: the root, `file:///...` or `gs://bucket/prefix`; names the store in messages, records
            and job specs.
    """

    uri: str

    def prepare(self) -> None:
        """Create the root if it is a directory (never a bucket), and prove that it can be read and
        written."""

    def require(self) -> None:
        """Raise InputError when the root cannot be a store. Creates nothing, and accepts a
        directory that does not exist yet."""

    def location(self) -> str | None:
        """The location where a bucket's service keeps its bytes, e.g. `US-CENTRAL1` or `EU`; None
        for a directory."""

    def read(self, name: str, seconds: float | None = None) -> bytes | None:
        """The object's bytes, or None if there is none. `seconds`: see `write`."""

    def read_all(self, names: Sequence[str]) -> list[bytes | None]:
        """`read` of each, in the order of names; a bucket is asked for several at a time."""

    def write(self, name: str, data: bytes, seconds: float | None = None) -> None:
        """Create or replace the object: readers see the old bytes or the new ones, nothing between.

        Args:
            seconds: give up after so long (OSError) if the place does not answer; None for the
                place's own patience.
        """

    def create(self, name: str, data: bytes) -> bool:
        """Create the object with all its bytes, durably; False, and nothing changes, if it exists.
        Of many racers exactly one gets True."""

    def set_aside(self, name: str, aside: str, expected: bytes) -> bool:
        """Rename the object to `aside` if it still holds the `expected` bytes; False if it is gone
        or another."""

    def children(self, name: str) -> list[str]:
        """Names directly below a prefix, sorted, each once, without those that are not allowed."""

    def objects(self, name: str) -> Iterator[Found]:
        """Every object below a prefix, in the order of names."""

    def each(self, name: str, *files: str) -> Iterator[Found]:
        """The objects `<name>/<one segment>/<file>` of these files, a segment's side by side, in
        the order of segments; no others."""

    def remove(self, name: str) -> None:
        """Remove the object of that name and every object below it, if there are any."""

    def put_tree(self, directory: Path, name: str, entries: Sequence[FileEntry]) -> None:
        """Move a local directory's files, which are `entries`, to the prefix `name`, durably.
        Nothing may lie there yet.

        The directory is gone afterwards. A failed move leaves nothing at `name`.
        """

    def check_tree(self, name: str, entries: Sequence[FileEntry]) -> list[str]:
        """Problems of the files below a prefix, one line each: missing, extra, wrong size, wrong
        bytes. Empty: they are `entries`.

        A directory reads every byte; a bucket compares the checksums that the service keeps,
        without a download.
        """

    def get_tree(
        self, name: str, entries: Sequence[FileEntry], wanted: Collection[str] | None = None
    ) -> Path:
        """A read-only local directory with the files of a tree; transferred bytes are compared with
        `entries`.

        Args:
            wanted: paths of the files that are needed; None for all. Others may be absent from the
                directory.

        Raises:
            Damaged: a file is missing or its bytes are not what its entry says.
        """
