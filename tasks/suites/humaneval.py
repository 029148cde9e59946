"""HumanEval: 164 Python functions to complete from signature and docstring, judged by unit tests
(Chen et al. 2021, 2107.03374).

`path` is `HumanEval.jsonl.gz` of github.com/openai/human-eval, or the hub's
`hf://datasets/openai/openai_humaneval/openai_humaneval/test-*.parquet`. pass@k is reported where
the evaluation samples answers.
"""

from pathlib import Path
from typing import Literal

from schemas.evaluation import EvalPrompt
from tasks.contract.suite import Suite
from tasks.data.sources import DataPath, PromptMapping
from tasks.evaluation.suite_prompts import FileSuite, mapped, suite_digests, suite_records

MAPPING = PromptMapping.parse(
    {
        "domain": "coding",
        "difficulty": 4,
        "prompt": {"template": "Complete this Python function.\n\n{prompt}"},
        "answer": "canonical_solution",
        "check": "tests",
        "tests": {"template": "{test}\n\ncheck({entry_point})"},
        "code_prefix": "prompt",
    }
)


class Config(FileSuite):
    """See the module."""

    name: Literal["humaneval"]
    path: DataPath = "humaneval/HumanEval.jsonl.gz"


def prompts(config: Config, data: Path | None) -> list[EvalPrompt]:
    return mapped(config, suite_records(config, data), MAPPING)


SUITE = Suite(
    version=1,
    config=Config,
    prompts=prompts,
    dependencies=suite_digests,
    expected=lambda config: 164,
)
