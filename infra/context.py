"""The context of a process: its settings, read once, and its stores, each opened once.

Commands, the flow, the worker and the agent of a machine ask for it where they begin; what lies
deeper asks for the same one.
"""

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from infra.backend import JobBackend
from infra.settings import Settings, TpuSettings
from infra.store.store import Store, open_store

_READ = ("LYCEUM_", "GOOGLE_", "STORAGE_EMULATOR_", "XDG_CACHE_", "HOME")
"""How variables begin that settings and stores are made of."""


class Context:
    """Settings, stores and backends. Safe to use from several threads.

    Attributes:
        backends: target -> the backend that jobs of this process run on.

    Raises:
        InputError: a variable of the environment holds what its setting does not take.
    """

    def __init__(self) -> None:
        self.settings = Settings.from_environment()
        self._stores: dict[str, Store] = {}
        self._writable: set[str] = set()
        self.backends: dict[str, JobBackend] = {}
        self._lock = threading.Lock()

    @functools.cached_property
    def tpu(self) -> TpuSettings:
        """Settings of TPUs, which a process that uses none does not read."""
        return TpuSettings.from_environment()

    def store(self, location: str | Path | None = None, *, write: bool = True) -> Store:
        """The store at a location, or without one that of the settings; see `open_store`."""
        text = self.settings.store if location is None else str(location)
        key = os.path.abspath(text) if text and "://" not in text else text
        with self._lock:
            if key not in self._stores or (write and key not in self._writable):
                store = open_store(text, self.settings, write=write)
                self._stores |= {key: store, store.uri: store}
                self._writable |= {key, store.uri} if write else set()
            return self._stores[key]

    def backend(self, target: str, make: Callable[[str], JobBackend]) -> JobBackend:
        """The backend of a target, made when it is first asked for; one per process, because it
        limits how many jobs run side by side and knows what they cost."""
        with self._lock:
            if target not in self.backends:
                self.backends[target] = make(target)
            return self.backends[target]


def context() -> Context:
    """The context of this process; another one once its environment is another: a worker takes over
    the variables that its job brings."""
    global _current
    if (given := _GIVEN.get(None)) is not None:
        return given
    variables = os.environ.copy().items()
    environment = {name: value for name, value in variables if name.startswith(_READ)}
    if _current is None or _current[0] != environment:
        _current = environment, Context()
    return _current[1]


_current: tuple[dict[str, str], Context] | None = None

_GIVEN: ContextVar[Context] = ContextVar("context")


@contextmanager
def using(given: Context) -> Iterator[None]:
    """Inside, the context is this one, whatever the environment: several processes may be played in
    one."""
    token = _GIVEN.set(given)
    try:
        yield
    finally:
        _GIVEN.reset(token)
