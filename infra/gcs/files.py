"""Files of others in a bucket, such as a model's weights, read to this machine. They have no
manifest: the service's checksums count."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from infra.gcs.bucket import Bucket
from infra.gcs.download import Receiver
from infra.gcs.requests import Stored
from infra.settings import Settings
from infra.store.objects import Damaged
from infra.store.space import require_space
from schemas.artifact import FileEntry
from schemas.base import InputError, digest

log = logging.getLogger("lyceum.gcs")


def listing(uri: str, settings: Settings) -> dict[str, Stored]:
    """The files below `gs://BUCKET/DIRECTORY`, by names relative to it. Raises InputError if that
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
    directory = Path(settings.cache) / "models" / f"gs-{digest(uri)[:16]}"
    receiver = Receiver(bucket, path, directory, directory / ".parts")
    for local in directory.rglob("[!.]*"):  # removed from the bucket since
        name = local.relative_to(directory).as_posix()
        if local.is_file() and name not in stored and not name.startswith(".parts/"):
            local.unlink(missing_ok=True)  # another process may be as far
    entries = [
        FileEntry(path=name, size=stored[name].size, sha256="", crc32c=stored[name].crc32c)
        for name in needed(stored)
    ]
    absent = receiver.absent(entries)
    size = sum(entry.size for entry in absent)
    require_space(directory, size, uri)
    if absent:
        log.info("%s: reading %d files, %.2f GB", uri, len(absent), size / 1e9)
    try:
        return receiver.receive(absent)
    except Damaged as error:
        name, _, problem = error.problems[0].partition(": ")
        if listing(uri, settings).get(name) != stored[name]:
            raise InputError(
                f"{uri}/{name} was replaced or removed while it was read; run again."
            ) from error
        raise ConnectionError(
            f"{uri}/{name}: what comes is not what the service's checksum says ({problem})."
        ) from error


def _bucket(uri: str, settings: Settings) -> tuple[Bucket, str]:
    name, _, path = uri.removeprefix("gs://").rstrip("/").partition("/")
    return Bucket(name, "", Path(settings.cache), settings), path
