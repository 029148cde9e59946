"""TruthfulQA as multiple choice with one true answer, MC1: 817 questions that many people answer
falsely (Lin et al. 2022, 2109.07958).

`path` is `data/mc_task.json` of github.com/sylinrl/TruthfulQA, whose `mc1_targets` is an object of
choice: 0 or 1, or the hub's
`hf://datasets/truthfulqa/truthful_qa/multiple_choice/validation-*.parquet`, whose `mc1_targets` has
`choices` and `labels`. The true answer comes first in both, so we order the choices by a hash of
question and choice. Lin et al. compare the likelihood of each choice; here the model writes a
letter, as in every other suite.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tasks.evaluation.suite_prompts import (
    FileSuite,
    SuiteRecord,
    bad_row,
    file_suite,
    published,
    suite_records,
)


def _records(config: FileSuite, data: Path | None) -> Iterator[SuiteRecord]:
    """The records with their `choices` in the order of the hash, and the `place` of the true
    one."""
    for record in suite_records(config, data):
        question, targets = record.row.get("question"), record.row.get("mc1_targets")
        pairs = _choices(targets)
        if sum(label == 1 for _, label in pairs) != 1:
            unsaid = (
                f"mc1_targets = {str(targets)[:80]!r} does not say of choices which one is true"
            )
            raise bad_row(config, record, unsaid)
        pairs.sort(key=lambda pair: hashlib.sha256(f"{question}\n{pair[0]}".encode()).digest())
        place = next(index for index, (_, label) in enumerate(pairs) if label == 1)
        row = {"question": question, "choices": [choice for choice, _ in pairs], "place": place}
        yield replace(record, row=row)


def _choices(targets: Any) -> list[tuple[str, Any]]:
    """Choices with their labels, in either form; empty for anything else."""
    match targets:
        case {"choices": list(choices), "labels": list(labels)}:
            return list(zip(choices, labels, strict=False))
        case dict():
            return list(targets.items())
    return []


SUITE = file_suite(
    version=1,
    config=published("truthfulqa", "truthfulqa/mc_task.json"),
    expected=817,
    mapping={
        "domain": "general",
        "difficulty": 4,
        "prompt": "question",
        "choices": "choices",
        "answer": "place",
        "check": "choice",
    },
    records=_records,
    asked_by="safety_eval",
)
