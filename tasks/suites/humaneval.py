"""HumanEval: 164 Python functions to complete from signature and docstring, judged by unit tests
(Chen et al. 2021, 2107.03374).

`path` is `HumanEval.jsonl.gz` of github.com/openai/human-eval, or the hub's
`hf://datasets/openai/openai_humaneval/openai_humaneval/test-*.parquet`. pass@k is reported where
the evaluation samples answers.
"""

from typing import Literal

from tasks.data.sources import DataPath, PromptMapping
from tasks.evaluation.suite_prompts import FileSuite, file_suite

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


SUITE = file_suite(version=1, config=Config, mapping=MAPPING, expected=164)
