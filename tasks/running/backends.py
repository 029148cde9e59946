"""The backends of this process."""

from infra.backend import JobBackend
from infra.context import context
from infra.targets import open_backend


def backend(target: str) -> JobBackend:
    """The backend of a target in this process."""
    return context().backend(target, open_backend)


def close_backends() -> list[str]:
    """Wait until nothing of this process' jobs is left running or is paid for. Returns a message
    per thing that is still there."""
    return [message for one in list(context().backends.values()) for message in one.close()]
