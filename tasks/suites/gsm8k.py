"""GSM8K: 1,319 grade school word problems of 2 to 8 steps, whose answer is a number behind `####`
(Cobbe et al. 2021, 2110.14168).

`path` is `test.jsonl` of github.com/openai/grade-school-math, or the hub's
`hf://datasets/openai/gsm8k/main/test-*.parquet`.
"""

from pathlib import Path
from typing import Literal

from schemas.evaluation import EvalPrompt
from tasks.contract.suite import Suite
from tasks.data.sources import DataPath, PromptMapping
from tasks.evaluation.suite_prompts import FileSuite, mapped, suite_digests, suite_records

MAPPING = PromptMapping.parse(
    {
        "domain": "math",
        "difficulty": 3,
        "prompt": "question",
        "answer": {"column": "answer", "after": "####"},
        "check": "numeric",
    }
)


class Config(FileSuite):
    """See the module."""

    name: Literal["gsm8k"]
    path: DataPath = "gsm8k/test.jsonl"


def prompts(config: Config, data: Path | None) -> list[EvalPrompt]:
    return mapped(config, suite_records(config, data), MAPPING)


SUITE = Suite(
    version=1,
    config=Config,
    prompts=prompts,
    dependencies=suite_digests,
    expected=lambda config: 1319,
)
