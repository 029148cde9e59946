"""The key of a Prefect server of ours, and the proof by which a server shows that it is ours before
anybody sends it the key.

A key lives as long as its server: an open browser sends it to whoever listens on the port later, so
it must be worthless by then. `lyceum serve` writes its URL and key below the Prefect home, in a
file that only its user can read; the server of a `lyceum run` has its key in memory only.

Whoever holds the key can make two codes with it (HMAC-SHA256):

- a proof, over a nonce that the asker chose and the port that it asked: the answer of our server
  on another port, relayed, is a wrong one;
- an entry, over a date and a nonce: a link that lets one browser in, once.
"""

import base64
import hashlib
import hmac
import http.client
import os
import secrets
import shlex
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from infra.secrets import learn

FILE = "lyceum-serve.env"
"""Below the Prefect home: the URL and the key of the running `lyceum serve`, as a shell reads
them."""

URL, KEY = "PREFECT_API_URL", "PREFECT_API_AUTH_STRING"

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Hosts that only this machine reaches."""

ENTRY_SECONDS = 600
"""How long a link lets a browser in."""


@dataclass(frozen=True)
class Api:
    """A Prefect API and its key (`user:password`), if it has one."""

    url: str
    key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.key:
            for form in (self.key, self.key.partition(":")[2], as_header(self.key)):
                learn(form)

    def __str__(self) -> str:
        return self.url

    @property
    def ui(self) -> str:
        return self.url.removesuffix("/api")

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which Prefect's own programs reach it."""
        return {URL: self.url, **({KEY: self.key} if self.key else {})}


def in_url(host: str) -> str:
    """An address as URLs have it."""
    return f"[{host}]" if ":" in host else host


def new_key() -> str:
    """A key as Prefect wants it, `user:password`."""
    return f"lyceum:{secrets.token_urlsafe(32)}"


def as_header(key: str) -> str:
    """The key as HTTP's Basic scheme and Prefect's UI send it."""
    return base64.b64encode(key.encode()).decode()


def write(home: Path, api: Api) -> Path:
    """Keep the URL and the key below the Prefect home, for other commands of this user."""
    path = home / FILE
    text = "".join(f"{name}={shlex.quote(value)}\n" for name, value in api.environment.items())
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    new.replace(path)
    return path


def read(home: Path) -> Api | None:
    """The file of `write`, if only this user can have written it; None without one."""
    try:
        with (home / FILE).open() as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & 0o077:
                return None
            values = dict(word.partition("=")[::2] for word in shlex.split(file.read()))
    except (OSError, ValueError):
        return None
    return Api(values[URL], values[KEY]) if values.keys() >= {URL, KEY} else None


def ours(home: Path) -> Api | None:
    """The running `lyceum serve` of a Prefect home, once it has proven that it has the key."""
    api = read(home)
    return api if api is not None and proves(api) else None


def same_server(url: str, api: Api) -> bool:
    """Whether a URL names the port of a server on this machine."""
    try:
        named, port = urlsplit(url), urlsplit(api.url).port
        return named.hostname in LOOPBACK and named.port == port
    except ValueError:
        return False


def proves(api: Api) -> bool:
    """Whether the server at a URL has the key. The key is not sent."""
    nonce, port = secrets.token_urlsafe(32), urlsplit(api.url).port
    if api.key is None or port is None:
        return False
    try:
        with urllib.request.urlopen(f"{api.ui}/lyceum/proof?nonce={nonce}", timeout=5) as response:
            answer = response.read(200)
    except (OSError, http.client.HTTPException, ValueError):
        return False
    return hmac.compare_digest(answer, proof(api.key, nonce, port).encode())


def proof(key: str, nonce: str, port: int) -> str:
    """The code by which the server on a port proves that it has the key."""
    return _code(key, f"proof {port} {nonce}")


def entry(key: str) -> str:
    """A token that lets one browser in, once, within `ENTRY_SECONDS`."""
    stamp = f"{int(time.time()) + ENTRY_SECONDS}.{secrets.token_urlsafe(16)}"
    return f"{stamp}.{_code(key, f'entry {stamp}')}"


def entered(key: str, token: str) -> bool:
    """Whether a token was made with the key and has not expired; the server sees to it that it is
    used once."""
    stamp, _, code = token.rpartition(".")
    until, _, _ = stamp.partition(".")
    return (
        hmac.compare_digest(code.encode(), _code(key, f"entry {stamp}").encode())
        and int(until) > time.time()
    )


def _code(key: str, text: str) -> str:
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()
