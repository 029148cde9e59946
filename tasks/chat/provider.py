"""The URL and key of an OpenAI-compatible API: execution, read from the environment, never part of
a config or an artifact."""

import ipaddress
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from infra.secrets import LEAST, MASK, has_userinfo, mask
from infra.tpu.secret_manager import NAME, read_secret
from schemas.base import InputError

_URLS = {
    "openai": "https://api.openai.com/v1",
    "gemini": "https://generativelanguage.googleapis.com/v1beta/openai",
}
"""URLs of providers with one address; others need a variable."""

_NO_KEY = "none"
"""The client's key when there is none: vLLM and most private servers do not ask for one."""


@dataclass(frozen=True)
class Endpoint:
    """A provider's name, its URL up to and without `/chat/completions`, and its key, which no
    `repr` shows."""

    provider: str
    url: str
    key: str = field(default=_NO_KEY, repr=False)

    @property
    def place(self) -> str:
        """Its name and URL, for a message."""
        return f"the endpoint of {self.provider} at {self.url}"

    def scrub(self, text: str) -> str:
        """The text of an error without this key or any other secret, since servers quote the
        key."""
        return mask(self.hide(text.encode("utf-8", "replace")).decode())

    def hide(self, body: bytes) -> bytes:
        """Redact the key in a body. A key shorter than `LEAST`, such as `EMPTY` for vLLM, is no
        secret."""
        return body.replace(self.key.encode(), MASK.encode()) if len(self.key) >= LEAST else body

    def variable(self, what: str) -> str:
        """The environment variable of its `KEY` or `URL`."""
        return _variable(self.provider, what)


def endpoint_of(provider: str, environment: Mapping[str, str] = os.environ) -> Endpoint:
    """The endpoint of a provider, by three variables: upper case, other characters than A-Z and 0-9
    as `_`.

        <PROVIDER>_BASE_URL            where it is; not needed for those in `_URLS`
        <PROVIDER>_API_KEY             the key, if it asks for one
        <PROVIDER>_API_KEY_SECRET      instead of the key, where Google Secret Manager has it:
                                       `projects/PROJECT/secrets/NAME`

    Raises:
        InputError: the URL is not set, or none, or holds secrets; a hosted provider's key is not
            set; or the secret cannot be read.
    """
    url = _url(provider, environment)
    key_variable, secret_variable = (_variable(provider, what) for what in ("KEY", "SECRET"))
    key, secret = (environment.get(one, "").strip() for one in (key_variable, secret_variable))
    if not key and secret:
        key = read_secret(secret, secret_variable)
    if not key and url == _URLS.get(provider):
        raise InputError(
            f"provider {provider!r} at {url} needs a key: set {key_variable}, or {secret_variable}."
        )
    if not key.isascii() or any(character.isspace() for character in key):
        raise InputError(
            f"{key_variable} holds white space or characters that no HTTP header can carry; copy"
            " the key again."
        )
    return Endpoint(provider, url, key or _NO_KEY)


def travelling(config: Any, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that a job on another machine needs for its config's endpoints: URLs and names
    of secrets, never a key.

    Raises:
        InputError: an endpoint, or its key, is out of reach from there.
    """
    found: dict[str, str] = {}
    for provider in sorted(_providers(config)):
        url = _url(provider, environment)
        url_variable, key_variable, secret_variable = (
            _variable(provider, what) for what in ("URL", "KEY", "SECRET")
        )
        secret = environment.get(secret_variable, "").strip()
        if _is_here(urlsplit(url).hostname or ""):
            raise InputError(
                f"{url_variable}={url}: that is this machine, and the job runs on another one. Give"
                " the endpoint an address that a TPU VM reaches, e.g. an internal one of its"
                " network."
            )
        if secret and not NAME.fullmatch(secret):
            raise InputError(
                f"{secret_variable}={secret!r} is no name of a secret. Write"
                " projects/PROJECT/secrets/NAME."
            )
        if not secret and (environment.get(key_variable, "").strip() or url == _URLS.get(provider)):
            raise InputError(
                f"provider {provider!r} needs a key on the TPU VM, where {key_variable} is not"
                " sent. Keep it in Google Secret Manager, let the VM's account read it, and set"
                f" {secret_variable}=projects/PROJECT/secrets/NAME; see infra/README.md."
            )
        found |= {url_variable: url} | ({secret_variable: secret} if secret else {})
    return found


def _providers(config: Any) -> set[str]:
    """The providers in a config as JSON: every table that uses an endpoint names it as its
    `provider`."""
    inner = config.values() if isinstance(config, dict) else config
    if not isinstance(config, dict | list | tuple):
        return set()
    named = config.get("provider") if isinstance(config, dict) else None
    return ({named} if isinstance(named, str) else set()).union(*map(_providers, inner))


def _is_here(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def _url(provider: str, environment: Mapping[str, str]) -> str:
    """Up to and without `/chat/completions`. Raises InputError."""
    variable, key_variable = _variable(provider, "URL"), _variable(provider, "KEY")
    url = environment.get(variable) or _URLS.get(provider, "")
    if not url:
        raise InputError(
            f"provider {provider!r}: set {variable} to the URL of its OpenAI-compatible API, e.g."
            f" http://127.0.0.1:8000/v1 of a vLLM server, and {key_variable} if it asks for a key."
            f" Providers that need no URL: {', '.join(sorted(_URLS))}."
        )
    if has_userinfo(url) or "?" in url or "#" in url:
        raise InputError(
            f"{variable}: a URL holds no user name, password or query, because it is shown."
            f" {key_variable} is for a key."
        )
    with suppress(ValueError):  # of a port that is no number, and of half an IPv6 address
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return url.rstrip("/")
    raise InputError(
        f"{variable}={url!r} is no URL of an API. Write for example http://127.0.0.1:8000/v1."
    )


def _variable(provider: str, what: str) -> str:
    endings = {"URL": "_BASE_URL", "KEY": "_API_KEY", "SECRET": "_API_KEY_SECRET"}
    return re.sub(r"[^A-Z0-9]", "_", provider.upper()) + endings[what]
