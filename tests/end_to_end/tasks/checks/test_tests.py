"""Check `tests` on HumanEval: its solutions pass, wrong ones do not."""

from tasks.sandbox.examination import examine
from tests.end_to_end.tasks.records import humaneval, needs_records
from tests.tasks.sandbox.needed import needs_sandbox

pytestmark = [needs_sandbox, needs_records]


def mutant(body: str) -> str | None:
    """The body with one operator changed, where it has one."""
    changes = {" < ": " >= ", " > ": " <= ", " == ": " != ", " + ": " - ", "[::-1]": "[:]"}
    for old, new in {**changes, "True": "False", " * ": " + "}.items():
        if old in body:
            return body.replace(old, new)
    return None


def test_all_of_humaneval() -> None:
    """All 164 canonical solutions pass, no wrong body does, and of those with one operator changed
    at least 95 % fail."""
    tasks = humaneval()
    assert [task["task_id"] for task in tasks if not solved(task, task["canonical_solution"])] == []
    wrong = [(task, wrong_bodies(task)[index % 4]) for index, task in enumerate(tasks)]
    assert [task["task_id"] for task, body in wrong if solved(task, body)] == []
    mutants = [(task, body) for task in tasks if (body := mutant(task["canonical_solution"]))]
    survived = [task["task_id"] for task, body in mutants if solved(task, body)]
    assert len(mutants) >= 120
    assert len(survived) <= 0.05 * len(mutants), survived


def solved(task: dict, body: str) -> bool:
    return examine(body, f"{task['test']}\ncheck({task['entry_point']})", prefix=task["prompt"]).ok


def wrong_bodies(task: dict) -> list[str]:
    """Bodies that are wrong whatever the task is."""
    return [
        "    return None\n",
        "    raise AssertionError\n",
        "    import sys\n    sys.exit(0)\n",
        f"    return {task['entry_point']}\n",
    ]
