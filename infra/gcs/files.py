"""Files of others in a bucket, such as a model's weights, read to this machine. They have no
manifest: the service's checksums count."""

import base64
import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import google_crc32c

from infra.gcs.bucket import Bucket
from infra.gcs.download import SLICE, pieces
from infra.gcs.requests import Missing, Stored, Timeout, in_parallel
from infra.settings import Settings
from infra.store.space import require_space
from schemas.base import InputError, digest

log = logging.getLogger("lyceum.gcs")

_HAVE = ".have.json"
"""Beside the files: name -> size and crc32c of those that came whole."""


def listing(uri: str, settings: Settings) -> dict[str, Stored]:
    """What lies below `gs://BUCKET/DIRECTORY`, by names relative to it. Raises InputError if that
    is nothing, or cannot be read."""
    bucket, path = _bucket(uri, settings)
    stored, _ = bucket.examine(path, [], extra=False)
    # no name leads out of a directory
    found = {
        name: one for name, one in stored.items() if not {"", ".", ".."} & set(name.split("/"))
    }
    if not found:
        raise InputError(
            f"{uri}: there is nothing below it in the bucket. Look: gcloud storage ls"
            f" {uri.rpartition('/')[0]}/"
        )
    return found


def fetch(uri: str, settings: Settings, needed: Callable[[Iterable[str]], list[str]]) -> Path:
    """A directory of this machine's cache with files of `gs://BUCKET/DIRECTORY`. What is there
    already, unchanged, is not read again.

    Args:
        needed: of the names below the directory, those that are wanted.

    Raises:
        InputError: nothing is there, it cannot be read, or the disk is too small.
        ConnectionError: the service does not answer, or again and again sends bytes that its own
            checksum disproves.
    """
    bucket, path = _bucket(uri, settings)
    stored = listing(uri, settings)
    directory = Path(settings.cache).expanduser() / "models" / f"gs-{digest(uri)[:16]}"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of all processes of this machine only one downloads
        have = _have(directory)
        wanted = {name: stored[name] for name in needed(stored)}
        for name in have.keys() - stored.keys():  # removed from the bucket since
            (directory / name).unlink(missing_ok=True)
        absent = [
            name
            for name, one in wanted.items()
            if have.get(name) != [one.size, one.crc32c] or not (directory / name).exists()
        ]
        size = sum(wanted[name].size for name in absent)
        require_space(directory, size, uri)
        if absent:
            log.info("%s: reading %d files, %.2f GB", uri, len(absent), size / 1e9)
        have = {name: value for name, value in have.items() if name in stored}
        for name in absent:
            _receive(bucket, f"{path}/{name}", wanted[name], directory / name)
            have[name] = [wanted[name].size, wanted[name].crc32c]
            _remember(directory, have)
    return directory


def _bucket(uri: str, settings: Settings) -> tuple[Bucket, str]:
    name, _, path = uri.removeprefix("gs://").rstrip("/").partition("/")
    return Bucket(name, "", Path(settings.cache).expanduser(), settings), path


def _have(directory: Path) -> dict[str, list[int | str]]:
    try:
        have: dict[str, list[int | str]] = json.loads(
            (directory / _HAVE).read_text(encoding="utf-8")
        )
    except FileNotFoundError:
        return {}
    return have


def _remember(directory: Path, have: Mapping[str, list[int | str]]) -> None:
    new = directory / f"{_HAVE}.new"
    new.write_text(json.dumps(have), encoding="utf-8")
    new.replace(directory / _HAVE)


def _receive(bucket: Bucket, path: str, stored: Stored, target: Path) -> None:
    """One object, slices of it side by side, compared with its checksum; once more if that does not
    fit."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    for last in (False, True):
        with part.open("wb") as file:

            def slice_at(start: int, number: int = file.fileno()) -> None:
                stop = min(start + SLICE, stored.size)
                bucket.ask(
                    lambda timeout: _slice(
                        bucket, path, stored.generation, start, stop, number, timeout
                    )
                )

            try:
                in_parallel(slice_at, range(0, stored.size, SLICE))
            except Missing as error:
                raise InputError(
                    f"gs://{bucket.name}/{path} was replaced or removed while it was read; run"
                    " again."
                ) from error
        if _crc32c(part) == stored.crc32c:
            part.replace(target)
            return
        if last:
            raise ConnectionError(
                f"gs://{bucket.name}/{path}: what comes is not what the service's checksum says."
            )


def _slice(
    bucket: Bucket, path: str, generation: int, start: int, stop: int, file: int, timeout: Timeout
) -> None:
    """Write bytes `start` to `stop` of an object to their place in a file."""
    for piece in pieces(bucket, path, generation, start, stop, timeout):
        os.pwrite(file, piece, start)
        start += len(piece)


def _crc32c(path: Path) -> str:
    checksum = google_crc32c.Checksum()
    with path.open("rb") as file:
        while piece := file.read(SLICE):
            checksum.update(piece)
    return base64.b64encode(checksum.digest()).decode("ascii")
