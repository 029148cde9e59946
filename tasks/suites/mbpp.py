"""MBPP: short Python functions from a sentence, judged by assertions (Austin et al. 2021,
2108.07732).

The task ids 11 to 510 are asked, which its authors keep for evaluation: 500 of `mbpp.jsonl`, 257 of
`sanitized-mbpp.json`, both of github.com/google-research/google-research/tree/master/mbpp. The
hub's `hf://datasets/google-research-datasets/mbpp/full/test-*.parquet` holds just these; its
`sanitized` directory likewise.

The first assertion stands in the prompt, for the sentence does not say what the function is called
(as InCoder, 2204.05999, asks it; Austin et al. show all three, which can be passed by returning
what they compare with). All assertions must hold.
"""

from pathlib import Path
from typing import Literal

from schemas.base import InputError
from tasks.data.sources import DataPath, PromptMapping
from tasks.evaluation.suite_prompts import FileSuite, SuiteRecord, file_suite, suite_records

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


class Config(FileSuite):
    """See the module."""

    name: Literal["mbpp"]
    path: DataPath = "mbpp/mbpp.jsonl"


def _records(config: Config, data: Path | None) -> list[SuiteRecord]:
    return [
        record for record in suite_records(config, data) if _number(config, record) in _EVALUATION
    ]


def _mapping(config: Config, record: SuiteRecord) -> PromptMapping:
    return _SANITIZED if "test_imports" in record.row else _FULL


def _number(config: Config, record: SuiteRecord) -> int:
    number = record.row.get("task_id")
    if not isinstance(number, int):
        raise InputError(
            f"suite {config.suite}: {record.file}, line {record.line}: task_id = {number!r} is no"
            " whole number. Correct it."
        )
    return number


def expected(config: Config) -> int:
    return 257 if "sanitized" in config.path else 500


SUITE = file_suite(version=1, config=Config, mapping=_mapping, expected=expected, records=_records)
