"""Check `tests`: unit tests for code."""

from tasks.verification.verify import verify_many
from tests.tasks.prompts import prompt, trace
from tests.tasks.sandbox.needed import needs_sandbox

pytestmark = needs_sandbox


def test_check_tests_verifies_many_at_once() -> None:
    asked = prompt("", "tests", tests="assert add(2, 2) == 4")
    right = "def add(a, b):\n    return a + b"
    answers = [right, "def add(a, b):\n    return 5", f"```python\n{right}\n```"] * 2
    told = [trace(answer) for answer in answers]
    verdicts = verify_many([asked] * 6, told)
    assert [verdict.exact for verdict in verdicts] == [True, False, True] * 2
    assert verdicts[1].detail.startswith("line 1 of the tests, 'assert add(2, 2) == 4'")
    assert verdicts[1].detail.endswith("the last call, with (2, 2) gave 5")
