"""Check `tests`: unit tests for code, and all of HumanEval. What the sandbox withstands is in test_sandbox.py."""

from tests.tasks.checks.test_tests import humaneval, solved, wrong_bodies
from tests.tasks.sandbox.needed import needs_sandbox

pytestmark = needs_sandbox


def mutant(body: str) -> str | None:
    """The body with one operator changed, where it has one."""
    for old, new in (
        (" < ", " >= "),
        (" > ", " <= "),
        (" == ", " != "),
        (" + ", " - "),
        ("[::-1]", "[:]"),
        ("True", "False"),
        (" * ", " + "),
    ):
        if old in body:
            return body.replace(old, new)
    return None


def test_all_of_humaneval() -> None:
    """All 164 canonical solutions pass, no wrong body does, and of those with one operator changed at least 95 % fail."""
    tasks = humaneval()
    assert [task["task_id"] for task in tasks if not solved(task, task["canonical_solution"])] == []
    assert [task["task_id"] for index, task in enumerate(tasks) if solved(task, wrong_bodies(task)[index % 4])] == []
    mutants = [(task, body) for task in tasks if (body := mutant(task["canonical_solution"]))]
    survived = [task["task_id"] for task, body in mutants if solved(task, body)]
    assert len(mutants) >= 120
    assert len(survived) <= 0.05 * len(mutants), survived
