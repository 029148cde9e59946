"""MT-bench: the first turns of 80 open questions in eight categories (Zheng et al. 2023,
2306.05685).

Free text: format, length and markers are counted, and a judge rates the answers where one is
configured; 38 questions come with a reference that it sees. `path` is FastChat's
`fastchat/llm_judge/data/mt_bench/question.jsonl`.
"""

from pathlib import Path
from typing import Literal

from schemas.evaluation import EvalPrompt
from tasks.contract.suite import Suite
from tasks.data.sources import DataPath, PromptMapping
from tasks.evaluation.suite_prompts import FileSuite, mapped, suite_digests, suite_records

_DOMAINS = {
    "writing": "creative",
    "roleplay": "creative",
    "math": "math",
    "coding": "coding",
    "stem": "science",
    "extraction": "summarization",
    "reasoning": "general",
    "humanities": "general",
}
MAPPING = PromptMapping.parse(
    {
        "domain": {"column": "category", "table": _DOMAINS},
        "difficulty": 4,
        "prompt": "turns.0",
        "answer": "reference.0",
        "check": "none",
    }
)


class Config(FileSuite):
    """See the module."""

    name: Literal["mt_bench"]
    path: DataPath = "mtbench/question.jsonl"


def prompts(config: Config, data: Path | None) -> list[EvalPrompt]:
    return mapped(config, suite_records(config, data), MAPPING)


SUITE = Suite(
    version=1,
    config=Config,
    prompts=prompts,
    dependencies=suite_digests,
    expected=lambda config: 80,
)
