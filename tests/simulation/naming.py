"""What operations on objects are called, in plans and in histories."""

import functools
import re

_LONG = re.compile(r"[0-9a-f]{16,}")
_PARTS = (
    ("lease.json", "lease"),
    ("seal.json", "seal"),
    ("job.json", "job"),
    ("status.json", "status"),
    ("tpu.json", "tpu"),
    ("run.json", "run"),
    ("/stages/", "run"),
    ("champions/", "champion"),
    ("nights/", "night"),
    ("/journal/", "journal"),
    ("/log/", "log"),
    ("/data/", "data"),
    ("manifest", "manifest"),
    ("/kept", "kept"),
)


@functools.lru_cache(1 << 14)
def operation(verb: str, name: str) -> str:
    """The name of an operation: `create lease`, `write status`, `read any`."""
    return f"{verb} {next((part for sign, part in _PARTS if sign in name), 'any')}"


def short(name: str) -> str:
    """An object's name with keys and random parts cut short."""
    return _LONG.sub(lambda found: found[0][:6], name)
