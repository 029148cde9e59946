"""`lyceum ask`: a greedy answer from the model of one of a run's stages, told as it is decoded. It
loads JAX into its own process."""

import os
from collections.abc import Callable, Iterator
from typing import Any

from flows.recipe.trained import trained_stage
from infra.context import context
from infra.store.store import Store
from schemas.base import InputError
from schemas.examples import parse_trace
from schemas.reports import RunRecord

RESPONSE_LENGTH = 1024
"""Tokens an answer may take."""


def answer(
    store: Store,
    record: RunRecord,
    question: str,
    stage: str | None,
    tell: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Ask the model of `stage` (the last trained stage by default).

    Args:
        tell: called with each piece of the answer's text as it is decoded. With it, Ctrl-C ends the
            answer and `stopped` is true; without it, KeyboardInterrupt goes through.

    Raises:
        InputError: the question is empty, the run has no such model, or its artifact is gone or
            damaged.
    """
    if not question.strip():
        raise InputError("the question is empty; ask something, in quotes.")
    chosen, manifest = trained_stage(store, record, stage)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if cache := context().settings.compile_cache:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", cache)
    from tasks.models.loading import load_model
    from tasks.sampling.streaming import Streamer, pieces

    loaded = load_model(store.local_dir(manifest))
    tokenizer = loaded.tokenizer
    streamer = Streamer(loaded, response_length=RESPONSE_LENGTH)
    tokens: list[int] = []
    stopped = False

    def kept() -> Iterator[int]:
        for token in streamer.tokens(question):
            tokens.append(token)
            yield token

    try:
        for piece in pieces(tokenizer, kept()):
            if tell:
                tell(piece)
    except KeyboardInterrupt:
        if tell is None:
            raise
        stopped = True
    completion = tokenizer.decode(tokens)
    trace = parse_trace(completion)
    return {
        "run_id": record.run_id,
        "stage": chosen.name,
        "question": question,
        "completion": completion,
        "reasoning": trace.reasoning if trace else None,
        "answer": trace.answer if trace else None,
        "terminated": bool(tokens) and tokens[-1] in tokenizer.stop_ids,
        "stopped": stopped,
    }
