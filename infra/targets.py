"""Targets: the names of places where jobs run, and the backend behind each."""

from infra.backend import JobBackend
from infra.local import LocalBackend
from infra.settings import Settings
from schemas.base import InputError, nearest

TARGETS = ("local",)


def check_target(target: str) -> None:
    """Raises InputError for a target that does not exist, naming those that do."""
    if target not in TARGETS:
        raise InputError(f"unknown target {target!r}.{nearest(target, TARGETS)}")


def open_backend(target: str, settings: Settings) -> JobBackend:
    """A backend for a target. Raises InputError for a target that does not exist."""
    check_target(target)
    return LocalBackend(settings)
