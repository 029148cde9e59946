"""The config of on-policy distillation (`tasks.stages.on_policy_distill`)."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.base import StrictModel
from schemas.trainer_config import SamplingConfig
from tasks.distillation.endpoint_teacher import EndpointTeacherConfig
from tasks.distillation.gemma_teacher import GemmaTeacherConfig

TeacherConfig = Annotated[GemmaTeacherConfig | EndpointTeacherConfig, Field(discriminator="name")]
"""The table `teacher = { name = "gemma", model = ... }` or `{ name = "endpoint", provider = ...,
model = ... }`."""


class PolicyGradient(StrictModel):
    """Reverse KL at the sampled tokens. `epsilon`: the ratio to the policy that sampled is clipped
    to 1 - epsilon .. 1 + epsilon."""

    name: Literal["policy_gradient"] = "policy_gradient"
    epsilon: float = Field(default=0.2, gt=0, lt=1)


class Gkd(StrictModel):
    """Divergence of whole distributions.

    Attributes:
        beta: of JSD_beta: 0 is the forward KL(T || S), 1 the reverse KL(S || T).
        on_policy_fraction: GKD's lambda: this fraction of each batch is sampled, the rest are
            traces of the training data.
    """

    name: Literal["gkd"]
    beta: float = Field(default=0.5, ge=0, le=1)
    on_policy_fraction: float = Field(default=1.0, gt=0, le=1)


class Config(SamplingConfig):
    """On-policy distillation. `batch_size` counts responses. Traces of the data that do not fit the
    lengths are dropped.

    Attributes:
        model: the student, if no policy is connected.
        teacher: the teacher, if none is connected: `{ name = "gemma", model = ... }` on this job's
            devices, or `{ name = "endpoint", provider = ..., model = ... }`.
        group_size: responses sampled for each prompt.
        num_iterations: updates on each rollout.
    """

    model: str
    teacher: TeacherConfig | None = None
    loss: Annotated[PolicyGradient | Gkd, Field(discriminator="name")] = PolicyGradient()
    group_size: int = Field(default=1, ge=1)
    num_iterations: int = Field(default=1, ge=1)

    @property
    def taken(self) -> tuple[int, int]:
        """Prompts of a rollout, and updates on it."""
        return self.sampled // self.group_size, self.num_iterations

    @property
    def sampled(self) -> int:
        """Responses of a batch that the student samples; the others are traces of the data."""
        return round(
            self.batch_size * (self.loss.on_policy_fraction if isinstance(self.loss, Gkd) else 1.0)
        )

    @model_validator(mode="after")
    def _groups_fill_the_batch(self) -> Self:
        if self.sampled == 0 or self.sampled % self.group_size:
            raise ValueError(
                f"{self.sampled} sampled responses per update (batch_size = {self.batch_size} times"
                " loss.on_policy_fraction) must be a positive multiple of group_size ="
                f" {self.group_size}"
            )
        return self

    @model_validator(mode="after")
    def _an_endpoint_gives_what_the_loss_needs(self) -> Self:
        if isinstance(self.teacher, EndpointTeacherConfig):
            if isinstance(self.loss, Gkd):
                raise ValueError(
                    "loss gkd needs a teacher's whole distributions: connect a teacher as an input,"
                    " or name one to load (gemma)"
                )
            if self.temperature != 1:
                raise ValueError(
                    f"temperature = {self.temperature}: an endpoint gives log-probabilities only at"
                    " temperature 1; set that, or use a teacher that is loaded (gemma)"
                )
        return self
