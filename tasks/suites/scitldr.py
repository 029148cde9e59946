"""SciTLDR: summaries in one sentence of the abstracts of 618 papers (Cachola et al. 2020,
2004.15011), checked for faithfulness.

`path` is `SciTLDR-Data/SciTLDR-A/test.jsonl` of github.com/allenai/scitldr. The first of the
summaries that people wrote is the reference that a judge sees; the check `faithful` needs none.
"""

from typing import Literal

from tasks.data.sources import DataPath, PromptMapping
from tasks.evaluation.suite_prompts import FileSuite, file_suite

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


SUITE = file_suite(version=1, config=Config, mapping=MAPPING, expected=618)
