"""Parses what people give as the location of a store, the value of `--store`, or of a file."""

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from infra.secrets import has_userinfo
from schemas.base import InputError

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def expanded(text: str | Path, what: str) -> Path:
    """The path that a person gave, with their home for `~`: a shell leaves that of `--data=~/rows`
    alone, and a form any. Raises as `given_path`."""
    given_path(text, what)
    return Path(text).expanduser()


def parsed_location(text: str) -> Path | tuple[str, str]:
    """The directory of a path or a `file://` URI; of a `gs://` URI the bucket and the prefix.

    Raises:
        InputError: anything else, or credentials in a URI.
    """
    if not text:
        raise InputError(
            "the store is empty. Give --store or LYCEUM_STORE a path (./.lyceum) or a URI:"
            " file:///absolute/path, gs://bucket/prefix."
        )
    if not _URI.match(text):
        return given_path(text, "store")
    if has_userinfo(text) or "?" in text or "#" in text:
        raise InputError(
            f"store {text.partition('://')[0]}://***: a store's URI holds no user name, password or"
            " query, because it is kept in records. Credentials come from the environment:"
            " GOOGLE_APPLICATION_CREDENTIALS, or `gcloud auth application-default login`."
        )
    if text.startswith("gs://"):
        bucket, _, prefix = text.removeprefix("gs://").rstrip("/").partition("/")
        return bucket, prefix
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise InputError(
            f"store {text!r}: not a URI: {error}. Write file:///absolute/path, gs://bucket/prefix"
            " or a plain path."
        ) from error
    if parts.scheme != "file":
        raise InputError(
            f"store {text!r}: the scheme {parts.scheme!r} is not supported. Valid: a path,"
            " file:///absolute/path, gs://bucket/prefix."
        )
    if parts.netloc not in ("", "localhost") or not parts.path:
        meant = f"file:///{parts.netloc}{parts.path}"
        raise InputError(
            f"store {text!r}: a file URI has three slashes and an absolute path. Write {meant}"
            " instead."
        )
    return given_path(unquote(parts.path, errors="surrogateescape"), "store")


def given_path(text: str | Path, what: str) -> Path:
    """The absolute path that a person gave, with `~` for their home. Raises InputError, which calls
    it `what`, for an impossible path."""
    if text == "":
        raise InputError(f"{what} is empty; give a path.")
    try:
        path = Path(text).expanduser().absolute()
        if "\0" in os.fsdecode(os.fsencode(path)):
            raise InputError(f"{what} {str(text)!r}: no path holds a NUL character.")
    except RuntimeError as error:
        raise InputError(
            f"{what} {str(text)!r}: there is no such user, so ~ leads nowhere. Write the path in"
            " full."
        ) from error
    except UnicodeEncodeError as error:
        raise InputError(f"{what} {str(text)!r}: no path holds half of a character.") from error
    except FileNotFoundError as error:
        raise InputError(
            f"{what} {str(text)!r}: the working directory was removed; change to another one."
        ) from error
    return path
