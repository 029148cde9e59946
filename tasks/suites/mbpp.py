"""MBPP: short Python functions from a sentence, judged by assertions (Austin et al. 2021,
2108.07732).

It asks the task ids 11 to 510, which its authors reserve for evaluation: 500 of `mbpp.jsonl`, 257
of `sanitized-mbpp.json`, both of github.com/google-research/google-research/tree/master/mbpp. The
hub's `hf://datasets/google-research-datasets/mbpp/full/test-*.parquet` holds just these; its
`sanitized` directory likewise.

The prompt contains the first assertion, since the sentence does not name the function (as in
InCoder, 2204.05999; Austin et al. show all three, which an answer can pass by returning the
expected values). All assertions must hold.
"""

from collections.abc import Iterator
from pathlib import Path

from tasks.data.sources import PromptMapping
from tasks.evaluation.suite_prompts import (
    FileSuite,
    SuiteRecord,
    bad_row,
    file_suite,
    published,
    suite_records,
)

_EVALUATION = range(11, 511)
_ASKED = "{%s} Your code should pass this test:\n\n{test_list.0}"
_FULL, _SANITIZED = (
    PromptMapping.parse(
        {
            "domain": "coding",
            "difficulty": 3,
            "prompt": {"template": _ASKED % text},
            "answer": "code",
            "check": "tests",
            "tests": {"template": f"[{{{setup}}}\n]{{test_list}}", "join": "\n"},
        }
    )
    for text, setup in (("text", "test_setup_code"), ("prompt", "test_imports"))
)


def _records(config: FileSuite, data: Path | None) -> Iterator[SuiteRecord]:
    for record in suite_records(config, data):
        number = record.row.get("task_id")
        if not isinstance(number, int):
            raise bad_row(config, record, f"task_id = {number!r} is no whole number")
        if number in _EVALUATION:
            yield record


SUITE = file_suite(
    version=1,
    config=published("mbpp", "mbpp/mbpp.jsonl"),
    mapping=lambda config, record: _SANITIZED if "test_imports" in record.row else _FULL,
    expected=lambda config: 257 if "sanitized" in config.path else 500,
    records=_records,
)
