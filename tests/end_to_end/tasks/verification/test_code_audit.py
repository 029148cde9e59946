"""The audit of code flags no solution of HumanEval."""

from tasks.verification.code_audit import FLOOR, audit
from tests.end_to_end.tasks.records import humaneval, needs_records
from tests.tasks.verification.test_code_audit import asked


@needs_records
def test_no_canonical_solution_of_humaneval_is_flagged() -> None:
    """164 solutions of 4 to 128 nodes, half of them 31 or fewer; none is short or suspicious."""
    rows = humaneval()
    names = {"prompt": "prompt", "code_prefix": "prompt", "tests": "test"}
    names["answer"] = "canonical_solution"
    prompts = [asked(**{name: row[column] for name, column in names.items()}) for row in rows]
    found = [audit(prompt, prompt.answer) for prompt in prompts]
    assert [
        (row["task_id"], one.problems) for row, one in zip(rows, found, strict=True) if one.problems
    ] == []
    sizes = sorted(one.nodes for one in found)
    assert (len(sizes), sizes[0], sizes[82], sizes[-1]) == (164, 4, 31, 128)
    assert sum(size <= FLOOR for size in sizes) == 5
    bare = [audit(prompt.model_copy(update={"answer": ""}), prompt.answer) for prompt in prompts]
    assert not any(one.problems for one in bare)
