"""HumanEval: 164 Python functions to complete from signature and docstring, judged by unit tests
(Chen et al. 2021, 2107.03374).

`path` is `HumanEval.jsonl.gz` of github.com/openai/human-eval, or the hub's
`hf://datasets/openai/openai_humaneval/openai_humaneval/test-*.parquet`. pass@k is reported where
the evaluation samples answers.
"""

from tasks.evaluation.suite_prompts import file_suite, published

SUITE = file_suite(
    version=1,
    config=published("humaneval", "humaneval/HumanEval.jsonl.gz"),
    expected=164,
    mapping={
        "domain": "coding",
        "difficulty": 4,
        "prompt": {"template": "Complete this Python function.\n\n{prompt}"},
        "answer": "canonical_solution",
        "check": "tests",
        "tests": {"template": "{test}\n\ncheck({entry_point})"},
        "code_prefix": "prompt",
    },
)
