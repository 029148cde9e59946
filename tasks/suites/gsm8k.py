"""GSM8K: 1,319 grade school word problems of 2 to 8 steps, whose answer is a number behind `####`
(Cobbe et al. 2021, 2110.14168).

`path` is `test.jsonl` of github.com/openai/grade-school-math, or the hub's
`hf://datasets/openai/gsm8k/main/test-*.parquet`.
"""

from typing import Literal

from tasks.data.sources import DataPath, PromptMapping
from tasks.evaluation.suite_prompts import FileSuite, file_suite

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


SUITE = file_suite(version=1, config=Config, mapping=MAPPING, expected=1319)
