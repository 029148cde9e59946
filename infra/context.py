"""The context of a process: its settings, read once, and its stores, each opened once.

Commands, the flow, the worker and a machine's agent create it where they begin; deeper code uses
the same one.
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
"""Prefixes of the variables on which settings and stores depend."""


class Context:
    """Settings, stores and backends. Safe to use from several threads.

    Attributes:
        backends: target -> the backend that jobs of this process run on.

    Raises:
        InputError: a variable of the environment has an invalid value.
    """

    def __init__(self) -> None:
        self.settings = Settings.from_environment()
        self._stores: dict[str, Store] = {}
        self._writable: set[str] = set()
        self.backends: dict[str, JobBackend] = {}
        self._lock = threading.Lock()

    @functools.cached_property
    def tpu(self) -> TpuSettings:
        """Settings of TPUs, read at their first use."""
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
        """The backend of a target, made at its first use. A process has one, since it limits the
        jobs that run side by side and knows their cost."""
        with self._lock:
            if target not in self.backends:
                self.backends[target] = make(target)
            return self.backends[target]


def context() -> Context:
    """The context of this process. A changed environment makes a new one, since a worker takes over
    its job's variables."""
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
    """Use this context inside, whatever the environment, so that one process can play several."""
    token = _GIVEN.set(given)
    try:
        yield
    finally:
        _GIVEN.reset(token)
