"""MT-bench: the first turns of 80 open questions in eight categories (Zheng et al. 2023,
2306.05685).

Free text: we count format, length and markers, and a judge, if configured, rates the answers; for
38 questions it sees a reference. `path` is FastChat's
`fastchat/llm_judge/data/mt_bench/question.jsonl`.
"""

from tasks.evaluation.suite_prompts import file_suite, published

DOMAINS = {
    "writing": "creative",
    "roleplay": "creative",
    "math": "math",
    "coding": "coding",
    "stem": "science",
    "extraction": "summarization",
    "reasoning": "general",
    "humanities": "general",
}
SUITE = file_suite(
    version=1,
    config=published("mt_bench", "mtbench/question.jsonl"),
    expected=80,
    mapping={
        "domain": {"column": "category", "table": DOMAINS},
        "difficulty": 4,
        "prompt": "turns.0",
        "answer": "reference.0",
        "check": "none",
    },
)
