"""The one place at which a recipe names code: rewards and metrics with `name = "function"` and
`path = "FILE.py:FUNCTION"` (`tasks.contract.function`).

Resolving a recipe reads the file and puts its text into the stage's config, as `source`, so that it
is part of the stage key and travels with the job. This process neither runs nor imports it. A run
begins only if the person who starts it names the file, too: `lyceum run --code FILE`. Unattended
runs (flows of a Prefect deployment, nights) refuse it (docs/security.md).
"""

import hashlib
import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from schemas.base import InputError

NAME = "function"
FIELDS = ("rewards", "metrics")
"""The fields of a stage's config with tables that may name code."""

LONGEST = 1_000_000
"""The most bytes of a file of code."""


def with_code(config: Mapping[str, Any], folders: Sequence[Path]) -> dict[str, Any]:
    """A stage's config with the text of the files of code that it names.

    Args:
        folders: to search: the recipe's, and the data directory.

    Raises:
        InputError: a path leaves its folder, the file is missing, or is no text, or the recipe sets
            `source` itself.
    """
    found = dict(config)
    for field, number, table in _tables(config):
        if "source" in table:
            raise InputError(
                f"config.{field}.{number}.source: code is a file of its own; write path ="
                ' "FILE.py:FUNCTION" and leave source out.'
            )
        if isinstance(path := table.get("path"), str):
            _, source = _read(path, folders, f"config.{field}.{number}.path")
            found[field] = list(found[field])
            found[field][number] = {**table, "source": source}
    return found


def require_consent(
    configs: Mapping[str, Mapping[str, Any]],
    folders: Sequence[Path],
    allowed: Collection[Path] | None,
) -> None:
    """Check that the person who starts a run has named each file of code that its stages run.

    Args:
        configs: stage name -> its config as JSON.
        allowed: the named files; None without a person.

    Raises:
        InputError: a stage runs a file that nobody named, or a named file is none that a stage
            runs.
    """
    unused = {_real(file): file for file in allowed or ()}
    named = [*unused]
    for stage, config in configs.items():
        for _, _, table in _tables(config):
            file, source = _read(table["path"], folders, f"stages.{stage}")
            if allowed is None:
                raise InputError(
                    f"stages.{stage} runs code that the recipe names, {table['path']}, and only"
                    f" `lyceum run --code {file.name}` on a command line does that: no deployment,"
                    " no schedule."
                )
            if file not in named:
                digest = hashlib.sha256(source.encode()).hexdigest()[:12]
                typed = shlex.quote(os.path.relpath(file))
                raise InputError(
                    f"stages.{stage} runs code with all your rights: {file} (sha256"
                    f" {digest}...). Read it; --code {typed} allows it."
                )
            if source != table["source"]:
                raise InputError(f"{file} was changed meanwhile; run the same command again.")
            unused.pop(file, None)
    for file in unused.values():
        raise InputError(
            f'--code {file}: no stage runs it; a reward or metric does that names it, path = "'
            f'{file.name}:FUNCTION".'
            if os.path.isfile(file)
            else f"--code {file}: there is no such file."
        )


def runs_code(config: Mapping[str, Any]) -> bool:
    """Whether a stage with this config runs code that a recipe names."""
    return any(True for _ in _tables(config))


def _tables(config: Mapping[str, Any]) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    for field in FIELDS:
        listed = config.get(field)
        for number, table in enumerate(listed if isinstance(listed, list | tuple) else ()):
            if isinstance(table, Mapping) and table.get("name") == NAME:
                yield field, number, table


def _real(path: Path) -> Path:
    """Where links lead. `Path.resolve` raises RuntimeError of one that leads to itself."""
    return Path(os.path.realpath(path))


def _read(path: str, folders: Sequence[Path], where: str) -> tuple[Path, str]:
    """The file of code at a path, `FILE.py:FUNCTION`, and its text."""
    name, _, _ = path.rpartition(":")
    pure = PurePosixPath(name)
    if not name.endswith(".py") or pure.is_absolute() or ".." in pure.parts or "\0" in name:
        raise InputError(
            f'{where}: {path!r} is not of the form "FILE.py:FUNCTION" with a relative path that'
            " stays beside the recipe or below --data."
        )
    for folder in folders:
        file = _real(folder / name)
        if not os.path.isfile(file):
            continue
        if not file.is_relative_to(_real(folder)):
            raise InputError(
                f"{where}: {name} is a link that leads out of {folder}; copy the file."
            )
        try:
            if file.stat().st_size > LONGEST:
                raise InputError(f"{where}: {file} has more than {LONGEST} bytes.")
            source = file.read_bytes().decode("utf-8")  # every byte counts, ends of lines, too
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{where}: cannot read {file}: {error}") from error
        if not source.strip():
            raise InputError(f"{where}: {file} is empty.")
        return file, source
    places = " or in ".join(map(str, folders)) or "a recipe that comes with Lyceum: name --data DIR"
    raise InputError(f"{where}: there is no file {name} in {places}.")
