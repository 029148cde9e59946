"""Ctrl-C, SIGTERM, and *Pause* in Prefect's UI as events instead of exceptions: nothing is torn
down halfway, and a run stops at places that it chose."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.running.watch import Watch

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOK_SECONDS = 1.0
"""Seconds between looks for whether Prefect has suspended the run."""

SAVE_SECONDS = 60.0
"""Seconds that the jobs of a suspended run have to save a checkpoint and to end."""


@contextmanager
def interruptible(stop: threading.Event) -> Iterator[None]:
    """While inside, the first signal sets `stop`; a second one raises KeyboardInterrupt at once.
    Outside the main thread this does nothing.

    Entered again inside the flow, because Prefect's engine puts its own SIGTERM handler over ours.

    A thread sets it: the handler runs in the main thread, which may hold the lock of this very
    event, waiting for it.
    """

    def handle(signum: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        threading.Thread(target=stop.set).start()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # `nohup` asks for SIGHUP to be ignored, and is heeded. A script's background jobs have SIGINT
    # ignored too, but a run must be stoppable.
    wanted = [
        number
        for number in SIGNALS
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
    ]
    before = {number: signal.signal(number, handle) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def suspendable(watch: "Watch") -> Iterator[None]:
    """While inside a flow, *Pause* in Prefect's UI pauses its jobs, and stops what still runs
    SAVE_SECONDS later. Prefect itself shows the run as suspended at once, and lets its stage run to
    the end, which may take hours."""
    from prefect.context import FlowRunContext

    flow, over = FlowRunContext.get(), threading.Event()

    def look() -> None:
        while flow is not None and not over.wait(LOOK_SECONDS):
            if flow.flow_run_suspension_request.is_requested():
                watch.pause.set()
                if not over.wait(SAVE_SECONDS):
                    watch.stop.set()
                return

    looking = threading.Thread(target=look, name="suspended", daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()
