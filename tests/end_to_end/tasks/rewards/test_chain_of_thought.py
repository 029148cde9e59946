"""Reward `chain_of_thought` on worked solutions of GSM8K."""

import re

from tests.end_to_end.tasks.records import needs_records, rows
from tests.tasks.rewards.test_chain_of_thought import TRAIN, judged


@needs_records
def test_real_solutions_have_structure_and_their_arithmetic_holds():
    """GSM8K's reference solutions without the calculator's marks: nearly all equations hold, and
    the mean is high."""
    values, equations = [], []
    for row in rows("gsm8k/train_first1000.jsonl")[:200]:
        steps, _, answer = re.sub(r"<<.*?>>", "", row["answer"]).partition("\n#### ")
        prompt = TRAIN.model_copy(update={"prompt": row["question"], "answer": answer})
        one = judged(steps, prompt)
        values.append(one.value)
        equations.append(one.detail["equations"])
    assert sum(values) / len(values) > 0.7
    assert sum(equations) / len(equations) > 0.85
