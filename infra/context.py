"""The context of a process: its settings, read once, and its stores, each opened once.

Commands, the flow, the worker and the agent of a machine ask for it where they begin; what lies
deeper asks for the same one.
"""

import functools
import os
import threading
from pathlib import Path

from infra.settings import Settings, TpuSettings
from infra.store.store import Store, open_store

_READ = ("LYCEUM_", "GOOGLE_", "STORAGE_EMULATOR_", "XDG_CACHE_", "HOME")
"""How variables begin that settings and stores are made of."""


class Context:
    """Settings and stores. Safe to use from several threads.

    Raises:
        InputError: a variable of the environment holds what its setting does not take.
    """

    def __init__(self) -> None:
        self.settings = Settings.from_environment()
        self._stores: dict[str, Store] = {}
        self._writable: set[str] = set()
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


def context() -> Context:
    """The context of this process; another one once its environment is another: a worker takes over
    the variables that its job brings."""
    global _current
    variables = os.environ.copy().items()
    environment = {name: value for name, value in variables if name.startswith(_READ)}
    if _current is None or _current[0] != environment:
        _current = environment, Context()
    return _current[1]


_current: tuple[dict[str, str], Context] | None = None
