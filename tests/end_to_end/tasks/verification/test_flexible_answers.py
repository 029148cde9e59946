"""Answers found in worked solutions of GSM8K."""

import json
import re

from tasks.evaluation.reasoning_verdicts import judge
from tests.end_to_end.tasks.records import SHARED, needs_records
from tests.tasks.verification.test_flexible_answers import prompt

GSM8K = SHARED / "gsm8k" / "test.jsonl"


@needs_records
def test_worked_solutions_of_gsm8k_are_read_with_and_without_their_mark() -> None:
    """Without `#### 18` the last number of the text counts: of 400 solutions written by people it
    is the answer in 392."""
    rows = [json.loads(line) for line in GSM8K.open(encoding="utf-8")]
    solutions = [re.sub(r"<<.*?>>", "", row["answer"]).split("#### ") for row in rows]
    marked = [
        judge(prompt("numeric", answer), f"{worked}#### {answer}").flexible
        for worked, answer in solutions
    ]
    bare = [judge(prompt("numeric", answer), worked).flexible for worked, answer in solutions]
    assert (len(rows), sum(marked), sum(bare)) == (400, 400, 392)
