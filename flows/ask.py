"""`lyceum ask`: a greedy answer from the model of one of a run's stages. The one command that loads JAX into its own process."""

import os
from typing import Any

from infra.store import Store
from schemas.base import InputError
from schemas.examples import parse_trace
from schemas.reports import RunRecord, StageRecord
from tasks.job import TRAINED

RESPONSE_LENGTH = 256
"""Tokens an answer may take."""


def answer(store: Store, record: RunRecord, question: str, stage: str | None) -> dict[str, Any]:
    """Ask the model of `stage` (the last trained stage by default).

    Raises:
        InputError: the question is empty, the run has no such model, or its artifact is gone or damaged.
    """
    if not question.strip():
        raise InputError("the question is empty; ask something, in quotes.")
    chosen = _choose(record, stage)
    manifest = store.valid(chosen.kind, chosen.key) if chosen.key else None
    if manifest is None:
        raise InputError(f"the model of stage {chosen.name!r} is no longer in the store; `lyceum run` makes it again.")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from tasks.data.tokens import prompt_tokens
    from tasks.models.loading import load_model
    from tasks.sampling import Sampler

    loaded = load_model(store.local_dir(manifest))
    length = len(prompt_tokens(loaded.tokenizer, question))
    sampler = Sampler(loaded, batch_size=1, prompt_length=length, response_length=RESPONSE_LENGTH)
    completion = sampler.generate([question])[0]
    trace = parse_trace(completion.text)
    return {
        "run_id": record.run_id,
        "stage": chosen.name,
        "question": question,
        "completion": completion.text,
        "reasoning": trace.reasoning if trace else None,
        "answer": trace.answer if trace else None,
        "terminated": completion.terminated,
    }


def _choose(record: RunRecord, stage: str | None) -> StageRecord:
    models = {one.name: one for one in record.stages if one.kind in TRAINED and one.artifact is not None}
    if not models:
        raise InputError(f"run {record.run_id!r} has no trained model: none of its stages of kind {', '.join(TRAINED)} was finished.")
    if stage is None:
        return list(models.values())[-1]
    if stage not in models:
        raise InputError(f"stage {stage!r} of run {record.run_id!r} has no model. Stages with a model: {', '.join(models)}.")
    return models[stage]
