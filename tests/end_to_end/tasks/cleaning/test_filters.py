"""Filters on real records that are English and impersonal."""

import gzip
import json
from collections.abc import Iterator
from typing import get_args

from tasks.cleaning.filters import PiiKind, language_of, pii_of
from tests.end_to_end.tasks.records import SHARED, needs_records


def _real() -> Iterator[tuple[str, str]]:
    """(data set, text) of real records that are English and hold no personal data."""
    for line in (SHARED / "gsm8k" / "train_first1000.jsonl").open(encoding="utf-8"):
        record = json.loads(line)
        yield "gsm8k", record["question"]
        yield "gsm8k", record["answer"]
    for line in (SHARED / "scitldr" / "SciTLDR-A_test.jsonl").open(encoding="utf-8"):
        yield "scitldr", " ".join(json.loads(line)["source"])
    raw = gzip.decompress((SHARED / "humaneval" / "HumanEval.jsonl.gz").read_bytes())
    for line in raw.splitlines():
        record = json.loads(line)
        yield "humaneval", record["prompt"]
        yield "humaneval", record["canonical_solution"]
    for file in sorted((SHARED / "scibench").glob("*.json")):
        for record in json.loads(file.read_text(encoding="utf-8")):
            yield "scibench", record["problem_text"]


@needs_records
def test_nothing_is_taken_out_of_real_records_that_are_english_and_impersonal():
    texts = list(_real())
    assert len(texts) > 3000
    assert [(name, text) for name, text in texts if pii_of(text, get_args(PiiKind))] == []
    assert [(name, text) for name, text in texts if language_of(text) not in (None, "en")] == []
