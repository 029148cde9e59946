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
    """Wait until none of this process' jobs runs or costs money. Returns a message for each that is
    still there. It does not wait for backends that runs share (`shared_backends`)."""
    if _SHARED.get():
        return []
    return [message for one in list(context().backends.values()) for message in one.close()]


@contextmanager
def shared_backends(say: Callable[[str], None]) -> Iterator[None]:
    """Share the backends among runs inside that go on side by side: the first that ends leaves the
    others' jobs alone. At the end, `say` names what is still there."""
    token = _SHARED.set(True)
    try:
        yield
    finally:
        _SHARED.reset(token)
        for message in close_backends():
            say(message)


_SHARED: ContextVar[bool] = ContextVar("shared_backends", default=False)
