"""Configuration shared by the trainers."""

import math
from typing import Any, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from schemas.base import StrictModel

Remat = Literal["none", "dots", "layer", "chunks"]
"""What a training step keeps of each layer for the backward pass, which computes the rest again:
everything; what matrix products gave; the layer's input alone; the same, and the feed-forward part
goes through in chunks. Each takes less memory and more time than the one before."""

Projection = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
"""The matrices of a layer, by their Hugging Face names."""


def _unset(value: Any) -> bool:
    """Knobs that came later are part of a stage key only where they are set."""
    return value is None or value is False


class Nucleus(StrictModel):
    """Which tokens a sampled response may take, step by step: of the distribution at the
    temperature the `top_k` likeliest, and of those the likeliest that together have `top_p` of the
    probability (Holtzman et al., 1904.09751). In this order, as `transformers` and vLLM do; without
    them any token may come. `top_p` alone goes over the vocabulary 32 times a step, with `top_k`
    beside it over the k likeliest."""

    top_k: int | None = Field(default=None, ge=1, exclude_if=_unset)
    top_p: float | None = Field(default=None, gt=0, lt=1, exclude_if=_unset)

    @property
    def drawn_from(self) -> dict[str, Any]:
        """What samplers are told of it."""
        return {"top_k": self.top_k, "top_p": self.top_p}


class OptimizerConfig(StrictModel):
    """AdamW with linear warm-up and cosine decay (Loshchilov & Hutter, 1711.05101 and 1608.03983),
    with Muon for matrices if asked for.

    The learning rate rises to `learning_rate` over `warmup_fraction` of the steps, one at least (so
    the first update has half the rate with 0), then falls along a cosine to `final_fraction` of it.
    Gradients are clipped to the global norm `max_grad_norm` first. With `muon_learning_rate` the
    weight matrices (not embeddings and norms) are updated by Muon (Jordan et al., 2024: momentum
    orthogonalised by Newton-Schulz) with that peak rate on the same schedule.
    """

    learning_rate: float = Field(gt=0)
    muon_learning_rate: float | None = Field(default=None, gt=0)
    warmup_fraction: float = Field(default=0.05, ge=0, lt=1)
    final_fraction: float = Field(default=0.1, ge=0, le=1)
    b1: float = Field(default=0.9, ge=0, lt=1)
    b2: float = Field(default=0.98, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)


class LoraConfig(StrictModel):
    """Low-rank adapters (Hu et al., 2106.09685) on the projections `targets`; the update is scaled
    by alpha / rank. With `keep` the artifact has them beside the merged model, in PEFT's format.
    `adapters`: begin with these instead of a product of 0 (`tasks.models.adapters`)."""

    rank: int = Field(ge=1)
    alpha: float = Field(gt=0)
    # strict=False: behind the validator of TrainerConfig.lora a list of JSON arrives as a list of
    # Python
    targets: tuple[Projection, ...] = Field(
        default=get_args(Projection), min_length=1, strict=False
    )
    keep: bool = Field(default=False, exclude_if=_unset)
    adapters: str | None = Field(default=None, exclude_if=_unset)


class TrainerConfig(StrictModel):
    """What every training stage has.

    It trains for `steps`, or for `epochs` over what it trains on: packed rows, pairs, and where
    responses are sampled, prompts. `batch_size` rows make one optimizer step; they are processed
    `micro_batch_size` at a time inside one compiled program (gradient accumulation). Without
    `lora`, or with `lora = false`, all weights are trained. `remat` saves memory for time.
    """

    steps: int = Field(default=0, ge=0)
    epochs: float | None = Field(default=None, gt=0, exclude_if=_unset)
    batch_size: int = Field(ge=1)
    micro_batch_size: int | None = Field(default=None, ge=1)
    optimizer: OptimizerConfig
    lora: LoraConfig | None = None
    remat: Remat = "none"
    log_every: int = Field(default=10, ge=1)

    @field_validator("lora", mode="before")
    @classmethod
    def _false_is_none(cls, value: Any) -> Any:
        return None if value is False else value

    @model_validator(mode="after")
    def _steps_or_epochs(self) -> Self:
        if (self.steps > 0) == (self.epochs is not None):
            both = f"here steps = {self.steps} and epochs = {self.epochs}; steps = 0 leaves it to"
            given = f"{both} epochs" if self.steps else "neither is set"
            raise ValueError(f"set one of steps (1 or more) and epochs: {given}")
        return self

    @model_validator(mode="after")
    def _micro_batches_fill_the_batch(self) -> Self:
        if self.batch_size % (self.micro_batch_size or 1):
            raise ValueError(
                f"batch_size = {self.batch_size} must be a multiple of micro_batch_size ="
                f" {self.micro_batch_size}"
            )
        return self

    @property
    def taken(self) -> tuple[int, int]:
        """How many rows are taken at a time, and how many updates are made on them."""
        return self.batch_size, 1

    def counted(self, rows: int) -> Self:
        """The config with the `steps` that its `epochs` make of so many rows, whole batches: the
        last one goes on into the next epoch."""
        if self.epochs is None:
            return self
        taken, updates = self.taken
        steps = updates * max(1, math.ceil(round(self.epochs * rows / taken, 9)))
        return self.model_copy(update={"steps": steps})

    @property
    def accumulation(self) -> int:
        """Micro-batches per step."""
        return self.batch_size // (self.micro_batch_size or self.batch_size)


class SamplingConfig(TrainerConfig, Nucleus):
    """A training stage that samples responses to its prompts.

    Attributes:
        temperature: of sampling; also of the log-probabilities of GRPO's and on-policy
            distillation's losses. Losses on pairs take them at 1.
        top_k, top_p: of sampling alone. All log-probabilities are the model's over all tokens,
            since cutting off tokens does not change the model.
        prompt_length, response_length: tokens; longer prompts are dropped, longer responses
            truncated.
        max_dropped_fraction: fail if more than this fraction of the prompts is dropped.
    """

    seed: int = Field(default=0, ge=0)
    temperature: float = Field(default=1.0, gt=0)
    prompt_length: int = Field(ge=8)
    response_length: int = Field(ge=8)
    max_dropped_fraction: float = Field(default=0.0, ge=0, le=1)


class PairsConfig(SamplingConfig):
    """A stage that trains on pairs: of the data, and of responses that are sampled once before
    training. `batch_size` counts pairs.

    Attributes:
        prompts: how many training prompts are sampled, at most; 0: none.
        samples_per_prompt, pairs_per_prompt: responses sampled for each prompt, and the most pairs
            from it.
        data_pairs: the most pairs of the data that are used; those that do not fit the fixed
            lengths are left out.
        sampling_batch_size: responses sampled at a time.
        min_pairs: fail with fewer pairs to train on.
    """

    prompts: int = Field(ge=0)
    samples_per_prompt: int = Field(default=4, ge=1)
    pairs_per_prompt: int = Field(default=1, ge=1)
    data_pairs: int = Field(default=0, ge=0)
    sampling_batch_size: int = Field(default=64, ge=1)
    min_pairs: int = Field(default=16, ge=1)
