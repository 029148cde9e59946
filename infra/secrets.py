"""Masks secrets in everything that is stored or shown: logs, statuses, errors, recorded command
lines.

A recipe, a store and a job contain no credentials; those come from the environment, or by name from
Secret Manager (`infra.tpu.secret_manager`). But a library's message may quote one, so every text
that a run leaves goes through `mask`, as in the logs of CI services.
"""

import io
import os
import re
import sys
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

MASK = "***"

LEAST = 8
"""The least characters of a secret: masking every `test` or `1` would make a log unreadable."""

_WORD = r"key|token|secret|password|passwd|passphrase|auth|auth_string"
_VARIABLE = re.compile(rf"(?:{_WORD}|_pass|_pat)(?:_?\d+)?\Z", re.IGNORECASE)
_NAME = re.compile(r"projects/[^/\s]+/secrets/[^\s]+")
"""The name of a secret in Secret Manager, which is not secret itself: the value of a variable such
as OPENAI_API_KEY_SECRET."""
_USERINFO = re.compile(r"(?<=://)[^\s/]+@")
_ASSIGNED = re.compile(
    r"((?:api_?key|access_?key|private_?key|token|secret|password|passwd|passphrase|auth_string)"
    rf"[\"']?\s*[=:]\s*[\"']?)[^\s\"'&,;]{{{LEAST},}}",
    re.IGNORECASE,
)


_LEARNED: set[str] = set()


def learn(secret: str) -> None:
    """Let `mask` hide this value, too, from now on."""
    if len(secret) >= LEAST:
        _LEARNED.add(secret)


def mask(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """`text` with `***` for secrets, which are:

    - values of environment variables whose names end like those of credentials (`HF_TOKEN`,
      `AWS_SECRET_ACCESS_KEY`), and passwords in URLs that a variable holds (`https_proxy`); both
      only from `LEAST` characters on;
    - user names and passwords in URLs, `gs://user:password@bucket`;
    - what is assigned to such a name: `api_key=...`, `"token": "..."`, `?access_token=...`;
    - what was read from Secret Manager.
    """
    if not text:  # as of a log that says nothing new, each time that it is looked at
        return text
    for value in sorted(_secrets(environment), key=len, reverse=True):
        text = text.replace(value, MASK)
    return _ASSIGNED.sub(rf"\g<1>{MASK}", _USERINFO.sub(f"{MASK}@", text))


def has_userinfo(url: str) -> bool:
    """Whether a URL holds a user name or a password."""
    return _USERINFO.search(url) is not None


def _secrets(environment: Mapping[str, str]) -> Iterator[str]:
    yield from _LEARNED
    for name, value in environment.items():
        if _VARIABLE.search(name) and not _NAME.fullmatch(value):
            # a private key has several
            yield from (line for line in map(str.strip, value.splitlines()) if len(line) >= LEAST)
        for userinfo in _USERINFO.findall(value):
            password = userinfo[:-1].partition(":")[2]
            yield from (form for form in {password, unquote(password)} if len(form) >= LEAST)


def mask_output() -> None:
    """Mask all that Python prints in this process from now on, including logs and tracebacks. For
    processes whose output is stored."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        setattr(
            sys,
            name,
            _Masked(stream.buffer, encoding="utf-8", errors="backslashreplace", write_through=True),
        )


class _Masked(io.TextIOWrapper):
    """A text stream that masks what is written to it. A secret must come in one write, as `print`
    and `logging` do it."""

    def write(self, text: str) -> int:
        super().write(mask(text))
        return len(text)
