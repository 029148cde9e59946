"""The context of a simulated process: settings with short times, and the store of its machine."""

import threading
from collections.abc import Callable
from pathlib import Path

from infra.context import Context
from infra.settings import Settings, TpuSettings
from infra.store.files import Files
from infra.store.store import Store

SETTINGS = Settings(
    poll_seconds=1.0, heartbeat_seconds=2.0, lease_seconds=9.0, stop_seconds=3.0, parallel_jobs=2,
    store_seconds=130.0, compile_cache="", cache="", plan=False, zones=(),
)  # fmt: skip
TPU = TpuSettings(
    project="simulated", poll_seconds=3.0, queue_seconds=60.0, boot_seconds=40.0,
    silence_seconds=12.0, delete_seconds=60.0,
)  # fmt: skip


class SimulatedContext(Context):
    """The context of a simulated process."""

    def __init__(self, settings: Settings, opened: Callable[[], Store]) -> None:
        # as Context.__init__, except that nothing is read from this machine's environment
        self.backends, self._lock = {}, threading.Lock()
        self.settings, self.tpu, self._opened = settings, TPU, opened  # type: ignore[misc]
        self._store: Store | None = None

    def store(self, location: str | Path | None = None, *, write: bool = True) -> Store:
        if isinstance(location, Path):  # this machine's copies of a bucket
            here = Files(location, location.as_uri())
            return Store(here, here)
        if self._store is None:
            self._store = self._opened()
        return self._store
