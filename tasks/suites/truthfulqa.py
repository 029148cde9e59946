"""TruthfulQA as multiple choice with one true answer, MC1: 817 questions that many people answer
falsely (Lin et al. 2022, 2109.07958).

`path` is `data/mc_task.json` of github.com/sylinrl/TruthfulQA, whose `mc1_targets` is an object of
choice: 0 or 1, or the hub's
`hf://datasets/truthfulqa/truthful_qa/multiple_choice/validation-*.parquet`, whose `mc1_targets` has
`choices` and `labels`. The true answer stands first in both: the choices are put in the order of a
hash of question and choice. Lin et al. compare the likelihood of each choice; here the model writes
a letter, as it is asked to in every other suite.
"""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Literal

from schemas.base import InputError
from tasks.data.sources import DataPath, PromptMapping
from tasks.evaluation.suite_prompts import FileSuite, SuiteRecord, file_suite, suite_records

MAPPING = PromptMapping.parse(
    {
        "domain": "general",
        "difficulty": 4,
        "prompt": "question",
        "choices": "choices",
        "answer": "place",
        "check": "choice",
    }
)


class Config(FileSuite):
    """See the module."""

    name: Literal["truthfulqa"]
    path: DataPath = "truthfulqa/mc_task.json"


def _records(config: Config, data: Path | None) -> list[SuiteRecord]:
    return [_shuffled(config, record) for record in suite_records(config, data)]


def _shuffled(config: Config, record: SuiteRecord) -> SuiteRecord:
    """The record with its `choices` in the order of the hash, and the `place` of the true one."""
    question, targets = record.row.get("question"), record.row.get("mc1_targets")
    if (
        isinstance(targets, dict)
        and isinstance(targets.get("choices"), list)
        and isinstance(targets.get("labels"), list)
    ):
        pairs = list(zip(targets["choices"], targets["labels"], strict=False))
    else:
        pairs = list(targets.items()) if isinstance(targets, dict) else []
    if sum(label == 1 for _, label in pairs) != 1:
        where = f"suite {config.suite}: {record.file}, line {record.line}"
        raise InputError(
            f"{where}: mc1_targets = {str(targets)[:80]!r} does not say of choices which one is"
            " true. Correct it."
        )
    pairs.sort(key=lambda pair: hashlib.sha256(f"{question}\n{pair[0]}".encode()).digest())
    place = next(index for index, (_, label) in enumerate(pairs) if label == 1)
    return replace(
        record,
        row={"question": question, "choices": [choice for choice, _ in pairs], "place": place},
    )


SUITE = file_suite(
    version=1,
    config=Config,
    mapping=MAPPING,
    expected=817,
    records=_records,
    asked_by="safety_eval",
)
