"""Check `math`: what means the same agrees, and nothing that a model writes hangs or fills the
memory."""

import threading

import pytest

from schemas.base import InputError
from schemas.examples import Check, Domain, Prompt, Trace
from tasks.checks import math
from tasks.checks.math import agrees
from tasks.verification.apart import Apart, LimitMet
from tasks.verification.verify import verify_many


def asked(reference: str, check: Check = "math") -> Prompt:
    return Prompt(
        id="p1", prompt="?", domain=Domain.MATH, answer=reference, check=check, source="test"
    )


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("\\frac{2}{4}", "1/2"),
        ("$\\dfrac{1}{2}$", "0.5"),
        ("7 1/2", "\\frac{15}{2}"),
        ("1e5", "100000"),
        ("(x+1)^2", "x^2 + 2x + 1"),
        ("(x+1)**2", "x^2 + 2x + 1"),
        ("2\\sqrt{2}", "sqrt(8)"),
        ("pi/2", "\\frac{\\pi}{2}"),
        ("1 - cos(x)^2", "\\sin^2 x"),
        ("2, 1", "\\{1, 2\\}"),
        ("x = 1 or x = 2", "\\{1, 2\\}"),
        ("(-∞, 2]", "(-\\infty, 2]"),
        ("(1, 2)", "1 < x < 2"),
        ("x = 3", "3"),
        ("3", "x = 3"),
        ("y - 1 = 2x", "y = 2x + 1"),
        ("\\boxed{17}", "17"),
        ("50%", "0.5"),
        ("12 cm", "12"),
        ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"),
        ("No solution.", "no solution"),
        ("0.333333", "1/3"),
    ],
)
def test_what_means_the_same_agrees(answer: str, reference: str) -> None:
    outcome = agrees(asked(reference), answer)
    assert outcome.ok, outcome.detail


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("1/3", "1/2"),
        ("0.3333", "1/3"),
        ("[1, 2]", "(1, 2)"),
        ("1, 2", "2"),
        ("2 or 3", "3"),
        ("2x = 6", "3"),  # not solved
        ("1 < x < 2", "(1, 2)"),  # could be the question
        ("x^2", "2x"),
        ("7", "no solution"),
        ("NaN", "3"),
        ("∞ - ∞", "0"),
        ("I do not know", "3"),
        ("(1+x)^{49}(x+2)", "(x+1)^{50}"),
    ],
)
def test_what_means_something_else_does_not(answer: str, reference: str) -> None:
    assert not agrees(asked(reference), answer).ok


def test_the_detail_says_how_both_were_read() -> None:
    assert (
        agrees(asked("\\frac{1}{2}"), "x + 1").detail
        == "'x + 1', read as x + 1, is not '\\\\frac{1}{2}', read as 1/2"
    )


@pytest.mark.parametrize(
    "hostile",
    ["10^{10^{10}}!", "(" * 500 + "1" + ")" * 500, "7" * 1900, "x" * 5000, "\\frac" * 300, "\\"],
)
def test_hostile_answers_are_wrong_in_bounded_time(
    hostile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(math, "_APART", QUICK)
    assert not agrees(asked("2"), hostile).ok


QUICK = Apart("tasks.checks.math", cpu_s=1, memory_bytes=2 * 2**30)


def test_many_at_once_use_several_processes_and_keep_their_order() -> None:
    prompts = [
        asked(f"x^2 + {number}", "none" if number % 7 == 0 else "math") for number in range(40)
    ]
    answers = [f"{number + number % 2} + x^2" for number in range(40)]
    verdicts = verify_many(
        prompts, [Trace(reasoning="r", answer=answer).render() for answer in answers]
    )
    assert [verdict.answer for verdict in verdicts] == answers
    assert [verdict.exact for verdict in verdicts] == [
        number % 2 == 0 and number % 7 > 0 for number in range(40)
    ]


def test_it_works_in_threads_and_after_a_process_was_ended() -> None:
    """math-verify's own time limit is a signal, which only a main thread can have."""
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(agrees(asked("x + 1"), "1 + x").ok))
    thread.start()
    thread.join()
    for process in math._APART._idle:
        process.process.kill()
    found.append(agrees(asked("x + 2"), "2 + x").ok)
    assert found == [True, True]


def test_a_reference_that_is_no_mathematics_is_an_error_naming_the_prompt() -> None:
    with pytest.raises(
        InputError, match=r"prompt p1 .*'math' but its answer '\?' is no mathematics"
    ):
        agrees(asked("?"), "3")


def test_a_process_ends_with_its_asker() -> None:
    pool = Apart("tasks.checks.math", cpu_s=1, memory_bytes=2 * 2**30)
    assert pool.ask(["$1$", "$1$"])["ok"]
    (idle,) = pool._idle
    assert idle.process.stdin is not None
    idle.process.stdin.close()  # what the end of the asker does to it
    assert idle.process.wait(timeout=300) == 0


def test_a_question_that_meets_the_limit_is_asked_once_more_of_a_fresh_process() -> None:
    assert QUICK.ask(["$1$", "$1$"])["ok"]
    with pytest.raises(LimitMet, match="met a limit: 1 CPU seconds, 2048 MiB"):
        QUICK.ask(["$2$", "$9^{9^{9^{9}}}$"])
    assert QUICK.ask(["$1$", "$1$"])["ok"]
