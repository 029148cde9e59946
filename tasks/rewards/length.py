"""Length reward: 1 for a well-formed response whose length in tokens is in a band, falling linearly
to 0 outside it; 0 for a malformed one.

    r = max(0, 1 - gap / slope)      gap: tokens below `minimum` or above `maximum`, 0 between them

With `maximum` alone it is a verbosity penalty (a public entrant of google-tunix-hackathon punished
more than 150 tokens), with `minimum` alone a penalty for too little reasoning. The length is that
of the whole response with its terminator, which is what sampling and training cost. A malformed
response earns nothing, since otherwise any text of the right length would do.

`overlong` differs: it only punishes, close to the fixed response length.
"""

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from schemas.examples import Prompt, parse_trace
from tasks.contract.reward import Response, Reward, RewardConfig, each


class Config(RewardConfig):
    """All in tokens; `slope`: the distance outside the band at which the reward is 0."""

    name: Literal["length"] = "length"
    minimum: int = Field(default=0, ge=0)
    maximum: int | None = Field(default=None, ge=1)
    slope: int = Field(default=64, ge=1)

    @model_validator(mode="after")
    def _is_a_band(self) -> Self:
        if self.minimum == 0 and self.maximum is None:
            raise ValueError("there is no band: give a minimum or a maximum, in tokens")
        if self.maximum is not None and self.maximum < self.minimum:
            raise ValueError(f"maximum {self.maximum} is below minimum {self.minimum}; swap them")
        return self


@each
def score(config: Config, prompt: Prompt, response: Response) -> float:
    """The formula above. Never abstains."""
    most = math.inf if config.maximum is None else config.maximum
    gap = max(config.minimum - response.tokens, response.tokens - most, 0)
    well_formed = parse_trace(response.text, prompt.channels) is not None
    return max(0.0, 1 - gap / config.slope) if well_formed else 0.0


REWARD = Reward(version=1, config=Config, score=score)
