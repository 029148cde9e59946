"""A directory that a command makes for its user: it appears under its name when it is whole, or not
at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from infra.store.location import given_path
from schemas.base import InputError


def require_new(to: Path) -> Path:
    """The absolute path of a directory that can be made.

    Raises:
        InputError: a file is there, or a directory that holds something, its parent cannot be
            written.
    """
    to = given_path(to, "--to")
    try:
        if to.exists() and not (to.is_dir() and not any(to.iterdir())):
            raise InputError(
                f"{to} {'is not empty' if to.is_dir() else 'is a file'}; give the name of a new"
                " directory."
            )
        parent = next(one for one in to.parents if one.exists())
        if not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
            raise InputError(
                f"{to} cannot be written: {parent}"
                f" {'is read-only' if parent.is_dir() else 'is a file'}. Choose another place."
            )
    except OSError as error:
        raise InputError(f"{to} cannot be made: {error.strerror}. Choose another place.") from error
    return to


@contextmanager
def new_directory(to: Path) -> Iterator[Path]:
    """An empty directory beside `to` that gets its name at the end; after an error nothing is left.

    Raises:
        InputError: `to` is a mount point, or the system refuses to write there.
    """
    to = Path(os.path.realpath(to))  # nothing takes the name of a link to a directory
    if os.path.ismount(to):
        raise InputError(f"{to} is a mount point, which nothing can replace; name one in it.")
    partial = to.with_name(f".{to.name}.{uuid4().hex[:8]}.partial")
    try:
        partial.mkdir(parents=True)
        yield partial
        partial.rename(to)
    except OSError as error:
        place = Path(error.filename or partial)
        here = partial.is_relative_to(place) or place.is_relative_to(partial)
        if error.errno is None or not here:  # a library's or the store's
            raise
        raise InputError(
            f"{to} cannot be written: {error.strerror or error}. Choose another place."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
