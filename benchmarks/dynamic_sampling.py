"""Dynamic sampling: informative groups per second of rollout, beside plain GRPO, on prompts half of which teach nothing.

    python -m benchmarks.dynamic_sampling

`gemma3-tiny` is first taught (SFT) to answer 32 prompts: half of them right or wrong by chance, the other half always wrong. Then the
`grpo` stage itself runs on them, with a learning rate that changes nothing, so that the mix stays what it is: plain; with DAPO's
oversampling; and with the curriculum `informative`, which does not sample what it found dead. Seconds are the processor's within
`Sampler.generate`, compiling excluded. The first pass over the prompts is part of the figures; "second half" is what it comes to later.
"""

import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from infra.store.store import open_store
from infra.store.workspace import Workspace
from schemas.examples import Domain, Example, prompt_id
from tasks.contract.job import Job, read_rows, write_jsonl
from tasks.sampling.sampler import Sampler
from tasks.stages import grpo, sft

ROLLOUTS, PROMPTS, GROUPS = 160, 32, 4
SFT = {
    "model": "gemma3-tiny",
    "steps": 150,
    "batch_size": 16,
    "sequence_length": 64,
    "validation_every": 1000,
    "optimizer": {"learning_rate": 6e-3, "muon_learning_rate": 0.04},
}
GRPO = {
    "steps": ROLLOUTS,
    "batch_size": 8 * GROUPS,
    "group_size": 8,
    "rewards": [{"name": "exact_answer"}],
    "beta": 0.0,
    "prompt_length": 16,
    "response_length": 24,
    "log_every": 1,
    "collapse": {"enabled": False},
    "optimizer": {"learning_rate": 1e-12},
}
RUNS: dict[str, dict[str, Any]] = {
    "plain GRPO": {},
    "oversampling = 2": {"dynamic_sampling": True, "oversampling": 2},
    "informative": {"dynamic_sampling": True, "curriculum": {"by": "informative"}},
}


def main() -> None:
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        policy = taught(root)
        print(f"{ROLLOUTS} rollouts of {GROUPS} groups of 8; {PROMPTS} prompts, half of them dead")
        print(f"{'':18}{'sampled':>9}{'informative':>13}{'':>8}{'groups/s':>10}{'':>8}{'second half':>13}{'compiles':>10}")
        rates: list[tuple[float, float]] = []
        shares: list[float] = []
        for title, changes in RUNS.items():
            config = grpo.Config.parse({**GRPO, **changes})
            with timed() as seconds:
                metrics, curve = run(root / title, grpo, config, {"policy": policy, "prompts": root / "data"})
            groups = [row["effective_groups"] for row in curve]
            half = ROLLOUTS // 2
            rates.append((sum(groups) / sum(seconds), sum(groups[half:]) / sum(seconds[half:])))
            gain, later = (rates[-1][index] / rates[0][index] for index in (0, 1))
            sampled = ROLLOUTS * GROUPS * config.oversampling
            shares.append(sum(groups) / sampled)
            print(
                f"{title:18}{sampled:9}{shares[-1]:13.0%}{shares[-1] / shares[0]:6.2f} x{rates[-1][0]:10.1f}{gain:6.2f} x{later:11.2f} x"
                f"{max(metrics['compiles'].values()):10}"
            )


def taught(root: Path) -> Path:
    """The policy's directory; the prompts are in `data`."""
    examples = [example(number, answer) for number in range(PROMPTS) for answer in (0, 1)]
    (root / "data").mkdir()
    write_jsonl(root / "data" / "train.jsonl", examples)
    write_jsonl(root / "data" / "validation.jsonl", examples[:8])
    asked = [example(number, 0 if number % 2 else 7).as_prompt() for number in range(PROMPTS)]  # 7 is what it never answers
    write_jsonl(root / "data" / "prompts.jsonl", asked)
    run(root / "sft", sft, sft.Config.parse(SFT), {"examples": root / "data"})
    return root / "sft" / "out"


def example(number: int, answer: int) -> Example:
    prompt = f"Say {number}."
    return Example(id=prompt_id(prompt), prompt=prompt, domain=Domain.MATH, answer=str(10 * number + answer), reasoning="I say")


def run(root: Path, kind: Any, config: Any, inputs: dict[str, Path]) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """The stage's metrics and curve."""
    (root / "out").mkdir(parents=True)
    job = Job(config, inputs, root / "out", Workspace(open_store(root / "store"), "key", "1"), checkpoint_seconds=1e9)
    return kind.run(job), list(read_rows(root / "out" / "curves.jsonl"))


@contextmanager
def timed() -> Iterator[list[float]]:
    """Seconds of the processor for each call of `Sampler.generate`."""
    seconds: list[float] = []
    generate = Sampler.generate

    def watched(self: Sampler, *arguments: Any, **named: Any) -> Any:
        began = time.process_time()
        if not seconds:  # compiling is not sampling
            generate(self, *arguments, **named)
            began = time.process_time()
        try:
            return generate(self, *arguments, **named)
        finally:
            seconds.append(time.process_time() - began)

    Sampler.generate = watched  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        Sampler.generate = generate  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
