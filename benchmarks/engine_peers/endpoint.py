"""The endpoint of `benchmarks.engines`, until its parent ends:

    python -m benchmarks.engine_peers.endpoint teacher|judge AFTER SECONDS HONOURS

From its request number AFTER on (0: never) it answers 503 to everything for SECONDS. HONOURS is
empty, or it honours Idempotency-Key. Prints its URL.
"""

import os
import sys
import time
from typing import Any

from benchmarks.engine_peers.clients import SLOTS
from benchmarks.engine_peers.questions import ruled, taught
from tests.fakes.chat_server import ChatServer, Fault, Request

LATENCY = 0.2


def main() -> None:
    kind, after, seconds, honours = sys.argv[1:5]
    answer = taught if kind == "teacher" else ruled
    until: list[float] = []

    def fault(request: Request) -> Fault | None:
        if not int(after) or request.number < int(after):
            return None
        if not until:
            until.append(time.monotonic() + float(seconds))
        return Fault("status", 503) if time.monotonic() < until[0] else None

    def reply(body: dict[str, Any]) -> str:
        # curator's first request asks nothing: it reads the headers
        return answer(body["messages"][-1]["content"]) if body["messages"] else ""

    parent = os.getppid()
    manner: dict[str, Any] = {"latency": LATENCY, "slots": SLOTS, "idempotent": bool(honours)}
    with ChatServer(fault, **manner, reply=reply, record=False) as running:
        print(running.url, flush=True)
        while os.getppid() == parent:
            time.sleep(0.2)


if __name__ == "__main__":
    main()
