"""How a stage runs small: sizes with which two cores of a laptop take seconds. `Kind.small` uses
this, for `--tiny` (`LAPTOP`) and for a rehearsal (`flows.rehearsal`), whose sizes its rows decide.

What is cut is how often something is done and how much of it there is: steps, rows, batches,
quotas, prompts, samples, tokens. The kinds agree on lengths: rows that pass the token limits of a
small rebalance stage fit all small stages after it. Where a recipe sets no such limits its rows may
not fit, and then its `[tiny]` says how long they are.

At the sizes of `LAPTOP` nothing is ever larger than it was, so small(small(config)) is
small(config).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, gcd
from typing import Any, TypeVar

from schemas.training import TrainerConfig

_LIKELY = 0.95
_SCORES = 1 << 24
"""Attention scores of a head that are computed at a time: some of them, in float32 and for each
head, are what a long row takes of memory without a kernel."""


@dataclass(frozen=True)
class Sizes:
    """How small. Tokens count the turns around a text.

    Attributes:
        prompt, answer: tokens of a prompt and of an answer. The longest of the procedural teacher,
            plans of robots, have 96 and 120.
        question, reply: tokens of what evaluations ask (None: as the recipe has it), and of the
            answers that they sample.
        rows: rows of one domain that a teacher makes or is asked for.
        read: the first rows of each data set, which a rehearsal reads; None: all.
        suite: prompts of a suite that an evaluation asks.
        prompts: prompts for which a policy is sampled before training.
        steps: updates of any trainer, at most.
        tokens: of the model at hand for one token of the recipe's model.
        trained: the model at hand has trained weights: adapters and learning rates stay.
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
        """Whether the rows are a few of those that the recipe reads, so that how many of them pass
        says little."""
        return self.read is not None

    def prompt_of(self, length: int) -> int:
        """A recipe's length of prompts, cut."""
        return min(ceil(length * self.tokens), self.prompt)

    def answer_of(self, length: int) -> int:
        """A recipe's length of answers, cut."""
        return min(ceil(length * self.tokens), self.answer)

    def share_of(self, fraction: float) -> float:
        """A share that a recipe allows, of `read` rows: as many as chance finds among them in 19 of
        20 cases where the share holds for all."""
        if self.read is None:
            return fraction
        from scipy.stats import binom

        return min(0.99, float(binom.ppf(_LIKELY, self.read, fraction)) / self.read)


LAPTOP = Sizes()
"""Those of `--tiny`."""

FEW = 2
"""Where a few rows are read: responses to a prompt, and pairs or responses of an update."""

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

    A model with trained weights keeps its adapters, its optimizer and `remat`. The tiny one begins
    with random weights, so adapters beside them would learn next to nothing: all weights are
    trained (`lora` goes), at a rate that suits such a model and would ruin a trained one. Its
    activations fit as they are (`remat` goes). In a rehearsal's two steps nothing is learned, so
    that Muon, which takes long to compile, is the recipe's alone.

    `responses`: rows of the model that one row of a batch makes: two of a pair.
    """
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
    own = {
        "optimizer": config.optimizer.model_copy(update=rates),
        "lora": None,
        "remat": "none",
    }
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
