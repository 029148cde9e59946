"""How long a call takes, told so that a busy machine does not fail a test; a clock to be set."""

import time
from collections.abc import Callable


def takes_at_most(seconds: float, call: Callable[[], object], tries: int = 8) -> bool:
    """Whether a call's processor time, on this thread, is within a limit in the best of some tries.

    What else runs makes a call slower by chance and by times; what is quadratic is slow each time.
    """
    for _ in range(tries):
        began = time.thread_time()
        call()
        if time.thread_time() - began <= seconds:
            return True
    return False


class Clock:
    """Seconds that pass when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now
