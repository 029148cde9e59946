"""How a stage runs small: sizes with which two cores of a laptop take seconds. `Kind.small` uses
this.

What is cut is how often something is done and how much of it there is: steps, rows, batches,
quotas, prompts, samples, tokens. The kinds agree on lengths: rows that pass the token limits of a
small rebalance stage fit all small stages after it. Where a recipe sets no such limits its rows may
not fit, and then its `[tiny]` says how long they are.

Nothing is ever larger than it was, so small(small(config)) is small(config).
"""

from collections.abc import Mapping
from math import gcd
from typing import Any, TypeVar

from schemas.training import TrainerConfig

PROMPT = ANSWER = 128
"""Tokens of a prompt and of an answer, with the turns around them. The longest of the procedural
teacher, plans of robots, have 96 and 120."""

ROWS = 1200
"""Rows of one domain that a teacher makes or is asked for."""

TrainerT = TypeVar("TrainerT", bound=TrainerConfig)
KeyT = TypeVar("KeyT")


def at_most(counts: Mapping[KeyT, int], most: int) -> dict[KeyT, int]:
    """The counts, none above `most`."""
    return {name: min(count, most) for name, count in counts.items()}


def small_trainer(
    config: TrainerT,
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    muon_learning_rate: float | None = None,
    **changes: Any,
) -> TrainerT:
    """A trainer's config for `gemma3-tiny`, in at most `steps` steps of at most `batch_size` rows.

    That model begins with random weights, so adapters beside them would learn next to nothing: all
    weights are trained (`lora` goes), at a rate that suits such a model and would ruin a trained
    one. Its activations fit as they are (`remat` goes).
    """
    rates = {"learning_rate": learning_rate, "muon_learning_rate": muon_learning_rate}
    batch = min(batch_size, config.batch_size)
    return config.model_copy(
        update={
            "steps": min(steps, config.steps or steps),
            "epochs": None,
            "batch_size": batch,
            "micro_batch_size": config.micro_batch_size and gcd(config.micro_batch_size, batch),
            "optimizer": config.optimizer.model_copy(update=rates),
            "lora": None,
            "remat": "none",
            **changes,
        }
    )
