"""The disk of this machine's cache: its room, checked before a download instead of in the middle of
it, and why it cannot be written."""

import os
import shutil
from pathlib import Path

from infra.store.local_objects import temporary_beside
from schemas.base import InputError

SPARE = 256 << 20
"""Bytes that stay free: logs and checkpoints are written at the same time."""


def require_space(directory: Path, size: int, what: str) -> None:
    """Raises InputError when `size` more bytes do not fit on the disk of `directory`, which it
    creates, or it cannot be created; `what` is for the message."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(directory, error) from error
    free = shutil.disk_usage(directory).free
    if size and size + SPARE > free:
        raise InputError(
            f"{what} takes {size / 1e9:.1f} GB, and the disk of {directory} has {free / 1e9:.1f} GB"
            " free. Free some space, or set LYCEUM_CACHE to a directory on another disk."
        )


def write_whole(path: Path, text: str) -> None:
    """Write a file of the cache: others read it whole, at any moment. Raises OSError; nothing of a
    file that could not be written stays."""
    with temporary_beside(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)


def unwritable(directory: Path, error: OSError) -> InputError:
    """What to say of a directory of the cache in which something could not be written."""
    return InputError(
        f"{directory}: {error.strerror}; set LYCEUM_CACHE to a directory that can be written."
    )
