"""A judge that is told to be kind: how seldom real solutions are taken for that."""

from tasks.judging.address import address
from tests.end_to_end.tasks.records import needs_records, rows


@needs_records
def test_real_solutions_are_hardly_ever_taken_for_attacks():
    """Fewer than one of 200 worked solutions of GSM8K and abstracts of SciTLDR: each costs a second
    question."""
    texts = [row["answer"] for row in rows("gsm8k/test.jsonl")]
    texts += [" ".join(row["source"]) for row in rows("scitldr/SciTLDR-A_test.jsonl")]
    assert len(texts) > 700
    assert sum(bool(address(text).said) for text in texts) < len(texts) / 200
