"""How a stage runs small: the sizes with which a kind is done on two cores of a laptop in seconds. `Kind.small` is made of this.

What is cut is how often something is done and how much of it there is: steps, rows, batches, quotas, prompts, samples, and how long an
answer may get. What decides whether a row is taken stays: lengths that prompts and traces have to fit, since one that does not fit is
refused or left out. Batches get as many rows of these lengths as `TOKENS` allows instead.

Nothing is ever larger than it was, so small(small(config)) is small(config).
"""

from collections.abc import Mapping
from math import gcd
from typing import Any, TypeVar

from schemas.training import TrainerConfig

TOKENS = 16_384
"""Of one batch, padding included."""

ANSWER = 128
"""Tokens of an answer that is cut off where it is longer. The procedural teacher's longest, plans of robots, have 120."""

ROWS = 1200
"""Rows of one domain that a teacher makes or is asked for."""

TrainerT = TypeVar("TrainerT", bound=TrainerConfig)
KeyT = TypeVar("KeyT")


def rows_within(size: int, most: int, length: int) -> int:
    """Of a batch of `size` rows of `length` tokens: at most `most`, and those that `TOKENS` allows, as a power of two; at least one."""
    allowed = max(1, TOKENS // length)
    return min(size, most, 1 << allowed.bit_length() - 1)


def at_most(counts: Mapping[KeyT, int], most: int) -> dict[KeyT, int]:
    """The counts, none above `most`."""
    return {name: min(count, most) for name, count in counts.items()}


def small_trainer(
    config: TrainerT, *, steps: int, batch_size: int, learning_rate: float, muon_learning_rate: float | None = None, **changes: Any
) -> TrainerT:
    """A trainer's config for `gemma3-tiny`, in at most `steps` steps of at most `batch_size` rows.

    That model begins with random weights, so adapters beside them would learn next to nothing: all weights are trained (`lora` goes), at
    a rate that suits such a model and would ruin a trained one. Its activations fit as they are: `remat` goes.
    """
    rates = {"learning_rate": learning_rate, "muon_learning_rate": muon_learning_rate}
    batch = min(batch_size, config.batch_size)
    return config.model_copy(
        update={
            "steps": min(steps, config.steps),
            "batch_size": batch,
            "micro_batch_size": config.micro_batch_size and gcd(config.micro_batch_size, batch),
            "optimizer": config.optimizer.model_copy(update=rates),
            "lora": None,
            "remat": "none",
            **changes,
        }
    )
