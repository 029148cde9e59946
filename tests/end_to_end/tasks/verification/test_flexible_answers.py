"""Answers found in worked solutions of GSM8K."""

import re

from tasks.evaluation.reasoning_verdicts import judge
from tests.end_to_end.tasks.records import needs_records, rows
from tests.tasks.verification.test_flexible_answers import prompt


@needs_records
def test_worked_solutions_of_gsm8k_are_read_with_and_without_their_mark() -> None:
    """Without `#### 18` the last number of the text counts: of 400 solutions written by people it
    is the answer in 392."""
    told = [row["answer"] for row in rows("gsm8k/test.jsonl")]
    solutions = [re.sub(r"<<.*?>>", "", answer).split("#### ") for answer in told]
    marked = [
        judge(prompt("numeric", answer), f"{worked}#### {answer}").flexible
        for worked, answer in solutions
    ]
    bare = [judge(prompt("numeric", answer), worked).flexible for worked, answer in solutions]
    assert (len(told), sum(marked), sum(bare)) == (400, 400, 392)
