"""JAX's persistent compilation cache, shared by processes that run at the same time.

JAX writes an entry in place. With a limit to the directory's size, and only then, it locks the
directory while it reads or writes (and removes what was used least), so that no process reads what
another is writing. Without, jobs side by side see "Error reading persistent compilation cache
entry: incomplete or truncated stream". A process that was killed while it wrote leaves half an
entry, which no other writes again, and none can be written beside an entry whose time of use JAX
cannot find: `variables` removes those before a process starts.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

ENTRY, USED = "-cache", "-atime"
"""How JAX calls an entry, and the file beside it that says when it was used."""

LIMIT = 4 * 2**30
"""Bytes. A program of a CPU takes up to a few MB."""


def variables(directory: str) -> dict[str, str]:
    """The environment in which JAX keeps what it compiles in this directory; none for the empty
    string. Where the caller's names another directory, that one is left as it is."""
    if not directory:
        return {}
    shared = {"JAX_COMPILATION_CACHE_DIR": directory}
    if os.environ.get("JAX_COMPILATION_CACHE_DIR", directory) == directory:
        forget_incomplete(Path(directory))
        shared["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(LIMIT)
    return shared | {
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        # with them the directory's path would be part of every entry's name
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
    }


def forget_incomplete(directory: Path) -> None:
    """Remove entries without a time of use, which JAX writes last. (One that is being written right
    now is compiled once more.)"""
    with suppress(OSError):  # of a directory that cannot be used JAX will tell
        for entry in directory.glob(f"*{ENTRY}"):
            if not used(entry).exists():
                entry.unlink(missing_ok=True)


def mark_used(entry: Path) -> None:
    """Note that an entry, which may not lie there yet, is used now."""
    used(entry).write_bytes(time.time_ns().to_bytes(8, "little"))


def used(entry: Path) -> Path:
    return entry.with_name(entry.name.removesuffix(ENTRY) + USED)


def use(directory: str) -> None:
    """Let JAX, which this process has not imported yet, keep there what it compiles, if the
    environment does not say otherwise."""
    for name, value in variables(directory).items():
        os.environ.setdefault(name, value)
