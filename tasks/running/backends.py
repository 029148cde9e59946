"""The backends of this process."""

import threading

from infra.backend import JobBackend
from infra.targets import open_backend


def backend(target: str) -> JobBackend:
    """The backend of a target; one per process, because it limits how many jobs run side by side
    and knows what they cost."""
    with _BACKENDS_LOCK:
        if target not in _BACKENDS:
            _BACKENDS[target] = open_backend(target)
        return _BACKENDS[target]


_BACKENDS: dict[str, JobBackend] = {}
_BACKENDS_LOCK = threading.Lock()


def close_backends() -> list[str]:
    """Wait until nothing of this process' jobs is left running or is paid for. Returns a message
    per thing that is still there."""
    return [message for one in list(_BACKENDS.values()) for message in one.close()]
