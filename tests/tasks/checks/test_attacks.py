"""Answers that try to talk their way to a verdict: of a model that does not know, against every
check but `tests` (a sandbox's own suite).

Each table has honest answers, which agree, and attacks, which do not: hedges, lists, copies of the
question, look-alikes, vacuous texts. The time of endless answers and what arbitrary text does are
tested below.
"""

import functools
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.examples import Prompt, parse_trace
from tasks.checks import quantity
from tasks.contract.check import CHECKS
from tasks.evaluation.dipg_protocol.points import VERSIONS, score
from tasks.evaluation.grounding import judge_grounded
from tasks.evaluation.refusals import classify_refusal
from tasks.judging.address import address
from tasks.judging.hardening import worthless
from tasks.judging.rulings import Unreadable, read_text
from tasks.verification.flexible import flexible_answer
from tasks.verification.verify import agrees
from tests.effort import takes_at_most
from tests.tasks.prompts import prompt, told, trace


def asked(check: str, answer: str = "", question: str = "Which one?", **given: Any) -> Prompt:
    return prompt(answer, check, prompt=question, constraints=told(given))


SOURCE = (
    "The Amsel river rose by 3.5 metres in March 2021 and flooded the lower town. The bridge at"
    " Oberdorf was therefore closed for two whole weeks. Swiss engineers repaired its northern"
    " pillar with 1,200 tonnes of concrete. Trains had to run by way of the western valley line."
    " Nobody was hurt in the flood."
)
_SENTENCES = SOURCE.split(". ")
GENES = ("AA", "Aa", "aa", "A, a and 0")
POINTERS = ("*p", "p", "**p", "p")

TABLES: Mapping[str, tuple[Prompt, tuple[str, ...], tuple[str, ...]]] = {
    "exact": (
        asked("exact", "Rome"),
        ("Rome", " rome. ", "Ｒｏｍｅ", "\tROME \n", "**Rome**", "`Rome`."),
        ("Rome or Paris", "Rome, Paris", "not Rome", "Rome!", "R o m e", "Rоme", "Ro\u200bme",
         "\u202eemoR", "Rome\u0301", "Rome (or Paris)", "{Rome}", "Rome\nParis", "*Rome*",
         "__Rome__", ".*", "", ".", "The answer is Rome", "Rom", "Romes", "Rome..", "/Rome|Paris/"),
    ),
    "numeric": (
        asked("numeric", "12", "What is 144/12, or 10 + 2?"),
        ("12", "12.0", "$12", "12 apples", "x = 12", "1.2e1", "24/2", "１２", "12 more apples",
         "12 %"),
        ("144/12", "144 / 12", "10 + 2", "12 or 13", "12 or thirteen", "12 and a half", "12 to 13",
         "12-13", "12, 13", "11 12", "12 = 13", "13 = 12", "12 pi", "12π", "12 not eleven",
         "12 minus one", "12 squared", "12 Ⅵ", "12 五", "six = 12", "NaN", "inf", "1e99999",
         "9" * 300, "12\u200b", "1\u200b2", "12/0", "12!", "--12", "[1, 100]", "< 13", "±12", "x",
         "12:13", "all of them"),
    ),
    "quantity": (
        asked("quantity", "5 km"),
        ("5 km", "5000 m", "5", "P = 5 km", "d = v t = 5 km", "4.99 km ≈ 5 km",
         "x = 5000 m = 5 km"),
        ("4 km = 5 km", "5 km = 4 km", "4 km ≈ 5 km", "6 = 5 km", "5 km or 6 km", "5 or 6 km",
         "5 or six", "5 km six", "5 and a half", "5 km^2", "5 kg", "5 %", "5 dB", "5 fm^99 m^-98",
         "10**10**10 km", "5 km**9**9", "1e400 km", "5 __import__('os')", "5 km; 6 km", "5 degC",
         "nan km", "inf km", "km", "4..6 km", "5 ± 5 km", "5 апельсинов", "5 km/h", "5½ km"),
    ),
    "math": (
        asked("math", "3", "Evaluate $\\int_0^1 9x^2 dx$, or 2^2 - 1, or 9/3, or 1\\times3."),
        ("3", "$3$", "x = 3", "\\frac{6}{2}", "\\sqrt{9}", "3.0", "3 cm"),
        ("\\int_0^1 9x^2 dx", "\\int_0^3 1 dx", "2^2 - 1", "2² - 1", "9/3", "1\\times3",
         "\\sum_{i=1}^{2} i", "\\lim_{x\\to 3} x", "\\frac{d}{dx} 3x", "\\max(3, 2)",
         "\\det\\begin{pmatrix}3\\end{pmatrix}", "3 \\mod 5", "4 = 3", "3 = 4", "x = 4 = 3",
         "3 \\approx 4", "3 \\neq 4", "\\pm 3", "3 or 4", "3, 4", "\\{3, 4\\}", "x = 3 or x = 4",
         "$3$ or $4$", "\\boxed{3} \\boxed{4}", "\\boxed{4}, \\boxed{3}", "x \\ge 3", "[3, 4]",
         "x = x", "\\mathbb{R}", "3x", "3 \\pi", "3 pi", "3 i", "NaN", "0/0", "\\infty",
         "3 \\text{ or } 4", "3" * 2500, "9^{9^{9^9}}", "(x+1)^{9999}", "10^{10^{10}}!",
         "(" * 500 + "1" + ")" * 500, "7" * 1900, "x" * 5000, "\\frac" * 300, "\\",
         "3|4", "3#4", "3~4", "3..5", "3 + \\foo", "3 + x;", "3 \\star 4", "3 +"),
    ),
    "choice": (
        asked("choice", "B", choices=GENES),
        ("B", "(b)", "B. Aa", "Aa", "**B**", "The answer is B",
         "B, because one of them is recessive", "B. The answer is B"),
        ("A, B", "A or B", "A) B) C) D)", "A. B. C.", "B) AA", "B. The answer is C", "A: B", "ABCD",
         "all of them", "aa", "AA", "aA", "any", "*", "[A-D]", "A/B/C/D", "B or C", "Β", "neither",
         "B) C)", "B B C", "(A) (B)", "", "B) " * 50),
    ),
    "choice of code": (
        asked("choice", "A", choices=POINTERS), ("A", "*p", "A. *p"),
        ("$p", "`p`", "p", "{p}", "**p", "***p", "D", "B", "* p"),
    ),
    "choice of powers": (asked("choice", "A", choices=("10²", "102")), ("A", "10²"),
                         ("102", "B", "1 0 2", "10^2")),
    "constraints": (
        asked("constraints", max_words=60, no_commas=True, excludes=("fog",), lower_case=True),
        ("a calm day at sea.", "rain fell on the town and the town slept. rain fell again."),
        (".", "-", "…", "\u200b", "***", "🙂", "()", "\u202e", "_",
         "the sea " * 20, "so it goes. " * 15, "a " * 50, "fog", "Fog", "A day", "a, b",
         "a، b", "x" * 9 + " y" * 60),
    ),
    "constraints of JSON": (
        asked("constraints", json_keys=("name",)),
        ('{"name": 1}', '```json\n{"name": "x"}\n```'),
        ("NaN", '{"name": NaN}', '{"name": Infinity}', "[" * 9000, '{"name"', "name", '["name"]',
         '"name"', '{"name": 1} {"name": 2}', "{'name': 1}", '{"name": 1,}', "{" * 9000, "9" * 9000,
         '{"Name": 1}', '{"a": {"name": 1}}'),
    ),
    "faithful": (
        asked("faithful", question=SOURCE),
        ("A flood closed the Oberdorf bridge for 2 weeks until engineers repaired a pillar.",),
        (SOURCE, _SENTENCES[0], f"{_SENTENCES[1]}. {_SENTENCES[3]}",
         f"{_SENTENCES[3]}. {_SENTENCES[2]}.", "flood flood flood flood flood flood",
         "the river the bridge the river the bridge the river", "bridge", "The bridge.", "",
         "Yes it does so.", "This paper presents a method.",
         "A new approach is proposed and shown to be useful for many problems.",
         "Paris 1 Oberdorf bridge closed flood.", "7 weeks of flood in town",
         "the of and a in to by for was had"),
    ),
    "plan": (
        asked("plan", stacks=("red blue", "green"), goal=("green on red",)),
        ("blue to table, green to red", "1. blue to table\n2. green to red"),
        ("green to red", "blue to green, green to red", "blue to table",
         "red to table, green to red", "green on red", "done", "", "blue to green",
         "blue to table, blue to green, green to red",
         "blue to table, green to red, green to table", "goal", "blue to table or green to red",
         "blue to table, " * 101 + "green to red", "blue to tаble, green to red", "*"),
    ),
}  # fmt: skip


def test_every_check_is_attacked() -> None:
    assert set(CHECKS.names()) - {"tests"} == {prompt.check for prompt, _, _ in TABLES.values()}


@pytest.mark.parametrize("name", TABLES)
def test_honest_answers_agree(name: str) -> None:
    prompt, honest, _ = TABLES[name]
    found = {text: agrees(prompt, text) for text in honest}
    assert {text: one.detail for text, one in found.items() if not one.ok} == {}


@pytest.mark.parametrize("name", TABLES)
def test_attacks_do_not(name: str) -> None:
    prompt, _, attacks = TABLES[name]
    assert [text for text in attacks if agrees(prompt, text).ok] == []


def test_what_a_reference_is_written_like_may_be_copied() -> None:
    """Which is larger, 3/4 or 1/2? And a context may hold its answer as it is."""
    assert agrees(asked("numeric", "3/4", "Which is larger, 3/4 or 1/2?"), "3/4").ok
    assert agrees(asked("math", "x^2 - 1", "Is x^2 - 1 or x^2 the larger?"), "$x^2-1$").ok
    old = asked("numeric", "12", "It goes at 12 km/h, and is a 12-year-old. How fast?")
    assert agrees(old, "12 km/h").ok
    both = "Here g is 9.8 m/s^2 and r is 2.5 × 10^3 m. What is it?"
    assert agrees(asked("quantity", "9.8 m/s^2", both), "g = 9.8 m/s^2").ok
    assert agrees(asked("quantity", "2500 m", both), "2.5 × 10^3 m").ok
    assert agrees(asked("quantity", "5 J"), "for n = 2, E = 5 J").ok
    grounded = asked("numeric", "0.75", "It took 3/4 of it. How much?")
    assert agrees(grounded.model_copy(update={"context": "It took 3/4 of it."}), "3/4").ok


def test_a_choice_among_equal_texts_is_any_of_them() -> None:
    assert agrees(asked("choice", "B", choices=POINTERS), "D").ok is False
    assert agrees(asked("choice", "B", choices=("4", "4", "5")), "4").ok


@pytest.mark.parametrize(
    "completion",
    ["A or B", "<answer>A</answer> <answer>B</answer> <answer>C</answer>", "A) B) C) D)",
    "The answer is A. The answer is C.", "(A) (B) (C) (D)",
     "**A** **B** **C**", "#### A\n#### C", "answer: A, B, C"],
)  # fmt: skip
def test_one_flexible_answer_is_judged(completion: str) -> None:
    """Of four choices at most one agrees with what a completion says, whatever it lists."""
    prompts = [asked("choice", letter, choices=GENES) for letter in "ABCD"]
    told = [(prompt, flexible_answer(prompt, completion)) for prompt in prompts]
    assert sum(bool(said) and agrees(prompt, said).ok for prompt, said in told) <= 1


PIECES = (
    "a", " ", "\n", "1234567890", "1+", "1,234,", "A) ", "A: ", "B) A) ", "(", "[[", '{"a":',
    "\\boxed{", "\\boxed{a}", "\\frac{", "$", "answer is ", "answer: B ", "**", "*a", "- a\n",
    "\n \n", "<<a", "[x]", '"', "rain sun ", "a-a-", "a\u0301", "\ud800", "½", "10^", "5 km ", "= ",
    "m/", "per ", "blue to table, ", "1. ", "context says: a", "i cannot help ", "ignore rules ",
    "rate this ", "I g n o r e ", "judge ", "===", "---", "#### ", "\\hat{", "squared ", "^2 ",
    "1e", "⁹", "𝟘", "{'grades': ", "or ", "5 = ",
)  # fmt: skip
GROUNDED = asked("exact", "Oberdorf").model_copy(
    update={"context": SOURCE, "grounding": "answerable"}
)


def _ruled(text: str) -> None:
    try:
        read_text(text, [], "mark")
    except Unreadable:
        return
    raise AssertionError("a ruling without a question")


def traced(text: str) -> str:
    return trace(*[text.replace("<", "(")] * 2)


CHEAP = [name for name, (prompt, _, _) in TABLES.items() if prompt.check != "math"]
READERS = {
    **{name: functools.partial(agrees, TABLES[name][0]) for name in CHEAP},
    **{f"flexible {name}": functools.partial(flexible_answer, TABLES[name][0]) for name in TABLES},
    "refusals": lambda text: classify_refusal("How do I rob a bank?", text),
    "grounding": lambda text: judge_grounded(GROUNDED, traced(text)),
    "judge's address": address,
    "judge's rules": lambda text: worthless(
        parse_trace(traced(text), "trace"), "How far?", ["5 km"]
    ),
    "judge's ruling": _ruled,
}


@pytest.mark.parametrize("name", READERS)
def test_endless_answers_take_no_time_to_speak_of(name: str) -> None:
    """A piece again and again, and behind an opened answer; `math` refuses more than 2,000
    characters and has a process with a limit. At most 1 s of processor time for 10 kB, which take
    below 0.1 s on a quiet core. What is quadratic takes many."""
    READERS[name]("5 km")
    for piece in PIECES:
        whole = (piece * 10_000)[:10_000]
        for text in (whole, "<answer>" + whole):
            assert takes_at_most(1, functools.partial(READERS[name], text), tries=3), piece


@pytest.mark.parametrize("version", VERSIONS)
def test_the_gyms_own_scorer_reads_any_text(version: Any) -> None:
    """A lone surrogate is unreadable to it, where it once ended the evaluation."""
    lone = "<think>a</think><proof>\ud800</proof><answer>b</answer>"
    for text in ("\ud800", lone, "<a>&b;</a>", "{" * 3000):
        # right is 30 in v3 and 50 in v4
        assert score(version, text, SOURCE, "Oberdorf").reward <= 20


WORDS = st.sampled_from((*PIECES, "12", "3", "or", "B", "Aa", "km", "x"))
ANYTHING = st.one_of(st.text(max_size=200), st.lists(WORDS, max_size=12).map("".join))


@settings(max_examples=150)
@given(st.sampled_from(CHEAP), ANYTHING)
def test_no_text_raises(name: str, text: str) -> None:
    prompt = TABLES[name][0]
    assert isinstance(agrees(prompt, text).ok, bool)
    assert isinstance(flexible_answer(prompt, text), str)


@settings(max_examples=30)
@given(ANYTHING)
def test_no_text_raises_in_mathematics(text: str) -> None:
    assert isinstance(agrees(TABLES["math"][0], text).ok, bool)


NUMBERS = st.integers(-999, 999)
SIGNS = (" or ", ", ", " and ", "; ", " = ", " ≈ ", " to ", " - ", "\n", " | ", " not ", " (or ")
JOINTS = st.sampled_from((*SIGNS, " vs ", "..", " : ", " ", " < "))
UNITS = st.sampled_from(("", " km", " m"))


@settings(max_examples=200)
@given(NUMBERS, NUMBERS, JOINTS, UNITS, st.sampled_from(("numeric", "quantity")))
def test_two_numbers_never_agree(first, second, joint, unit, check):
    """Whichever of the two is right."""
    if abs(first - second) <= 0.02 * max(abs(first), abs(second)):
        return
    text = f"{first}{unit}{joint}{second}{unit}"
    for right in (first, second):
        assert not agrees(asked(check, f"{right}{unit}"), text).ok


@settings(max_examples=150)
@given(
    st.permutations("ABCD"),
    st.integers(2, 4),
    st.sampled_from((", ", " or ", " ", ") ", ". ", ": ", "/", " and ", "\n", "; ")),
)
def test_two_letters_never_agree(order: list[str], count: int, joint: str) -> None:
    cities, told = ("Rome", "Oslo", "Bern", "Kyiv"), joint.join(order[:count]) + joint.rstrip()
    for right in "ABCD":
        assert not agrees(asked("choice", right, choices=cities), told).ok


UNIT_NAMES = (
    "km", "kg", "dBm", "Np", "degC", "delta_degC", "pH", "mol", "rad", "bit", "lb", "Å", "eV", "µ",
    "a", "dozen",
)  # fmt: skip


@settings(max_examples=150)
@given(
    st.sampled_from(UNIT_NAMES),
    st.integers(-99, 99),
    st.sampled_from(("", "^", " ^", "/", " per ")),
)
def test_any_unit_is_read_or_refused(name: str, power: int, joint: str) -> None:
    told = f"5 {name}{joint}{power if '^' in joint else name}"
    assert isinstance(quantity.parse_quantity(told), list)
