"""Check `tests`: unit tests for code, and all of HumanEval. What the sandbox withstands is in test_sandbox.py."""

import gzip
import json
from pathlib import Path

import pytest

from schemas.base import InputError
from schemas.examples import Domain, Prompt, Trace
from tasks.sandbox.examination import examine
from tasks.verification.verify import verify_many
from tests.tasks.sandbox.needed import needs_sandbox

pytestmark = needs_sandbox

HUMANEVAL = Path(__file__).resolve().parents[4] / "shared" / "data" / "humaneval" / "HumanEval.jsonl.gz"


def test_check_tests_verifies_many_at_once() -> None:
    asked = Prompt(id="p1", prompt="?", domain=Domain.CODING, check="tests", tests="assert add(2, 2) == 4", source="test")
    answers = ["def add(a, b):\n    return a + b", "def add(a, b):\n    return 5", "```python\ndef add(a, b):\n    return a + b\n```"] * 2
    verdicts = verify_many([asked] * 6, [Trace(reasoning="r", answer=answer).render() for answer in answers])
    assert [verdict.exact for verdict in verdicts] == [True, False, True] * 2
    assert verdicts[1].detail == "line 1 of the tests, 'assert add(2, 2) == 4': AssertionError; the last call, with (2, 2) gave 5"
    with pytest.raises(InputError, match=r"prompt p1 .*'tests' but it has no tests"):
        verify_many([asked.model_copy(update={"tests": None})], [Trace(reasoning="r", answer="x = 1").render()])


def humaneval() -> list[dict]:
    if not HUMANEVAL.exists():
        pytest.skip(f"the real records are not here: {HUMANEVAL}")
    with gzip.open(HUMANEVAL, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def solved(task: dict, body: str) -> bool:
    return examine(body, f"{task['test']}\ncheck({task['entry_point']})", prefix=task["prompt"]).ok


def wrong_bodies(task: dict) -> list[str]:
    """Bodies that are wrong whatever the task is."""
    return ["    return None\n", "    raise AssertionError\n", "    import sys\n    sys.exit(0)\n", f"    return {task['entry_point']}\n"]


def test_humaneval_sample() -> None:
    """Eight tasks, among them those that use helpers of their own prompt (32, 38, 50) and an import inside the body (115)."""
    tasks = humaneval()
    for index in (0, 2, 32, 38, 50, 115, 130, 162):
        assert solved(tasks[index], tasks[index]["canonical_solution"]), tasks[index]["task_id"]
        assert not solved(tasks[index], wrong_bodies(tasks[index])[index % 4]), tasks[index]["task_id"]
