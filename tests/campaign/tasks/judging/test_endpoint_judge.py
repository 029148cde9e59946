"""A judge behind an endpoint that is down for 30 real seconds: no ruling changes."""

import time
from typing import Any

from tests.fakes.chat_server import ChatServer, Fault, Request
from tests.tasks.judging.test_endpoint_judge import (
    expected,
    judge,  # noqa: F401
    questions,
    rating,
    texts,
)


def test_a_real_outage_of_30_seconds_changes_no_ruling(judge: Any) -> None:
    """With the settings as they are: 503 to everything."""
    asked, began = questions(200), time.monotonic()
    ends: list[float] = []

    def fault(request: Request) -> Fault | None:
        if request.number == 80:
            ends.append(time.monotonic() + 30)
        return Fault("status", 503) if ends and time.monotonic() < ends[0] else None

    with ChatServer(fault, reply=rating, latency=0.2) as server:
        one = judge(server.url)
        assert texts(one.ask(asked)) == expected(asked)
    assert 30 < time.monotonic() - began < 50
    assert one.values()["abstained"] == 0
