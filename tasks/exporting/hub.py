"""Pushes a directory to a repository of the Hugging Face hub, by the hub's own client.

One commit has all files, so that nobody sees a part. Files are uploaded first, except those that
the hub already has from an earlier attempt, and a commit without changes is not made. Repositories
are private unless public is requested.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from schemas.base import InputError
from tasks.models.model_download import first_line
from tasks.models.model_source import ADAPTER_CONFIG

if TYPE_CHECKING:
    from huggingface_hub import HfApi

Kind = Literal["model", "dataset"]

STALE = (
    *("*.safetensors", "*.safetensors.index.json", "*.jsonl", "*_eval.png"),
    *(ADAPTER_CONFIG, "verification.json"),
)
"""Files of the repository to delete if the upload has none of that name: `transformers` would load
an earlier model's shards with this one's, or the base of earlier adapters in its place, and an
earlier proof is none of this model. What lies in folders is not ours."""

TOKENS = "https://huggingface.co/settings/tokens"


@dataclass(frozen=True)
class Pushed:
    """The result of a push: the page, the commit, and whether that is new."""

    url: str
    commit: str
    changed: bool


class Repository:
    """A repository of an account that may write to it.

    Attributes:
        name: ORGANISATION/NAME.
    """

    def __init__(self, name: str, kind: Kind, *, base: str | None, public: bool) -> None:
        """Open the repository, creating it if need be.

        Args:
            base: the published model from which the upload is derived; None: there is none.

        Raises:
            InputError: there is no token with write access; the name is malformed; the account has
                not accepted the licence of `base`; the repository is public although private was
                requested, or the other way round; or the hub is out of reach.
        """
        from huggingface_hub import HfApi
        from huggingface_hub.utils import logging, validate_repo_id

        logging.set_verbosity_error()
        self.name, self.kind = name, kind
        self._api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
        with explained(name):
            validate_repo_id(name)
        if name.count("/") != 1:
            raise InputError(f"--to {name}: give ORGANISATION/NAME, or your own ACCOUNT/NAME.")
        with explained(name):
            _require_writer(self._api)
            if base is not None:
                _require_licence(self._api, base)
            self._api.create_repo(name, repo_type=kind, private=not public, exist_ok=True)
            self._api.auth_check(name, repo_type=kind, write=True)
            private = self._api.repo_info(name, repo_type=kind).private
        prefix = "datasets/" if kind == "dataset" else ""
        self.url = f"{self._api.endpoint}/{prefix}{name}"
        if public == bool(private):
            raise InputError(
                f"{name} is {'private' if private else 'public'}: push"
                f" {'without' if public else 'with'} --public, or change that at"
                f" {self.url}/settings."
            )

    def push(self, files: Mapping[str, Path], message: str) -> Pushed:
        """Commit these files under their names in the repository; its other files stay, except
        `STALE` ones. Raises InputError; a retry does not send uploaded files again."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        with explained(self.name):
            before = self._api.repo_info(self.name, repo_type=self.kind).sha
            there = self._api.list_repo_files(self.name, repo_type=self.kind)
            old = (name for name in there if name not in files and "/" not in name)
            stale = [name for name in old if any(fnmatchcase(name, one) for one in STALE)]
            operations: list[Any] = [CommitOperationDelete(name) for name in stale]
            operations += [CommitOperationAdd(name, str(path)) for name, path in files.items()]
            commit = self._api.create_commit(
                self.name, operations, commit_message=message, repo_type=self.kind
            )
        return Pushed(self.url, commit.oid, commit.oid != before)


def _require_writer(api: "HfApi") -> None:
    from huggingface_hub import get_token

    if get_token() is None:
        raise InputError(
            f"no token of the hub: make one that may write at {TOKENS}, and set HF_TOKEN or run"
            " `hf auth login`."
        )
    token = api.whoami().get("auth", {}).get("accessToken", {})
    if token.get("role") == "read":
        raise InputError(f"the token may only read; make one that may write at {TOKENS}.")


def _require_licence(api: "HfApi", model: str) -> None:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        api.auth_check(model)
    except GatedRepoError as error:
        raise InputError(
            f"this is derived from {model}, whose licence the account of the token has not"
            f" accepted: accept it at {api.endpoint}/{model}."
        ) from error
    except RepositoryNotFoundError:
        return  # it is no longer published


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn errors of the hub, or of the way to it, into an InputError with the fix."""
    import httpx
    from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled

    try:
        yield
    except InputError:
        raise
    except HFValidationError as error:
        raise InputError(f"--to {name}: {error}") from error
    except OfflineModeIsEnabled as error:
        raise InputError("HF_HUB_OFFLINE is set; unset it to push.") from error
    except (OSError, RuntimeError, ValueError, httpx.HTTPError) as error:
        _explain(name, error)


def _explain(name: str, error: BaseException) -> NoReturn:
    import httpx
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError

    cause = error
    while not isinstance(cause, HfHubHTTPError | httpx.TransportError) and cause.__cause__:
        cause = cause.__cause__  # a thread's error is wrapped
    again = "Run the same command again: what was uploaded is not sent twice."
    if isinstance(cause, GatedRepoError):
        raise InputError(f"{name} is gated: ask for access on its page.") from error
    if isinstance(cause, HfHubHTTPError):
        status = cause.response.status_code
        said = (cause.server_message or str(cause)).strip().splitlines()[0]
        said += f"; {first_line(error)}" if error is not cause else ""  # which file it is
        fixes = {
            401: f"The token is not valid, or has no access: make another at {TOKENS}.",
            402: "The account's plan does not cover this.",
            403: "The token's account may not write there: ask the organisation for the right to"
            f" write, give the token that right at {TOKENS}, or push to another place.",
            404: f"There is no organisation or account {name.partition('/')[0]!r}, or the token"
            " does not see it: check --to.",
            413: "A file is larger than the hub takes.",
            429: f"The hub's limit of requests is used up; wait some minutes. {again}",
        }
        fix = fixes.get(status, again if status >= 500 else f"See {TOKENS} and --to.")
        raise InputError(f"the hub refuses {name} ({status}: {said}). {fix}") from error
    if isinstance(cause, httpx.TransportError):
        raise InputError(f"the hub cannot be reached ({first_line(cause)}). {again}") from error
    if isinstance(error, ValueError) and "LFS batch API" in str(error):
        said = " ".join(str(error).split())
        raise InputError(f"the hub does not take a file of {name}: {said}.") from error
    raise error
