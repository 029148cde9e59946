"""Ctrl-C and SIGTERM as an event instead of an exception: nothing is torn down halfway, and a run
stops at places that it chose."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
