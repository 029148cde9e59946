"""One small configuration of each kind that computes, on the one-layer model of the fixture
`one_layer` (conftest.py).

Compiling is what these tests cost, and processes share what they compiled: a test that runs a stage
takes its table from here where it can, and changes only what no program depends on.
"""

from typing import Any

from schemas.examples import Domain, Example, Grounding, prompt_id

LORA = {"rank": 2, "alpha": 4.0}
ADAMW = {"learning_rate": 1e-3}
SFT: dict[str, Any] = {
    "model": "gemma3-tiny",
    "steps": 6,
    "batch_size": 4,
    "sequence_length": 64,
    "log_every": 2,
    "validation_every": 3,
    "micro_batch_size": 2,
    "remat": "layer",
    "optimizer": {"learning_rate": 1e-3, "muon_learning_rate": 0.02},
}
PREFERENCES: dict[str, Any] = {
    "steps": 6,
    "batch_size": 4,
    "prompts": 6,
    "samples_per_prompt": 2,
    "min_pairs": 4,
    "prompt_length": 32,
    "response_length": 32,
    "sampling_batch_size": 8,
    "log_every": 4,
    "micro_batch_size": 2,
    "optimizer": {"learning_rate": 3e-3},
}
DPO: dict[str, Any] = {**PREFERENCES, "lora": LORA, "optimizer": {"learning_rate": 3e-2}}
GRPO: dict[str, Any] = {
    "steps": 6,
    "batch_size": 16,
    "group_size": 8,
    "micro_batch_size": 8,
    "rewards": [{"name": "format"}, {"name": "exact_answer"}],
    "beta": 0.01,
    "temperature": 0.9,
    "prompt_length": 24,
    "response_length": 16,
    "log_every": 4,
    "optimizer": {"learning_rate": 1e-2},
    "lora": LORA,
}


def example(number: int, grounding: Grounding | None = None) -> Example:
    prompt = f"What is {number} + 1?"
    context = f"{number} + 1 = {number + 1}" if grounding else None
    fields = {
        "prompt": prompt,
        "domain": Domain.MATH,
        "answer": str(number + 1),
        "reasoning": f"{number} + 1 = {number + 1}",
    }
    return Example(id=prompt_id(prompt), context=context, grounding=grounding, **fields)
