"""The context of a simulated process: settings with short times, and stores that are opened as
everywhere, on the simulated disk or in the simulated bucket."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from infra.context import Context
from infra.settings import Settings, TpuSettings
from infra.store import store
from infra.store.local_objects import Files

DIRECTORY = "file:///simulated"
BUCKET = "gs://simulated/lyceum"
"""Where the store lies, for all machines of a history."""

SETTINGS = Settings(
    poll_seconds=1.0, heartbeat_seconds=2.0, lease_seconds=9.0, stop_seconds=3.0, parallel_jobs=2,
    store_seconds=130.0, compile_cache="", cache="", plan=False, zones=(),
)  # fmt: skip
TPU = TpuSettings(
    project="simulated", poll_seconds=3.0, queue_seconds=60.0, boot_seconds=40.0,
    silence_seconds=12.0, delete_seconds=60.0,
)  # fmt: skip


class SimulatedContext(Context):
    """The context of a simulated process, whose machine keeps its copies in `cache`."""

    def __init__(self, settings: Settings, where: str, cache: Path) -> None:
        # as Context.__init__, except that nothing is read from this machine's environment
        self.backends, self._lock = {}, threading.Lock()
        self._stores, self._writable = {}, set()
        self.settings = settings.model_copy(update={"store": where, "cache": str(cache)})
        self.tpu = TPU


@contextmanager
def stores_on(disk: Callable[[], Files]) -> Iterator[None]:
    """Inside, a store in the directory of `DIRECTORY` lies on this disk."""

    def directory(root: Path) -> Files:
        return disk() if root.as_uri() == DIRECTORY else Files(root, root.as_uri())

    with patch.object(store, "_directory", directory):
        yield
