"""What a recipe says of its rehearsal."""

from pydantic import Field

from schemas.base import StrictModel
from schemas.recipe import Allowed


class RewardAudit(StrictModel):
    """How a stage's rewards are audited.

    Attributes:
        prompts: how many, spread over domains, checks and grounding. A judge is asked about eleven
            responses to each.
        allow: finding -> the reason why it is meant to be so.
        ends: what is found and not allowed ends the stage. A rehearsal goes on, for it tells all
            that it finds at the end.
        last: which update counts as the last one, at which rewards are looked at that change on
            the way; the stage's own, where it is not set.
    """

    prompts: int = Field(default=24, ge=8, le=512)
    allow: Allowed = Field(default={})
    ends: bool = True
    last: int | None = Field(default=None, ge=1)
