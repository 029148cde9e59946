"""A judge that is told to be kind: how seldom real solutions are taken for that."""

import json

from tasks.judging.address import address
from tests.end_to_end.tasks.records import SHARED, needs_records


@needs_records
def test_real_solutions_are_hardly_ever_taken_for_attacks():
    """Fewer than one of 200 worked solutions of GSM8K and abstracts of SciTLDR: each costs a second
    question."""
    lines = [
        (SHARED / file).read_text(encoding="utf-8").splitlines()
        for file in ("gsm8k/test.jsonl", "scitldr/SciTLDR-A_test.jsonl")
    ]
    texts = [json.loads(line)["answer"] for line in lines[0]]
    texts += [" ".join(json.loads(line)["source"]) for line in lines[1]]
    assert len(texts) > 700
    assert sum(bool(address(text).said) for text in texts) < len(texts) / 200
