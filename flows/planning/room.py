"""Whether what a stage holds at a time can lie in this machine's memory. A bound from below: what
is refused here cannot run.

A token that a model works on takes its id and, in every model there is, 64 numbers of 32 bits and
more; so do a row that waits to be answered and a rank of an adapter. What is larger than this but
too large all the same ends in the worker, with one line.
"""

import os
from collections.abc import Iterator, Sequence

from flows.recipe.explain import Outlook
from flows.recipe.resolve import ResolvedStage
from schemas.base import StrictModel

LEAST_BYTES = 4 * 64


def too_large_here(outlooks: Sequence[Outlook]) -> list[str]:
    """Of the stages that would run on this machine, those whose sizes no memory like its own can
    hold, in sentences."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return [
        f"Stage {one.stage.name}: {sizes} takes at least {_gib(bytes_)} of memory, and this machine"
        f" has {_gib(memory)}; lower them."
        for one in outlooks
        if one.manifest is None
        for sizes, bytes_ in _held(one.stage)
        if bytes_ > memory
    ]


def _held(stage: ResolvedStage) -> Iterator[tuple[str, int]]:
    """What a stage holds at a time: which sizes of its config multiply, and the bytes that these
    are."""
    config = stage.config
    lengths = [
        (name, size)
        for name in ("sequence_length", "prompt_length", "response_length")
        if (size := _size(config, name))
    ]
    for name in ("batch_size", "sampling_batch_size"):
        if (rows := _size(config, name)) and lengths:
            sizes = " + ".join(f"{length} {size}" for length, size in lengths)
            yield f"{name} {rows} x {sizes}", rows * sum(size for _, size in lengths) * LEAST_BYTES
    if (prompts := _size(config, "prompts")) and (samples := _size(config, "samples_per_prompt")):
        yield f"prompts {prompts} x samples_per_prompt {samples}", prompts * samples * LEAST_BYTES
    if rank := _size(getattr(config, "lora", None), "rank"):
        yield f"lora.rank {rank}", rank * LEAST_BYTES


def _size(config: StrictModel | None, name: str) -> int:
    value = getattr(config, name, 0)
    return value if isinstance(value, int) else 0


def _gib(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"
