"""Asking many questions: one request each or, where `LYCEUM_TEACHER_BATCH` says so, by files of
requests."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from tasks.chat.batch_files import ask_in_batches
from tasks.chat.engine import ChatEngine
from tasks.chat.reply import Reply
from tasks.chat.request import ChatRequest

T = TypeVar("T")


def ask_all(
    engine: ChatEngine, requests: Iterable[tuple[T, ChatRequest]]
) -> Iterator[tuple[T, Reply]]:
    """Yield each item with the reply to its request, in order. Raises what `ChatEngine.ask_singly`
    and `ask_in_batches` do."""
    return (
        ask_in_batches(engine, requests)
        if engine.settings.teacher_batch
        else engine.ask_singly(requests)
    )
