"""A client that is killed at random moments and started again: what was answered and stored is
never asked for again.

What was under way at a kill is sent again with the same Idempotency-Key: billed once by a provider
that honours it, else twice.
"""

import json
import os
import random
import signal
import subprocess
from pathlib import Path

from infra.store.answers import Answers
from infra.store.store import open_store
from tests.fakes.chat_fixtures import message, question
from tests.fakes.chat_server import ChatServer, Fault, Request
from tests.fakes.process import python

REQUESTS = 300

CLIENT = """
import sys
from tests.fakes.chat_fixtures import engine, questions
with engine(sys.argv[1], sys.argv[2], concurrency=16) as running:
    replies = running.ask_singly(questions(int(sys.argv[3])))
    print(sum(reply.problem is None for _, reply in replies))
"""


def test_killed_at_random_and_resumed(tmp_path: Path) -> None:
    """By a provider that ignores Idempotency-Key; one that honours it, in a bucket, is in
    tests/end_to_end."""
    asks_for_nothing_again(str(tmp_path), idempotent=False)


def asks_for_nothing_again(store: str, idempotent: bool) -> None:
    """Kills strike at the n-th request, n random; one request in eight fails somehow, too."""
    rng = random.Random(3)
    faults = [Fault("cut"), Fault("status", 503), message(content="")]
    clients: list[subprocess.Popen[str]] = []
    strike: list[int] = []

    def fault(request: Request) -> Fault | None:
        if strike and request.number >= strike[0]:
            strike.clear()
            os.kill(clients[-1].pid, signal.SIGKILL)
        return faults[rng.randrange(3)] if request.again == 0 and rng.random() < 1 / 8 else None

    answers = Answers(open_store(store))
    stored: dict[str, int] = {}
    with ChatServer(fault, latency=0.01, slots=16, idempotent=idempotent) as server:
        asked_of = lambda text: sum(request.question == text for request in server.seen)  # noqa: E731
        for at in (40, 230):
            strike.append(server.count + at)
            clients.append(python("-c", CLIENT, server.url, store, REQUESTS))
            assert clients[-1].wait(300) == -signal.SIGKILL
            for number in range(REQUESTS):
                raw = answers.get(question(number).digest)
                # an empty answer is asked for again
                if raw and json.loads(raw)["body"]["choices"][0]["message"]["content"]:
                    stored.setdefault(f"say {number}", asked_of(f"say {number}"))
        clients.append(python("-c", CLIENT, server.url, store, REQUESTS))
        assert clients[-1].communicate(timeout=300)[0] == f"{REQUESTS}\n"
        assert len(stored) > 100
        assert {text: asked_of(text) for text in stored} == stored, (
            "a stored answer was asked for again"
        )
        if idempotent:
            assert set(server.keys.values()) == {1}, "one answer was billed twice"
        else:
            cut = sum(server.keys.values()) - len(server.keys) - 2 * 2 * 16
            assert cut <= REQUESTS / 8, (
                "billed twice: what was under way at a kill, and what the server cut off itself"
            )
