"""SciTLDR: summaries in one sentence of the abstracts of 618 papers (Cachola et al. 2020,
2004.15011), checked for faithfulness.

`path` is `SciTLDR-Data/SciTLDR-A/test.jsonl` of github.com/allenai/scitldr. The first of the
summaries that people wrote is the reference that a judge sees; the check `faithful` needs none.
"""

from pathlib import Path
from typing import Literal

from schemas.evaluation import EvalPrompt
from tasks.contract.suite import Suite
from tasks.data.sources import DataPath, PromptMapping
from tasks.evaluation.suite_prompts import FileSuite, mapped, suite_digests, suite_records

MAPPING = PromptMapping.parse(
    {
        "domain": "summarization",
        "difficulty": 4,
        "prompt": {"template": "Summarize in one sentence: {source}"},
        "answer": "target.0",
        "check": "faithful",
    }
)


class Config(FileSuite):
    """See the module."""

    name: Literal["scitldr"]
    path: DataPath = "scitldr/SciTLDR-A_test.jsonl"


def prompts(config: Config, data: Path | None) -> list[EvalPrompt]:
    return mapped(config, suite_records(config, data), MAPPING)


SUITE = Suite(
    version=1,
    config=Config,
    prompts=prompts,
    dependencies=suite_digests,
    expected=lambda config: 618,
)
