"""What counts as a passed test: attacks on a verdict, honest answers beside them, and a fuzzer of
the protocol.

verdict_attacks.txt and verdict_honest.txt are tables: `= name`, the answer's code, `--`, its tests,
and, behind another `--`, the prompt's prefix. An attack without tests is up against SQUARES, where
it cannot know what a square is; it may use what PRELUDE defines.
"""

import json
import os
import random
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tasks.sandbox import guest, plain
from tasks.sandbox.bubblewrap import Limits
from tasks.sandbox.examination import Examined, examine
from tests.tasks.sandbox.needed import needs_sandbox

SQUARES = "assert f(2) == 4\nassert f(3) == 9\nassert f(-1) == 1"
ENDED_BY_LIMITS = {"time", "huge results", "threads"}

PRELUDE = """
import gc, json, os, sys
def framed(frame):
    data = frame if isinstance(frame, bytes) else json.dumps(frame).encode()
    return len(data).to_bytes(8, "big") + data
def write(data):
    for fd in range(3, 64):
        try:
            os.write(fd, data)
        except OSError:
            pass
def server():
    return [one for one in gc.get_objects() if type(one).__name__ == "_Server"][-1]
def say(*frames):
    number = server()._request
    write(b"".join(framed([number, *frame]) for frame in frames))
"""


def table(name: str) -> dict[str, list[str]]:
    """The parts of each entry of a table."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    entries = [entry.partition("\n") for entry in f"\n{text}".split("\n= ")[1:]]
    return {title: rest.split("\n--\n") for title, _, rest in entries}


ATTACKS, HONEST = table("verdict_attacks.txt"), table("verdict_honest.txt")
GROUPS = sorted({title.partition(": ")[0] for title in ATTACKS})


def attacked(title: str) -> Examined:
    code, tests = (*ATTACKS[title], SQUARES)[:2]
    endless = title.partition(": ")[0] in ENDED_BY_LIMITS
    limits = Limits(wall_s=2, cpu_s=1) if endless else Limits(cpu_s=2)
    return examine(PRELUDE + code, tests, limits=limits, every=len(title) % 2 == 0)


def test_there_are_many_attacks() -> None:
    assert (len(ATTACKS) >= 180, len(GROUPS)) == (True, 20)


@needs_sandbox
@pytest.mark.parametrize("group", GROUPS)
def test_no_attack_passes_and_none_gets_away_without_a_verdict(group: str) -> None:
    """An attack that ends as SandboxFailed would be raised here: nothing would be known of its
    code."""
    titles = [title for title in ATTACKS if title.partition(": ")[0] == group]
    with ThreadPoolExecutor(8) as threads:
        found = dict(zip(titles, threads.map(attacked, titles), strict=True))
    assert [title for title, examined in found.items() if examined.ok] == []
    details = {title: examined.detail for title, examined in found.items()}
    assert [title for title, one in details.items() if not one or "NameError" in one] == []


@needs_sandbox
def test_no_honest_answer_fails() -> None:
    def examined(parts: list[str]) -> list[Examined]:
        code, tests, prefix = (*parts, "")[:3]
        return [examine(code, tests, prefix=f"{prefix}\n", every=every) for every in (False, True)]

    with ThreadPoolExecutor(4) as threads:
        found = dict(zip(HONEST, threads.map(examined, HONEST.values()), strict=True))
    assert {title: one.detail for title, both in found.items() for one in both if not one.ok} == {}
    assert [title for title, (_, one) in found.items() if one.passed != one.cases] == []


@needs_sandbox
@pytest.mark.parametrize(
    ("method", "test", "why"),
    [
        ("unused(self): pass", "f() == 4", "compare an object"),
        ("__eq__(self, other): return True", "V() == V()", "compare"),
        ("__iter__(self): return iter(int, 1)", "4 in f()", "more than 10000"),
        ("__abs__(self): return 5.0", "abs(f()) == 5", "its abs"),
        ("__mul__(self, other): return 11", "V() * V() == 11", "arithmetic"),
        ("count(self, x): return 1", "f().count(2) == 1", ".count"),
    ],
)
def test_what_cannot_be_examined_is_not_verifiable_and_has_not_passed(method, test, why):
    examined = examine(f"class V:\n    def {method}\ndef f(): return V()", f"assert {test}")
    assert not examined.ok
    assert not examined.verifiable
    assert "not verifiable: " in examined.detail
    assert why in examined.detail


@needs_sandbox
@pytest.mark.parametrize(
    ("tests", "prefix", "why"),
    [
        ("assert f( == 1", "", "SyntaxError"),
        ("assert f() == '\ud800'", "", "UnicodeEncodeError"),
        ("import numpy as np\nassert np.isclose(f(), 1)", "", "No module named 'numpy'"),
        ("assert f() == 1", "import numpy\ndef f():\n", "No module named 'numpy'"),
    ],
)
def test_tests_that_cannot_be_read_are_not_verifiable(tests: str, prefix: str, why: str) -> None:
    examined = examine("def f(): return 1", tests, prefix=prefix)
    assert (examined.ok, examined.verifiable) == (False, False)
    assert examined.detail.startswith("not verifiable: tests or prefix cannot be used here: ")
    assert why in examined.detail


@needs_sandbox
def test_a_case_that_passes_only_beside_a_kept_copy_does_not_count() -> None:
    """f sorts its argument: of four cases the first fails anyway, and `xs == before` is true only
    of the copy."""
    code = "def f(xs):\n    xs.sort()\n    return xs[0] if xs[0] != 9 else 0"
    tests = "xs = [3, 1]\nbefore = xs[:]\nassert f([9]) == 9\nassert f(xs) == 1\n"
    tests += "assert xs == before\nassert f([2]) == 2"
    examined = examine(code, tests, every=True)
    assert (examined.ok, examined.passed, examined.cases) == (False, 2, 4)


# A fuzzer of the protocol, in this process: the examiner's loop against bytes that nobody made for
# it

SECRET = "4b1c0c5e"
TESTS = f"""
log = []
def callback(x=0):
    log.append(x)
    return x
class Own:
    size = 3
def each(*uses):
    for use in uses:
        try:
            use()
        except Exception:
            pass
def leave():
    with f(2) as entered:
        raise ValueError
def test_all():
    xs = [1]
    g = f(callback)
    each(lambda: f(1) == 2, lambda: g(1), lambda: list(f(2)), lambda: len(f(3)))
    each(lambda: str(f(xs)), lambda: f(Own()).size, lambda: f(2)[1], lambda: 4 in f(3))
    each(lambda: P(1).x, lambda: P(2).pop(), lambda: isinstance(f(1), P), leave)
    each(lambda: f(1) + 1, lambda: f({{1: 2}}), lambda: E("x").code, lambda: next(f(2)))
    each(lambda: bool(f(1)), lambda: LIMIT + 1)
    try:
        f(3)
    except E:
        pass
    assert xs == f(0) == "{SECRET}"
"""
NAMES: list[Any] = [
    ["f", {"object": 0}],
    ["P", {"object": 1}],
    ["E", {"error": [2, ["E", "ValueError", "Exception"]]}],
    ["LIMIT", 3],
]
TAGS = [*plain.TYPES, "namedtuple", "object", "lent", "error", "raised", "type", "module"]
KINDS = ["value", "end", "raise", "back", "do", "names", "ok", 1, None]


def some(chance: random.Random, depth: int = 3) -> Any:
    """A value, as often as not a wrong one."""
    pick = chance.randrange(12 if depth else 6)
    text = chance.choice(["", "x", "1", "\ud800", "__class__", "ValueError", "2024-01-02"])
    if pick < 5:
        return [None, True, chance.randrange(-2, 9), chance.random(), text][pick]
    if pick < 7:
        return [some(chance, depth - 1) for _ in range(chance.randrange(4))] if depth else []
    content = some(chance, depth - 1)
    if chance.random() < 0.6:
        content = [some(chance, depth - 1) for _ in range(chance.randrange(4))]
    pairs = [[some(chance, 0), some(chance, depth - 1)] for _ in range(chance.randrange(3))]
    return {chance.choice(TAGS): chance.choice([content, pairs, chance.randrange(4)])}


def frame(chance: random.Random, number: int) -> list[Any]:
    """A frame that might be an answer, with something wrong in it at every place, now and then."""
    kind = chance.choice(["E", "StopIteration", "KeyError", "SystemExit", "Stopped"])
    error = [[kind, "Exception"], "x", [some(chance)], {"code": some(chance)}, chance.randrange(4)]
    operation = chance.choice(["call", "next", "iter", "getattr", "len", "eval"])
    back = [operation, chance.randrange(3), [some(chance)], {}]
    whole = chance.choice(
        [
            [number, "value", some(chance), []],
            [number, "value", {"object": chance.randrange(4)}, []],
            [number, "value", None, [[0, {"list": [some(chance)]}]]],
            [number, "end"],
            [number, "raise", *error],
            [number, "back", *back],
        ]
    )
    while chance.random() < 0.2:
        wrong = [some(chance), chance.choice(KINDS), number + 1, str(number)]
        whole[chance.randrange(len(whole))] = chance.choice(wrong)
    while chance.random() < 0.1:
        whole.insert(chance.randrange(len(whole) + 1), some(chance))
    return whole


def framed(content: Any) -> bytes:
    data = json.dumps(content).encode()
    return len(data).to_bytes(8, "big") + data


def stream(chance: random.Random) -> bytes:
    names = NAMES if chance.random() < 0.8 else [*NAMES, [some(chance, 0), some(chance)]]
    data = framed([1, "value", {"list": names}, []] if chance.random() < 0.95 else frame(chance, 1))
    number = 2
    for _ in range(chance.randrange(1, 40)):
        one = frame(chance, number)
        data += framed(one)
        number += len(one) < 2 or one[1] != "back"
    if chance.random() < 0.3:
        data = data[: chance.randrange(len(data))]
    if chance.random() < 0.2:
        place = chance.randrange(len(data) + 1)
        noise = chance.randbytes(chance.randrange(1, 9))
        data = data[:place] + noise + data[place + chance.randrange(9) :]
    return data[:60_000]  # what a pipe holds


@pytest.fixture
def verdict_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, bytes], dict[str, Any]]:
    """The verdict of an examiner that reads these bytes, and then the end of its pipe."""
    monkeypatch.setitem(sys.modules, "tests", sys.modules.get("tests"))
    monkeypatch.setattr(sys, "set_int_max_str_digits", lambda most: None)  # of this process

    def run(tests: str, said: bytes) -> dict[str, Any]:
        pipes = [os.pipe() for _ in range(3)]
        (incoming, answers), (asked, outgoing), (heard, verdict) = pipes
        try:
            os.write(answers, said)
            os.close(answers)
            payload = {"prefix": "", "tests": tests, "every": False, "shown": False}
            given = os.memfd_create("payload")
            os.pwrite(given, json.dumps(payload).encode(), 0)
            guest.main("examiner", given, incoming, outgoing, verdict)
            (line,) = os.read(heard, 2**16).splitlines()
            return json.loads(line)
        finally:
            for end in (incoming, asked, outgoing, heard, verdict):
                os.close(end)

    return run


Examiner = Callable[[str, bytes], dict[str, Any]]


def test_the_fuzzers_harness_can_see_a_pass(verdict_of: Examiner) -> None:
    said = framed([1, "value", {"list": [["f", {"object": 0}]]}, []]) + framed([2, "value", 4, []])
    passed = {"ok": True, "verifiable": True, "unseen": False, "gone": False, "detail": ""}
    assert verdict_of("assert f(2) == 4", said) == passed
    assert verdict_of("assert f(2) == 5", said)["ok"] is False


def test_nothing_that_a_candidate_says_is_a_pass_or_an_error_of_the_examiner(verdict_of):
    """Random and mutated frames, wrong numbers, wrong types at every place, truncated and garbled
    streams, and the end of the pipe."""
    reached = set()
    for seed in range(300):
        verdict = verdict_of(TESTS, stream(random.Random(seed)))
        assert verdict["ok"] is False, seed
        assert verdict["detail"], seed
        reached.add(verdict["detail"].partition(": ")[2][:60])
    assert len(reached) > 35  # it gets past the first frame, in many ways
