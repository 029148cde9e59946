"""SciTLDR: summaries in one sentence of the abstracts of 618 papers (Cachola et al. 2020,
2004.15011), checked for faithfulness.

`path` is `SciTLDR-Data/SciTLDR-A/test.jsonl` of github.com/allenai/scitldr. The first of the
summaries that people wrote is the reference that a judge sees; the check `faithful` needs none.
"""

from tasks.evaluation.suite_prompts import file_suite, published

SUITE = file_suite(
    version=1,
    config=published("scitldr", "scitldr/SciTLDR-A_test.jsonl"),
    expected=618,
    mapping={
        "domain": "summarization",
        "difficulty": 4,
        "prompt": {"template": "Summarize in one sentence: {source}"},
        "answer": "target.0",
        "check": "faithful",
    },
)
