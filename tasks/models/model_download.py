"""Downloads models from a hub or a bucket to this machine's cache: only the files that we read, and
only those that are missing or incomplete."""

import fcntl
import logging
import os
from pathlib import Path
from typing import Any, NoReturn

from infra.context import context
from infra.settings import Settings
from infra.store.space import require_space
from schemas.base import InputError
from tasks.models.hf_directory import TOKENIZER
from tasks.models.model_source import AT_HAND, NEEDED, Source, needed, source_of

log = logging.getLogger("lyceum.models")


def fetch(source: Source, settings: Settings, *, weights: bool = True) -> Path:
    """A local directory with a model's files.

    Args:
        source: any source except a random model.
        weights: False leaves out safetensors, enough to learn the architecture. Without such files,
            as at Kaggle, it downloads everything.

    Raises:
        InputError: a problem that a person must solve: no such model, a licence that was not
            accepted, no network, a full disk.
        ConnectionError: a bucket's service does not answer.
    """
    if source in AT_HAND:
        return AT_HAND[source]
    if source.kind == "hf":
        return _from_hub(source, settings, weights)
    if source.kind == "kaggle":
        return _from_kaggle(source, settings)
    if source.kind == "gs":
        from infra.gcs.files import fetch as fetch_files

        return fetch_files(
            f"gs://{source.path}",
            settings,
            lambda names: [name for name in needed(names) if weights or not _is_weight(name)],
        )
    return Path(source.path)


def tokenizer_of(model: str) -> bytes:
    """The serialised SentencePiece model of a recipe's `model`, without reading weights. Raises
    InputError as `fetch`."""
    if source_of(model).kind == "tiny":
        from tasks.models.tiny import tiny_tokenizer

        return tiny_tokenizer().model_proto
    directory = fetch(source_of(model), context().settings, weights=False)
    found = sorted(directory.rglob(TOKENIZER), key=lambda path: (len(path.parts), path))
    if not found:
        raise InputError(
            f"model {model!r}: {directory} has no {TOKENIZER}, so its tokens cannot be counted."
            " Copy it there from the base model."
        )
    return found[0].read_bytes()


def _is_weight(name: str) -> bool:
    return name.endswith(".safetensors")


def _from_hub(source: Source, settings: Settings, weights: bool) -> Path:
    """Download into the hub's own cache layout, below ours. It respects `HF_TOKEN` and
    `HF_ENDPOINT`."""
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import DryRunError, HFValidationError
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()  # they would fill the job's log
    cache = Path(settings.cache) / "huggingface"
    options: dict[str, Any] = {
        "repo_id": source.path,
        "revision": source.revision,
        "cache_dir": cache,
        "allow_patterns": [pattern for pattern in NEEDED if weights or not _is_weight(pattern)],
        "endpoint": os.environ.get("HF_ENDPOINT") or None,
    }
    try:
        try:
            coming = [
                file.file_size or 0
                for file in snapshot_download(**options, dry_run=True)
                if file.will_download
            ]
            require_space(cache, sum(coming), f"hf://{source.path}")
            if coming:
                told = source.path, len(coming), sum(coming) / 1e9
                log.info("hf://%s: reading %d files, %.2f GB", *told)
        except DryRunError:
            # the hub is out of reach: what follows finds the files in the cache, or says why not
            pass
        return Path(snapshot_download(**options))
    except InputError:
        raise
    except HFValidationError as error:
        raise InputError(f"model hf://{source.path}: {error}") from error
    except (OSError, httpx.HTTPError) as error:
        _explain_hub(source, error)


def _explain_hub(source: Source, error: Exception) -> NoReturn:
    import httpx
    from huggingface_hub import get_token
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    name = f"model hf://{source.path}"
    url = f"{os.environ.get('HF_ENDPOINT') or 'https://huggingface.co'}/{source.path}"
    who = "HF_TOKEN is not set" if get_token() is None else "the account of HF_TOKEN has no access"
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else 0
    if isinstance(error, GatedRepoError):
        raise InputError(
            f"{name} is gated, and {who}. Accept its licence at {url}, then set HF_TOKEN to a token"
            " of that account (https://huggingface.co/settings/tokens)."
        ) from error
    if isinstance(error, RevisionNotFoundError):
        raise InputError(
            f"{name} has no revision {source.revision!r}; see {url}/commits/main."
        ) from error
    if status == 401 and "Invalid credentials" in str(error):
        raise InputError(
            f"{name}: the hub does not know the token of HF_TOKEN or `hf auth login` (has it"
            " expired?), and refuses whatever is asked with it. Make another at"
            " https://huggingface.co/settings/tokens, or unset it for a model that is open to all."
        ) from error
    if isinstance(error, RepositoryNotFoundError) or status == 401:
        raise InputError(
            f"{name}: there is no such repository, or it is private and {who}. Check the name at"
            f" {url}."
        ) from error
    if isinstance(error, (LocalEntryNotFoundError, httpx.TransportError)):
        reason = first_line(error.__cause__ or error)
        raise InputError(
            f"{name} is not whole in the cache, and the hub cannot be reached ({reason}). Connect,"
            " or give a directory with the model."
        ) from error
    if status:
        raise InputError(f"{name}: the hub refuses the request ({first_line(error)}).") from error
    raise error


def _from_kaggle(source: Source, settings: Settings) -> Path:
    """Download into Kaggle's own cache layout, below ours unless KAGGLEHUB_CACHE is set. It
    respects `KAGGLE_API_TOKEN` and `~/.kaggle`."""
    import kagglehub
    import requests
    from kagglehub.cache import Cache
    from kagglehub.clients import build_kaggle_client
    from kagglehub.exceptions import DataCorruptionError, UnauthenticatedError
    from kagglehub.handle import parse_model_handle
    from kagglesdk.models.types.model_api_service import ApiGetModelInstanceRequest

    place = Path(os.environ.setdefault("KAGGLEHUB_CACHE", str(Path(settings.cache) / "kaggle")))
    place.mkdir(parents=True, exist_ok=True)
    handle = "/".join([source.path, *([source.revision] if source.revision else [])])
    name = f"model kaggle://{handle}"
    page = f"https://www.kaggle.com/models/{'/'.join(source.path.split('/')[:2])}"
    try:
        with (place / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # of all processes of this machine only one downloads
            model = parse_model_handle(handle)
            if Cache().load_from_cache(model) is None:
                request = ApiGetModelInstanceRequest()
                request.owner_slug, request.model_slug = model.owner, model.model
                request.instance_slug, request.framework = model.variation, model.framework_enum()
                with build_kaggle_client() as client:
                    found = client.models.model_api_client.get_model_instance(request)
                size = found.total_uncompressed_bytes
                require_space(place, 2 * size, f"kaggle://{handle} with the archive it comes in")
                log.info("kaggle://%s: reading %.2f GB", handle, size / 1e9)
            return Path(kagglehub.model_download(handle))
    except (UnauthenticatedError, requests.HTTPError) as error:
        status = getattr(getattr(error, "response", None), "status_code", 401)
        if status == 404:
            raise InputError(
                f"{name}: there is no such model, framework, variation or version. Check the name"
                f" at {page}."
            ) from error
        if status in (401, 403):
            raise InputError(
                f"{name} is not open to everybody. Accept its licence at {page}, then set"
                " KAGGLE_API_TOKEN to a token of that account (https://www.kaggle.com/settings)."
            ) from error
        raise InputError(f"{name}: Kaggle refuses the request ({first_line(error)}).") from error
    except (requests.ConnectionError, requests.Timeout) as error:
        raise InputError(
            f"{name} is not in the cache, and Kaggle cannot be reached ({first_line(error)})."
            " Connect, or give a directory with the model."
        ) from error
    except (DataCorruptionError, ValueError) as error:
        raise InputError(f"{name}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or its name."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
