"""The backends of this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from infra.backend import JobBackend
from infra.context import context
from infra.targets import open_backend


def backend(target: str) -> JobBackend:
    """The backend of a target in this process."""
    return context().backend(target, open_backend)


def close_backends() -> list[str]:
    """Wait until nothing of this process' jobs is left running or is paid for. Returns a message
    per thing that is still there. Of backends that runs share (`shared_backends`) nothing is waited
    for."""
    if _SHARED.get():
        return []
    return [message for one in list(context().backends.values()) for message in one.close()]


@contextmanager
def shared_backends(say: Callable[[str], None]) -> Iterator[None]:
    """Runs that go on side by side inside share the backends: the first that ends leaves the jobs
    of the others alone. What is still there in the end is said."""
    token = _SHARED.set(True)
    try:
        yield
    finally:
        _SHARED.reset(token)
        for message in close_backends():
            say(message)


_SHARED: ContextVar[bool] = ContextVar("shared_backends", default=False)
