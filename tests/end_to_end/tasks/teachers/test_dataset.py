"""Teacher `dataset` on HumanEval's file."""

import pytest

from schemas.examples import Example
from tests.end_to_end.tasks.records import SHARED, needs_records
from tests.tasks.teachers.dataset_rows import teach

HUMANEVAL = SHARED / "humaneval/HumanEval.jsonl.gz"


@needs_records
def test_humaneval_rows_carry_their_tests_and_their_solutions_pass_them():
    source = {
        "path": "humaneval/HumanEval.jsonl.gz",
        "domain": "coding",
        "check": "tests",
        "prompt": {"template": "Complete this Python function.\n\n{prompt}"},
        "reasoning": {"template": "The body of {entry_point} has to agree with its docstring."},
        "answer": {"template": "{prompt}\n    {canonical_solution}"},
        "tests": {"template": "{test}\n\ncheck({entry_point})"},
        "code_prefix": "prompt",
    }
    rows = teach(HUMANEVAL.parent.parent, source)
    assert len(rows) == 164
    assert all(isinstance(row, Example) and row.check == "tests" for row in rows)
    for row in rows[::20]:  # OpenAI's own solutions: no stranger's code
        exec(f"{row.answer}\n\n{row.tests}", {})
        name = row.tests.rpartition("check(")[2].rstrip(")")
        assert f"def {name}(" in row.code_prefix
        with pytest.raises(Exception):  # noqa: B017  whatever a wrong solution brings about
            exec(f"{row.code_prefix}\n    return None\n\n{row.tests}", {})
