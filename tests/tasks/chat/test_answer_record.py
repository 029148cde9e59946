"""The store of records in threads (`tasks.chat.answer_record`)."""

import asyncio
import threading
from typing import Any

import pytest

from tasks.chat import answer_record
from tasks.chat.answer_record import RecordStore

PARTIES = 4


class Slow:
    """Answers that come when so many are asked for at a time."""

    def __init__(self) -> None:
        self._all_here = threading.Barrier(PARTIES, timeout=30)

    def get(self, name: str) -> bytes:
        self._all_here.wait()
        return name.encode()


async def _all(store: RecordStore, names: list[str]) -> list[bytes | None]:
    return await asyncio.gather(*map(store.get, names))


def test_a_slow_place_is_asked_by_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_record, "_LATE", 0.0)
    answers: Any = Slow()
    store = RecordStore(answers, PARTIES)
    names = [str(number) for number in range(2 * PARTIES)]
    assert asyncio.run(_all(store, names)) == [name.encode() for name in names]
    store.close()


def test_what_a_thread_raises_arrives_and_ends_nothing_else() -> None:
    class Broken:
        def get(self, name: str) -> bytes:
            if name == "1":
                raise OSError("a disk")
            return b"well"

    async def ask(store: RecordStore) -> None:
        with pytest.raises(OSError, match="a disk"):
            await store.get("1")
        assert await store.get("2") == b"well"

    answers: Any = Broken()
    store = RecordStore(answers, 1)
    asyncio.run(ask(store))
    store.close()
