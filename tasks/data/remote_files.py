"""Data files at URLs: `gs://`, `s3://` and `hf://`, by fsspec, which loads gcsfs, s3fs or
huggingface_hub itself.

A file's digest is its file system's (size, and a checksum, or else the version), so a stage key
needs no download. Credentials are the file system's own: application default credentials, AWS_*,
HF_TOKEN. `STORAGE_EMULATOR_HOST` points gs:// at a fake.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from infra.distribution import absent
from schemas.base import InputError

_PACKAGES = {"gs": "gcsfs", "s3": "s3fs", "hf": "huggingface_hub"}
_FORMATS = (".jsonl", ".jsonl.gz", ".parquet")
_DIGESTS = (
    "md5Hash", "crc32c", "sha256", "lfs", "xet_hash", "blob_id", "ETag", "etag", "generation",
    "VersionId",
)  # fmt: skip
"""Keys of a listing that tell contents apart, best first: checksums, content addresses, then tags
and versions."""

_FOREIGN = (
    "aiohttp", "botocore", "datasets", "fsspec", "gcsfs", "google", "httpcore", "httpx",
    "huggingface_hub", "requests", "s3fs",
)  # fmt: skip
"""Packages whose exceptions are no OSError even when the network is at fault."""

_MOST_NAMES = 12
"""Names that a message lists of a directory."""


@dataclass(frozen=True)
class RemoteFile:
    """A file at a URL, as its file system lists it."""

    url: str
    digest: str

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.url.rpartition("/")[2]


def check_url(url: str) -> str:
    """Return `url` if it can be read, else raise ValueError (for pydantic validators)."""
    scheme, _, path = url.partition("://")
    if scheme not in _PACKAGES:
        raise ValueError(
            f"a data URL starts with one of {', '.join(_PACKAGES)} and ://; other files go into the"
            " --data directory"
        )
    if not path.lower().endswith(_FORMATS):
        raise ValueError(
            f"remote files are read as {', '.join(_FORMATS)}; fetch one of another format into the"
            " --data directory"
        )
    stars = any("**" in part and part != "**" for part in path.split("/"))
    if stars or "*" in path.partition("/")[0] or _strange(path):
        raise ValueError(
            "a data URL names its bucket, and has no :: ? [ ] # in it; only * is special, and ** is"
            " a part of its own"
        )
    return url


def _strange(path: str) -> bool:
    """Whether fsspec or datasets would take the path for a pattern, a chain of file systems or a
    version."""
    return "::" in path or any(character in path for character in "?[]#")


def remote_files(pattern: str, where: str) -> list[RemoteFile]:
    """The files that a URL (`*` allowed) matches, sorted by name. Raises InputError: there is none,
    or they cannot be listed."""
    import fsspec

    scheme = pattern.partition("://")[0]
    with explained(pattern, where):
        system, path = fsspec.url_to_fs(pattern, **storage_options(pattern))
        system.invalidate_cache()  # a file may have changed since another look
        try:
            listed = system.glob(path, detail=True) if "*" in path else {path: system.info(path)}
        except FileNotFoundError:
            listed = {}
        found = {name: about for name, about in sorted(listed.items()) if about["type"] == "file"}
        if not found:
            bucket = "/".join(path.split("/")[: 3 if scheme == "hf" else 1])
            raise FileNotFoundError(f"{path}; {_above(system, path, bucket)}")
    urls = {f"{scheme}://{name}": about for name, about in found.items()}
    if wrong := next(filter(_strange, urls), None):
        raise InputError(
            f"{where}: the name {wrong} holds one of :: ? [ ] #, which no data URL may; rename the"
            " file."
        )
    return [RemoteFile(url, _digest(url, about)) for url, about in urls.items()]


def _above(system: Any, path: str, bucket: str) -> str:
    """List the nearest directory above a path that has anything. Raises what the file system raises
    of a missing bucket."""
    place = path.partition("*")[0]
    while len(place) > len(bucket):
        place = place.rpartition("/")[0]
        with suppress(FileNotFoundError):
            if names := [one.rstrip("/").rpartition("/")[2] for one in system.ls(place, False)]:
                return f"{place} has {', '.join(sorted(names)[:_MOST_NAMES])}" + (
                    f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
                )
    system.ls(bucket, False)
    return f"{bucket} is empty"


def storage_options(url: str) -> dict[str, Any]:
    """fsspec's options for a URL: a fake of Cloud Storage has no credentials."""
    fake = url.startswith("gs://") and os.environ.get("STORAGE_EMULATOR_HOST")
    return {"token": "anon"} if fake else {}


def _digest(url: str, about: Mapping[str, Any]) -> str:
    key = next((key for key in _DIGESTS if about.get(key)), None)
    if key is None:
        raise InputError(
            f"{url}: its file system tells neither a checksum nor a version of it; fetch it into"
            " the --data directory."
        )
    value = about[key]["sha256"] if key == "lfs" else about[key]
    return f"{about['size']} bytes, {key} {value}"


@contextmanager
def explained(url: str, where: str) -> Iterator[None]:
    """Turn errors of a remote file into an InputError that says what to do."""
    scheme = url.partition("://")[0]
    try:
        yield
    except InputError:
        raise
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and (message := absent(error)):
            raise InputError(f"{where}: reading {url}: {message}") from error
        raise InputError(
            f"{where}: reading {url} needs the package {_PACKAGES[scheme]}: uv pip install"
            f" {_PACKAGES[scheme]}."
        ) from error
    except Exception as error:
        foreign = type(error).__module__.partition(".")[0] in _FOREIGN
        if not foreign and not isinstance(error, OSError | ValueError | RuntimeError):
            raise  # a bug of ours
        raise InputError(f"{where}: cannot read {url}: {_reason(url, error)}") from error


def _reason(url: str, error: Exception) -> str:
    """One line: what happened and what to do about it."""
    name = type(error).__name__
    said = (str(error).strip() or name).splitlines()[0][:300].rstrip(".")
    response = getattr(error, "response", None)
    code = str(getattr(error, "code", None) or getattr(response, "status_code", ""))
    if name == "OfflineModeIsEnabled":
        return "HF_HUB_OFFLINE is set, so the hub is not asked. Unset it, then run again."
    if isinstance(error, FileNotFoundError) or code == "404":
        return f"there is no such file, bucket or repository ({said}). Check the URL."
    denied = isinstance(error, PermissionError) or code in ("401", "403")
    denied |= said.startswith(("Forbidden", "Unauthorized"))
    if denied or "Credential" in name or name == "RefreshError":
        if url.startswith("hf://"):
            return (
                "there is no such data set, or no permission to read it"
                f" ({said}). {_mended_on_the_hub(url)}"
            )
        return (
            f"no permission ({said}). Log in as somebody who may read it (gcloud auth"
            " application-default login, AWS_*, HF_TOKEN)."
        )
    return f"{name}: {said}. Check the network and the URL, then run again."


def _mended_on_the_hub(url: str) -> str:
    """What to do about a URL of which the hub shows nothing: it says the same of what does not
    exist, of what is gated, and of what is private."""
    from huggingface_hub import get_token

    path = url.removeprefix("hf://")
    if not path.startswith(("datasets/", "spaces/", "buckets/")):
        return f"It is looked for among models; a data set is at hf://datasets/{path}."
    if get_token():
        return (
            "Check its name. A token was sent (HF_TOKEN, or that of `hf auth login`): it must be"
            " allowed to read this data set, and its account must have accepted the conditions on"
            " the page of a gated one."
        )
    return "Check its name; of a gated one, accept the conditions on its page and set HF_TOKEN."
