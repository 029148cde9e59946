"""Configuration shared by the trainers."""

from typing import Any, Literal, get_args

from pydantic import Field, field_validator

from schemas.base import StrictModel

Remat = Literal["none", "dots", "layer", "chunks"]
"""What a training step keeps of each layer for the backward pass, which computes the rest again:
everything; what matrix products gave; the layer's input alone; the same, and the feed-forward part
goes through in chunks. Each takes less memory and more time than the one before."""

Projection = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
"""The matrices of a layer, by their Hugging Face names."""


class OptimizerConfig(StrictModel):
    """AdamW with linear warm-up and cosine decay (Loshchilov & Hutter, 1711.05101 and 1608.03983),
    with Muon for matrices if asked for.

    The learning rate rises to `learning_rate` over `warmup_fraction` of the steps, then falls along
    a cosine to `final_fraction` of it. Gradients are clipped to the global norm `max_grad_norm`
    first. With `muon_learning_rate` the weight matrices (not embeddings and norms) are updated by
    Muon (Jordan et al., 2024: momentum orthogonalised by Newton-Schulz) with that peak rate on the
    same schedule.
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
    by alpha / rank."""

    rank: int = Field(ge=1)
    alpha: float = Field(gt=0)
    # strict=False: behind the validator of TrainerConfig.lora a list of JSON arrives as a list of
    # Python
    targets: tuple[Projection, ...] = Field(
        default=get_args(Projection), min_length=1, strict=False
    )


class TrainerConfig(StrictModel):
    """What every training stage has.

    `batch_size` rows make one optimizer step; they are processed `micro_batch_size` at a time
    inside one compiled program (gradient accumulation). Without `lora`, or with `lora = false`, all
    weights are trained. `remat` saves memory for time.
    """

    steps: int = Field(ge=1)
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

    @property
    def accumulation(self) -> int:
        """Micro-batches per step."""
        return self.batch_size // (self.micro_batch_size or self.batch_size)
