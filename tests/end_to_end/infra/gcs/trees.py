"""What tests of a bucket share: trees of files, and faults that pass."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from schemas.artifact import FileEntry

KB, MB = 1 << 10, 1 << 20
CHUNK, SLICE = 512 * KB, 256 * KB
PASSING: list[dict[str, Any]] = [
    {"action": "status", "code": 503},
    {"action": "status", "code": 403, "message": "Rate limit exceeded."},
    {"action": "reset_before"},
    {"action": "reset_after"},
    {"action": "duplicate"},
    {"action": "slow", "delay": 0.6},
]
BROKEN_BODIES: list[dict[str, Any]] = [
    {"action": "flip"},
    {"action": "truncate"},
    {"action": "truncate", "keep": 0},
    {"action": "status", "code": 200},  # as from a proxy that wants one to log in
]
Entries = Sequence[FileEntry]
Tree = Callable[..., tuple[Path, Entries]]


def label(fault: dict[str, Any]) -> str:
    return "-".join(str(value) for value in fault.values())[:40]


def digests(directory: Path, entries: Entries) -> list[str]:
    return [hashlib.sha256((directory / entry.path).read_bytes()).hexdigest() for entry in entries]


def are_intact(directory: Path, entries: Entries) -> bool:
    return digests(directory, entries) == [entry.sha256 for entry in entries]
