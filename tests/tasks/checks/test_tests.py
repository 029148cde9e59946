"""Check `tests`: unit tests for code, and all of HumanEval. What the sandbox withstands is in
test_sandbox.py."""

import pytest

from schemas.base import InputError
from schemas.examples import Domain, Prompt, Trace
from tasks.verification.verify import verify_many
from tests.tasks.sandbox.needed import needs_sandbox

pytestmark = needs_sandbox


def test_check_tests_verifies_many_at_once() -> None:
    asked = Prompt(
        id="p1",
        prompt="?",
        domain=Domain.CODING,
        check="tests",
        tests="assert add(2, 2) == 4",
        source="test",
    )
    answers = [
        "def add(a, b):\n    return a + b",
        "def add(a, b):\n    return 5",
        "```python\ndef add(a, b):\n    return a + b\n```",
    ] * 2
    verdicts = verify_many(
        [asked] * 6, [Trace(reasoning="r", answer=answer).render() for answer in answers]
    )
    assert [verdict.exact for verdict in verdicts] == [True, False, True] * 2
    assert (
        verdicts[1].detail
        == "line 1 of the tests, 'assert add(2, 2) == 4': AssertionError; the last call, with (2,"
        " 2) gave 5"
    )
    with pytest.raises(InputError, match=r"prompt p1 .*'tests' but it has no tests"):
        verify_many(
            [asked.model_copy(update={"tests": None})],
            [Trace(reasoning="r", answer="x = 1").render()],
        )
