"""GSM8K: 1,319 grade school word problems of 2 to 8 steps, whose answer is a number behind `####`
(Cobbe et al. 2021, 2110.14168).

`path` is `test.jsonl` of github.com/openai/grade-school-math, or the hub's
`hf://datasets/openai/gsm8k/main/test-*.parquet`.
"""

from tasks.evaluation.suite_prompts import file_suite, published

SUITE = file_suite(
    version=1,
    config=published("gsm8k", "gsm8k/test.jsonl"),
    expected=1319,
    mapping={
        "domain": "math",
        "difficulty": 3,
        "prompt": "question",
        "answer": {"column": "answer", "after": "####"},
        "check": "numeric",
    },
)
