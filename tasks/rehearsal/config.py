"""What a recipe says of its rehearsal."""

from pydantic import Field, field_validator

from schemas.base import StrictModel


class RewardAudit(StrictModel):
    """How a stage's rewards are audited.

    Attributes:
        prompts: how many, spread over domains, checks and grounding. A judge is asked about eleven
            responses to each.
        allow: finding -> the reason why it is meant to be so.
    """

    prompts: int = Field(default=24, ge=8, le=512)
    allow: dict[str, str] = Field(default={})

    @field_validator("allow")
    @classmethod
    def _has_reasons(cls, value: dict[str, str]) -> dict[str, str]:
        bare = [finding for finding, reason in value.items() if not reason.strip()]
        if bare:
            raise ValueError(f"{bare[0]!r} is allowed without a reason; write why it is meant so")
        return value
