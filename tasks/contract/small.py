"""Small stages: sizes with which a stage takes seconds on two cores of a laptop. `Kind.small` uses
them, for `--tiny` (`LAPTOP`) and for a rehearsal (`flows.rehearsal`), whose sizes depend on its
rows.

Only numbers are cut: steps, rows, batches, quotas, prompts, samples, tokens. The kinds agree on
lengths: rows that pass the token limits of a small rebalance stage fit all small stages after it.
If a recipe has no such limits, its rows may not fit; then its `[tiny]` sets the lengths.

At the sizes of `LAPTOP` nothing ever grows, so small(small(config)) is small(config).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, gcd
from typing import Any, TypeVar

from schemas.trainer_config import SamplingConfig, TrainerConfig

_LIKELY = 0.95
_SCORES = 1 << 24
"""Attention scores of a head that are computed at a time: some of them, in float32 and for each
head, are what a long row takes of memory without a kernel."""


@dataclass(frozen=True)
class Sizes:
    """The sizes. Tokens include the turns around a text.

    Attributes:
        prompt, answer: tokens of a prompt and of an answer. The longest of the procedural teacher,
            plans of robots, have 96 and 120.
        question, reply: tokens of evaluations' prompts (None: as in the recipe), and of the answers
            that they sample.
        rows: rows of one domain that a teacher makes or is asked for.
        read: the first rows of each data set, which a rehearsal reads; None: all.
        suite: prompts of a suite that an evaluation asks.
        prompts: prompts for which a policy is sampled before training.
        steps: the most updates of any trainer.
        tokens: tokens of the small run's model for one token of the recipe's model.
        trained: whether the small run's model has trained weights: then adapters and learning rates
            stay.
    """

    prompt: int = 128
    answer: int = 128
    question: int | None = None
    reply: int = 128
    rows: int = 1200
    read: int | None = None
    suite: int = 50
    prompts: int = 64
    steps: int = 300
    tokens: float = 1.0
    trained: bool = False

    @property
    def few(self) -> bool:
        """Whether only a few of the recipe's rows are read, so that the share of them that passes
        says little."""
        return self.read is not None

    def prompt_of(self, length: int) -> int:
        """A recipe's length of prompts, cut."""
        return min(ceil(length * self.tokens), self.prompt)

    def answer_of(self, length: int) -> int:
        """A recipe's length of answers, cut."""
        return min(ceil(length * self.tokens), self.answer)

    def share_of(self, fraction: float) -> float:
        """The share to allow of `read` rows: as many as chance finds among them in 19 of 20 cases
        where `fraction` holds for all."""
        if self.read is None:
            return fraction
        from scipy.special import bdtr

        found = range(self.read + 1)
        most = next(one for one in found if bdtr(one, self.read, fraction) >= _LIKELY)
        return min(0.99, most / self.read)


LAPTOP = Sizes()
"""The sizes of `--tiny`."""

FEW = 2
"""Sizes for few rows: the responses to a prompt, and the pairs or responses of an update."""

TrainerT = TypeVar("TrainerT", bound=TrainerConfig)
KeyT = TypeVar("KeyT")


def at_most(counts: Mapping[KeyT, int], most: int) -> dict[KeyT, int]:
    """The counts, none above `most`."""
    return {name: min(count, most) for name, count in counts.items()}


def small_trainer(
    config: TrainerT,
    sizes: Sizes,
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    muon_learning_rate: float | None = None,
    responses: int = 1,
    **changes: Any,
) -> TrainerT:
    """A trainer's config for `gemma3-tiny`, in at most `steps` steps of at most `batch_size` rows.

    A model with trained weights keeps its adapters, its optimizer and `remat`. The tiny model
    begins with random weights, beside which adapters would learn next to nothing: all its weights
    are trained (no `lora`), at a rate that would ruin a trained model. Its activations fit in
    memory (no `remat`). The two steps of a rehearsal learn nothing, so Muon, which takes long to
    compile, is used only if the recipe has it.

    `responses`: rows of the model for one row of a batch: two for a pair.
    """
    if isinstance(config, SamplingConfig):
        changes["prompt_length"] = sizes.prompt_of(config.prompt_length)
        changes["response_length"] = sizes.answer_of(config.response_length)
    if sizes.few and config.optimizer.muon_learning_rate is None:
        muon_learning_rate = None
    rates = {"learning_rate": learning_rate, "muon_learning_rate": muon_learning_rate}
    batch = min(batch_size, config.batch_size)
    micro = config.micro_batch_size and gcd(config.micro_batch_size, batch)
    lengths = config.model_dump() | changes
    names = ("sequence_length", "prompt_length", "response_length")
    length = sum(lengths.get(name, 0) for name in names)
    if (micro or batch) * responses * length**2 > _SCORES:
        fitting = max(1, _SCORES // (responses * length**2))
        micro = max(rows for rows in range(1, fitting + 1) if (micro or batch) % rows == 0)
    own = {"optimizer": config.optimizer.model_copy(update=rates), "lora": None, "remat": "none"}
    return config.model_copy(
        update={
            "steps": min(steps, sizes.steps, config.steps or steps),
            "epochs": None,
            "batch_size": batch,
            "micro_batch_size": micro,
            **({} if sizes.trained else own),
            **changes,
        }
    )
