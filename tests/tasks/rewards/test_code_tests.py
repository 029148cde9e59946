"""Reward `code_tests`: the fraction of a prompt's cases that an answer's code passes."""

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

from schemas.base import InputError
from schemas.examples import Domain, Prompt
from tasks.contract.reward import Resources, Response
from tasks.reinforcement.rewarding import Scorer, parse_rewards
from tasks.rewards import code_tests, exact_answer
from tasks.sandbox import bubblewrap, examination
from tasks.sandbox.bubblewrap import Limits
from tests.fakes.process import until
from tests.processes import descendants, name_of
from tests.tasks import prompts
from tests.tasks.rewards.test_rewards import score
from tests.tasks.sandbox.needed import needs_sandbox

pytestmark = needs_sandbox

CONFIGS = parse_rewards([{"name": "code_tests"}], "test")
FOUR = "assert f(0) == 0\nassert f(1) == 1\nassert f(2) == 4\nassert f(3) == 9"


def prompt(tests: str | None = FOUR, **changes) -> Prompt:
    fields = {"answer": "", "check": "tests", "domain": Domain.CODING, "tests": tests}
    return prompts.prompt(**fields | changes)


def answered(code: str) -> Response:
    return Response(prompts.trace(code))


def given(*codes: str, tests: str = FOUR, **config: float) -> list[float | None]:
    return prompts.paid(code_tests, *map(answered, codes), asked=prompt(tests), **config)


def test_all_cases_earn_one_and_a_part_of_them_that_part_of_the_partial_credit() -> None:
    codes = [f"def f(x): return {value}" for value in ("x * x", "x", "9", "None")]
    codes += ["def f(x", "I cannot."]
    assert given(*codes) == [1.0, 0.25, 0.125, 0.0, 0.0, 0.0]
    assert given(*codes[:3], partial_credit=0.0) == [1.0, 0.0, 0.0]
    assert given(codes[1], partial_credit=0.8) == [0.4]


PASSED = {
    "if x == 2: raise ValueError\n    return x * x": 3,
    "if x == 2: raise SystemExit(0)\n    return x * x": 3,
    "if x == 2: os._exit(0)\n    return x * x": 2,  # and cases 2 and 3 with its process
    "if x == 1: os.kill(1, 11)\n    return x * x if x < 2 else object()": 2,
    "return type('E', (int,), {'__eq__': lambda *_: True})(1)": 1,
    "raise AssertionError": 0,
}


def test_a_case_that_fails_or_ends_the_process_takes_no_earlier_case_along() -> None:
    codes = [f"import os\ndef f(x):\n    {code}" for code in PASSED]
    assert given(*codes) == [0.5 * passed / 4 for passed in PASSED.values()]


def test_cases_before_endless_code_count(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = {**examination.examine.__kwdefaults__, "limits": Limits(cpu_s=1)}
    monkeypatch.setattr(examination.examine, "__kwdefaults__", defaults)
    assert given("def f(x):\n    while x == 2: pass\n    return x * x") == [0.25]


@pytest.mark.parametrize(
    ("tests", "gives", "value"),
    [
        ("def c(g):\n assert True, 'a'\n assert g(1) == 1\n assert g(2) == 4\nc(f)", 1, 0.25),
        ("def c(g):\n for x in 0, 1:\n  assert g(x) == x\n assert g(1) == 1\nc(f)", 1, 0.25),
        # one case, which fails once
        ("def near(a, b):\n assert a == b\nnear(f(1), 1)\nnear(f(2), 4)", 1, 0.0),
        ("def test_a():\n assert f(1) == 1\ndef test_b():\n assert f(2) == 4", 4, 0.25),
        ("def test_a():\n f(1).x\n assert f(1) == 4\ndef test_b():\n assert f(2) == 4", 4, 0.25),
        # no cases
        ("x = f(1)\nif x != 1: raise ValueError\nif f(2) != 4: raise ValueError", 1, 0.0),
        # its one case passes, but not the tests
        ("assert f(1) == 1\nif f(2) != 4: raise ValueError", 1, 0.25),
        ("x = f(1).y\nassert f(1) == 1", 1, 0.0),  # what comes before a case fails
        ("assert f(1) == 1\nimport sys\nsys.exit(0)\nassert f(2) == 4", "x * x", 0.25),
    ],
)
def test_what_a_case_is(tests: str, gives: object, value: float) -> None:
    assert given(f"def f(x): return {gives}", tests=tests) == [value]


def test_tests_that_use_nothing_of_the_code_earn_nothing() -> None:
    own = "x = 4\nassert x == 4"
    assert given("def g(): pass", tests=own) == [0.0]
    used = f"{own}\nassert f(1) == 1\nassert f(2) == 4"
    assert given("def f(x): return 1", tests=used) == [0.5 / 3]


def test_other_prompts_abstain_and_malformed_traces_earn_nothing() -> None:
    asked = [prompt(None, check="exact", answer="4"), prompt(), prompt()]
    square = "def f(x): return x * x"
    responses = [answered("4"), Response(f"<answer>{square}</answer>"), answered(square)]
    assert code_tests.score(code_tests.Config(), asked, responses) == [None, 0.0, 1.0]


def test_the_ledger_keeps_how_a_part_came_about() -> None:
    codes = [prompts.trace(f"def f(x): return {value}") for value in ("x", "x * x")]
    rewards = score(CONFIGS, [prompt()] * 2, codes)
    assert list(rewards.components["code_tests"]) == [0.25, 1.0]
    detail = rewards.details["code_tests"][0]
    assert (detail["passed"], detail["cases"]) == (2, 4)
    assert detail["detail"].startswith("line 3 of the tests, 'assert f(2) == 4'")


def test_a_sandbox_that_fails_is_an_abstention(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError("no process could be started")

    monkeypatch.setattr(bubblewrap.socket, "send_fds", fails)
    asked = [prompt()], [answered("def f(x): return x")]
    (judged,) = code_tests.score(code_tests.Config(), *asked)
    assert judged.value is None
    failure = "failed twice, the second time because: .*no process could be started"
    assert re.search(failure, judged.detail["sandbox"])
    # GRPO's metrics ask the same, and would end the stage
    assert exact_answer.score(exact_answer.Config(), *asked) == [None]


def warden() -> int:
    """The process inside this process's bubblewrap."""
    named = [(pid, name_of(pid)) for pid, _ in descendants(os.getpid())]
    (bwrap,) = [pid for pid, name in named if name.startswith("bwrap")]
    return descendants(bwrap)[0][0]


def test_a_killed_warden_is_replaced_and_no_answer_suffers() -> None:
    """Killed amid an answer, and between two."""
    assert given("def f(x): return x * x") == [1.0]
    first = warden()
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(given, "import time\ntime.sleep(3)\ndef f(x): return x * x")
        until(lambda: len(descendants(first)) >= 2)  # their keepers
        os.kill(first, signal.SIGKILL)
        assert asked.result() == [1.0]
    second = warden()
    assert second != first
    os.kill(second, signal.SIGKILL)
    assert given("def f(x): return x * x") == [1.0]


def test_without_a_sandbox_the_stage_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    refuses = Mock(side_effect=InputError("there is no bwrap here"))
    monkeypatch.setattr(code_tests, "require_sandbox", refuses)
    with pytest.raises(InputError, match="there is no bwrap here"):
        Scorer(CONFIGS, Resources({}, answers=None))
