"""Targets: the names of places where jobs run, and the backend behind each."""

from infra.backend import JobBackend
from infra.context import context
from infra.tpu.api import TpuApi
from infra.tpu.types import TPU_TYPES
from schemas.base import InputError, nearest

TARGETS = ("local", *TPU_TYPES)


def check_target(target: str) -> None:
    """Raises InputError for a target that does not exist, naming those that do."""
    if target not in TARGETS:
        googles = {kind.accelerator: name for name, kind in TPU_TYPES.items()}
        meant = googles.get(target.lower(), target.lower())
        raise InputError(f"unknown target {target!r}.{nearest(meant, TARGETS)}")


def require_account(target: str) -> None:
    """Raises InputError where no TPU can be asked for: without credentials or a project. Nothing is
    sent."""
    _ = TpuApi(TPU_TYPES[target], context().tpu).project


def open_backend(target: str) -> JobBackend:
    """A backend for a target, by the settings of this process. Raises InputError for a target that
    does not exist, or settings of TPUs that do not fit."""
    check_target(target)
    if target == "local":
        from infra.local import LocalBackend

        return LocalBackend(context().settings)
    from infra.tpu.backend import CloudTpuBackend

    return CloudTpuBackend(TPU_TYPES[target], context().settings, context().tpu)
