"""Settings of both sides of `benchmarks.chain`, and the record that each writes of a stage. Nothing
slow is imported here."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

STAGES = ("sft", "simpo", "grpo")
WARM_UP = 2
"""Steps that tokens/s leave out: the first ones compile, or fill caches."""


@dataclass(frozen=True)
class Settings:
    """Sizes of the chain, equal for both sides; `seed` differs between rounds.

    Attributes:
        model: the size of the model, which begins with random weights.
        first_steps: of SFT, with the quickstart's optimizer, that make the model both sides begin
            with; 0: random weights, and pairs of the tiny model, of which nothing is evaluated.
        rows, length: of an SFT step: packed rows, and the tokens of each.
        pairs: of a SimPO step.
        responses, group: of a GRPO step: all responses, and those to one prompt.
        prompt_length, response_length: tokens, of SimPO, GRPO and the evaluation.
        heldout: prompts of the evaluation.
        examples: of an SFT step, unpacked: what `rows` hold on average. `prepare` finds it.
        tokens: of a step of SFT and of SimPO on average, without padding. `prepare` finds them.
        tables: by stage, Lyceum's whole config, where a recipe says it.
        lora: the arguments of PEFT's LoraConfig, where adapters are trained, on weights in
            bfloat16; empty: all weights, in float32.
        micro: by stage, what TRL takes at a time of a step's examples, pairs or responses.
        sft_weight: of the chosen responses' cross-entropy in SimPO's loss.
    """

    model: str = "gemma3-tiny"
    cpu: bool = False
    seed: int = 0
    first_steps: int = 500
    sft_steps: int = 60
    simpo_steps: int = 12
    grpo_steps: int = 8
    rows: int = 16
    length: int = 128
    pairs: int = 16
    responses: int = 32
    group: int = 8
    prompt_length: int = 60
    response_length: int = 60
    heldout: int = 300
    sft_rate: float = 1e-3
    simpo_rate: float = 2e-5
    grpo_rate: float = 1e-4
    warmup: float = 0.05
    final: float = 0.1
    b2: float = 0.98
    simpo_beta: float = 2.5
    simpo_margin: float = 0.5
    kl: float = 0.04
    rewards: dict[str, float] = field(default_factory=lambda: {"format": 0.2, "exact_answer": 1.0})
    examples: int = 0
    tokens: dict[str, float] = field(default_factory=dict)
    tables: dict[str, Any] = field(default_factory=dict)
    lora: dict[str, Any] = field(default_factory=dict)
    micro: dict[str, int] = field(default_factory=dict)
    sft_weight: float = 0.0

    def steps(self, stage: str) -> int:
        steps: int = getattr(self, f"{stage}_steps")
        return steps

    def rate(self, stage: str) -> float:
        rate: float = getattr(self, f"{stage}_rate")
        return rate

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Settings":
        return cls(**json.loads(path.read_text(encoding="utf-8")))


class Clock:
    """The end of each step, in seconds of the machine's monotonic clock, which all its processes
    share."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.spent: list[float] = []

    def tick(self) -> None:
        self.ends.append(time.monotonic())
        self.spent.append(time.process_time())

    def says(self, tokens_of_step: Callable[[int], float]) -> dict[str, Any]:
        """`first`: when the first step had ended; tokens/s, and seconds a step, also of processor
        time, of the steps after the warm-up.

        The last step is left out: Lyceum tells of a step when the next one is on its way, and of
            the last one at once.

        Args:
            tokens_of_step: of step 1, 2, ...
        """
        counted = range(WARM_UP + 1, len(self.ends))
        seconds = self.ends[-2] - self.ends[WARM_UP - 1]
        tokens = sum(map(tokens_of_step, counted))
        return {
            "first": self.ends[0],
            "tokens_per_second": tokens / seconds,
            "step_seconds": seconds / len(counted),
            "step_cpu": (self.spent[-2] - self.spent[WARM_UP - 1]) / len(counted),
        }


def main(run: Callable[[str, Settings, Path, Path, Path], dict[str, Any]]) -> None:
    """`STAGE SETTINGS DATA POLICY OUT` of the command line, given to `run`; what it returns is the
    last line that is printed."""
    stage, settings, data, policy, out = sys.argv[1:]
    said = run(stage, Settings.read(Path(settings)), Path(data), Path(policy), Path(out))
    sys.stdout.write("\n" + json.dumps(said) + "\n")
