"""Where an OpenAI-compatible API is and the key to it: execution, read from the environment, never part of a config or an artifact."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from infra.secrets import LEAST, MASK, has_userinfo, mask
from schemas.base import InputError

_URLS = {
    "openai": "https://api.openai.com/v1",
    "gemini": "https://generativelanguage.googleapis.com/v1beta/openai",
}
"""Of providers that have one address; every other says its own."""

_NO_KEY = "none"
"""What the client sends where there is no key: vLLM and most servers of one's own ask for none."""


@dataclass(frozen=True)
class Endpoint:
    """A provider's name, its URL up to and without `/chat/completions`, and its key, which no `repr` shows."""

    provider: str
    url: str
    key: str = field(default=_NO_KEY, repr=False)

    def scrub(self, text: str) -> str:
        """`text`, of an error, without this key or any other secret: servers quote the key."""
        return mask(self.hide(text.encode("utf-8", "replace")).decode())

    def hide(self, body: bytes) -> bytes:
        """A body without this key, and else as it is. A key that is shorter than `LEAST` is none: `EMPTY` for vLLM."""
        return body.replace(self.key.encode(), MASK.encode()) if len(self.key) >= LEAST else body

    def variable(self, what: str) -> str:
        """The environment variable of its `KEY` or `URL`."""
        return _variable(self.provider, what)


def endpoint_of(provider: str, environment: Mapping[str, str] = os.environ) -> Endpoint:
    """The endpoint of a provider: `<PROVIDER>_BASE_URL` and `<PROVIDER>_API_KEY`, upper case, other characters than A-Z and 0-9 as `_`.

    Raises:
        InputError: the URL is not set, or none, or holds secrets; or a hosted provider's key is not set.
    """
    url_variable, key_variable = _variable(provider, "URL"), _variable(provider, "KEY")
    url = environment.get(url_variable) or _URLS.get(provider, "")
    key = environment.get(key_variable, "").strip()
    if not url:
        raise InputError(
            f"provider {provider!r}: set {url_variable} to the URL of its OpenAI-compatible API, e.g. http://127.0.0.1:8000/v1 of a vLLM "
            f"server, and {key_variable} if it asks for a key. Providers that need no URL: {', '.join(sorted(_URLS))}."
        )
    if has_userinfo(url) or "?" in url or "#" in url:
        raise InputError(f"{url_variable}: a URL holds no user name, password or query, because it is shown. {key_variable} is for a key.")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"{url_variable}={url!r} is no URL of an API. Write for example http://127.0.0.1:8000/v1.")
    if not key and url == _URLS.get(provider):
        raise InputError(f"provider {provider!r} at {url} needs a key: set {key_variable}.")
    if not key.isascii() or any(character.isspace() for character in key):
        raise InputError(f"{key_variable} holds white space or characters that no HTTP header can carry; copy the key again.")
    return Endpoint(provider, url.rstrip("/"), key or _NO_KEY)


def _variable(provider: str, what: str) -> str:
    return re.sub(r"[^A-Z0-9]", "_", provider.upper()) + {"URL": "_BASE_URL", "KEY": "_API_KEY"}[what]
