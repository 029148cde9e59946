"""Data files, their names and digests: those of the data directory (`--data`), which no path may
leave, and those at URLs."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from schemas.base import InputError, nearest
from tasks.data.remote_files import RemoteFile, check_url, remote_files

_SHOWN = 12
"""Files listed in a message about a missing one."""


def check_data_path(path: str) -> str:
    """Return `path` if it is a readable URL, or relative and below its directory; else raise
    ValueError (for pydantic validators)."""
    if "://" in path:
        return check_url(path)
    pure = PurePosixPath(path)
    if not path.strip() or pure.is_absolute() or ".." in pure.parts or "\\" in path or "\0" in path:
        raise ValueError(
            "a data path is relative to the --data directory, with / between its parts and no '..'"
        )
    if any("**" in part and part != "**" for part in pure.parts):
        raise ValueError(
            "** in a data path stands for any directories and is a part of its own: a/**/b.jsonl"
        )
    return path


def files_below(directory: Path) -> list[str]:
    """All files below a directory, by their names relative to it."""
    paths = (path for path in directory.rglob("*") if path.is_file())
    return sorted(path.relative_to(directory).as_posix() for path in paths)


def data_files(
    data: Path | None, pattern: str, where: str
) -> Sequence[tuple[str, Path | RemoteFile]]:
    """The files that `pattern` (a relative path or a URL, `*` allowed) matches, sorted by name:
    (path relative to `data`, or URL; the file).

    Raises:
        InputError: there is no data directory, no such file, a link out of the directory, or
            something that is no file.
    """
    if "://" in pattern:
        return [(file.url, file) for file in remote_files(pattern, where)]
    if data is None:
        raise InputError(f"{where} reads {pattern} from a data directory: name it with --data DIR.")
    root = data.resolve()
    try:
        # only `*` is special here; brackets make glob take [ and ? literally, as in a file's
        # name
        named = re.sub(r"[\[?]", r"[\g<0>]", pattern)
        matches = sorted(data.glob(named)) if "*" in pattern else [data / pattern]
        found = [(match.relative_to(data).as_posix(), match) for match in matches if match.exists()]
    except OSError as error:
        raise InputError(
            f"{where}: cannot look for {pattern} in --data {data}: {error.strerror}. Check the path"
            " and its permissions."
        ) from error
    if not found:
        present = files_below(data)
        shown = nearest(pattern, present) if present else " It holds no files."
        if len(present) > _SHOWN:
            shown = f" It holds {len(present)} files, e.g. {', '.join(present[:_SHOWN])}."
        raise InputError(f"{where}: --data {data} has no file {pattern}.{shown}")
    for name, file in found:
        if not file.resolve().is_relative_to(root):
            raise InputError(
                f"{where}: {name} is a link that leads out of --data {data} (to {file.resolve()});"
                " copy the file there instead."
            )
        if not file.is_file():
            raise InputError(
                f"{where}: {name} in --data {data} is not a file; name the files in it, e.g. path ="
                f" '{name}/*.jsonl'."
            )
    return found


def matches(pattern: str, name: str) -> bool:
    """Whether `data_files` finds a file of this name by the pattern: `*` stands for any part of a
    name, `**` for any directories."""
    special = {"**/": "(?:.*/)?", "*": "[^/]*"}
    parts = re.split(r"(\*\*/|\*)", pattern)
    return bool(re.fullmatch("".join(special.get(one, re.escape(one)) for one in parts), name))


def data_digests(data: Path | None, pattern: str, where: str) -> dict[str, str | int]:
    """`{"data/<name>": digest}` of the files that a pattern matches: sha256 of their bytes; for a
    remote one, its file system's digest. Raises as `data_files`, and InputError for a file that
    cannot be read."""
    found = data_files(data, pattern, where)
    return {f"data/{name}": _digest(name, file) for name, file in found}


def _digest(name: str, file: Path | RemoteFile) -> str:
    if isinstance(file, RemoteFile):
        return file.digest
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(
            f"cannot read data file {name} ({file}): {error.strerror}. Check its permissions."
        ) from error
