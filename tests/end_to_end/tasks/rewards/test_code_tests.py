"""Reward `code_tests` on HumanEval."""

import ast

import pytest

from schemas.examples import Prompt
from tasks.rewards import code_tests
from tasks.sandbox import assembly
from tests.end_to_end.tasks.records import humaneval, needs_records
from tests.tasks.rewards.test_code_tests import answered, prompt
from tests.tasks.sandbox.needed import needs_sandbox

pytestmark = [needs_sandbox, needs_records]


def prompts() -> list[Prompt]:
    found = []
    for task in humaneval():
        known = {"code_prefix": task["prompt"], "answer": task["canonical_solution"]}
        found.append(prompt(f"{task['test']}\ncheck({task['entry_point']})", **known))
    return found


def test_humaneval_has_cases() -> None:
    """All but a few of the 164 have two or more; so says the parser, of the same text that the
    examiner divides."""
    counts = [assembly.divide(ast.parse(one.tests), "<case>") for one in prompts()]
    assert min(counts) >= 1
    assert sum(count >= 2 for count in counts) >= 155


@pytest.mark.parametrize(("index", "cases"), [(0, 7), (2, 3), (8, 5), (53, 6), (115, 5), (161, 8)])
def test_humaneval_solutions_earn_one_and_broken_ones_a_part(index: int, cases: int) -> None:
    """What is right for the first call only passes one case of several; what is never right
    none."""
    one = prompts()[index]
    name = one.tests.rpartition("check(")[2].rstrip(")")
    broken = f"{one.code_prefix}{one.answer}\n_right, _calls = {name}, []\n"
    broken += f"def {name}(*given):\n    _calls.append(1)\n"
    broken += "    return _right(*given) if len(_calls) == 1 else None"
    answers = [answered(body) for body in (one.answer, broken, "    return None\n")]
    whole, part, nothing = code_tests.score(code_tests.Config(), [one] * 3, answers)
    assert whole == 1.0
    assert (part.value, part.detail["passed"], part.detail["cases"]) == (0.5 / cases, 1, cases)
    assert nothing.value == 0.0
