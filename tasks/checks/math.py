"""Mathematics: expressions, fractions, sets, intervals, equations and matrices that mean the same,
by math-verify (https://github.com/huggingface/Math-Verify, which parses LaTeX with latex2sympy2 and
compares with sympy).

Answer and reference may be LaTeX, with or without `$`, or plain (`x**2`, `x⁻¹`, `√(x+1)`, `pi/2`,
`sin(x)`, `7 1/2`, `1e5`). Numbers agree to six decimals. The comparison is not symmetric, and knows
which of the two is the reference:

- a reference that is a relation accepts its solutions: `1 < x < 2` accepts `(1, 2)`. The reverse
  does not hold: the relation could be the question's own (`-1 < 2x - 3 < 1`), not solved.
- a reference that is no equation accepts `x = ...`: `3` accepts `x = 3`. The reference `x = 3`
  accepts `3`, and `y = 2x + 1` accepts `2x + 1`; an equation accepts itself with terms moved (`y -
  1 = 2x`), not multiplied.
- arithmetic is its value: `17` accepts `2^4 + 1`. An expression copied from the question is wrong,
  and so is an integral, a sum or a limit that the reference lacks. The question's expression in
  another order passes: use check `numeric` for arithmetic.
- two different numbers set equal (`4 = 3`) are wrong.
- words are products of letters: `no solution` agrees with itself only; use check `exact` for
  references in words.
- letters are the same in either case, `\\Phi` and `\\phi` too, since math-verify lowers them.
- percents agree with both readings: `50` and `0.5` accept `50%`.
- `(1, 2)` is an interval and a point: it accepts both. Numbers with commas between are a set: order
  and repetition do not count.
- Units and words around a number are ignored; of several formulas in a sentence the last one
  counts. What is no formula, such as `3|4`, is wrong.

sympy can run for ever or out of memory on a model's text (`9^{9^{9^9}}`), and math-verify's own
time limit uses signals, which threads lack. So another process parses and compares
(`tasks.verification.process_pool`), and an answer that meets its limits is wrong. Formulas that
plainly would are refused before.
"""

import re
from typing import Any

from schemas.examples import Prompt
from tasks.contract.check import Check, Outcome, unusable
from tasks.verification.copied import is_copied
from tasks.verification.numbers import as_number, parse_number, says_two
from tasks.verification.process_pool import ProcessPool, Unanswered, serve
from tasks.verification.text import MINUS, normalise_answer, unstyled, with_powers

_LONGEST = 2000  # characters; no honest formula is longer
_POOL = ProcessPool("tasks.checks.math", cpu_s=3, memory_bytes=2 * 2**30)


def agrees(prompt: Prompt, answer: str) -> Outcome:
    """Whether the answer means what the reference means. Raises InputError: the reference is no
    mathematics."""
    reference = prompt.answer
    same = (normalise_answer(with_powers(one)) for one in (answer, reference))
    if len(set(same)) == 1:
        return Outcome(True)
    if len(answer) > _LONGEST:
        return Outcome(False, f"an answer of {len(answer)} characters is no formula")
    if is_copied(prompt, answer, letters=True):
        return Outcome(False, f"{answer!r} is the question's own calculation")
    if undone := set(_UNDONE.findall(answer)) - set(_UNDONE.findall(reference)):
        return Outcome(False, f"{answer!r} is to be calculated: {', '.join(sorted(undone))}")
    if _endless(answer) and not _endless(reference):
        endless = "is too deep, or has too large a power, to be calculated"
        return Outcome(False, f"{answer[:80]!r} {endless}")
    if says_two(answer) and not says_two(reference):
        return Outcome(False, f"{answer!r} sets two numbers equal")
    number, wanted = parse_number(answer), parse_number(reference)
    variable = _VARIABLE.search(answer.partition("=")[2] or answer)
    if number and wanted and number.value == wanted.value and not variable:
        return Outcome(True)
    try:
        result = _POOL.ask([as_latex(reference), as_latex(answer)])
    except Unanswered as error:
        return Outcome(False, f"comparing {answer!r} with {reference!r} {error}")
    if not result["reference"]:
        problem = f"its answer {reference!r} is no mathematics that math-verify reads"
        raise unusable(prompt, f"{problem}; correct it or use the check 'exact'")
    if result["ok"]:
        return Outcome(True)
    read = f"{answer!r}, read as {result['answer'] or 'nothing'}"
    return Outcome(False, f"{read}, is not {reference!r}, read as {result['reference']}")


_UNDONE = re.compile(
    r"\\(?:i*int|oint|sum|prod|lim|max|min|sup|inf|gcd|lcm|det|[bp]?mod|frac\{\s*d)(?![A-Za-z])"
)
"""Operations that a question asks for: an integral, a limit, a remainder."""
_VARIABLE = re.compile(r"(?<![^\W\d_])[A-Za-z](?![^\W\d_])")
"""A letter by itself, which may be a unit or a factor: 2x is not 2."""
_LARGE = re.compile(
    r"\^\s*\{?\s*\d{4,}|\d\s*\^\s*\{?\s*\d+\s*\^|\d{5,}\s*!|\^[\s{}^\d]*!|\\binom\s*\{\s*\d{5,}"
)
_DEEPEST = 20


def _endless(text: str) -> bool:
    """Whether a formula has powers or brackets whose calculation would surely meet the process's
    limits."""
    depth = deepest = 0
    for sign in text:
        depth += (sign in "({[") - (sign in ")}]")
        deepest = max(deepest, depth)
    return deepest > _DEEPEST or _LARGE.search(text) is not None


_MARKED = re.compile(r"\$|\\\(|\\\[|\\boxed")
_NAMES = re.compile(
    r"(?<![A-Za-z\\])(pi|theta|alpha|beta|infty|arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|log|ln|exp)(?![A-Za-z])"
)
_INFINITY = re.compile(r"(?<![A-Za-z\\])(infinity|inf|oo)(?![A-Za-z])|∞")
_SCIENTIFIC = re.compile(r"(?<![\w.])(\d+(?:\.\d*)?|\.\d+)[eE]([-+]?\d{1,3})(?!\w)")
_NUMBER_IN_WORDS = re.compile(r"\$[A-Za-z\s,:]*\$?-?\d+(?:,\d{3})*(?:\.\d+)?\$?[A-Za-z\s,.]*\$?\.?")
_POWER = re.compile(r"\^ ?(-?\d+(?:\.\d+)?)")
_ROOT = re.compile(r"√ ?\(([^()]*)\)")
_SIGNS = str.maketrans(
    {"π": "\\pi ", "√": "\\sqrt ", "·": "\\cdot ", "⋅": "\\cdot ", "⩽": "\\le ", "⩾": "\\ge "}
    | {"°": "^\\circ "}
)
_MIXED = re.compile(r"(?<![\w.])(\d+) (\d+)/(\d+)(?![\w.])")


def as_latex(text: str) -> str:
    """The text with its mathematics marked as LaTeX for math-verify. Marked formulas stay as they
    are."""
    if _MARKED.search(text):
        return text
    text = with_powers(unstyled(text)).strip().removesuffix(".")
    text = re.sub(f"[{MINUS}]", "-", text).replace("**", "^")
    text = _ROOT.sub(r"\\sqrt{\1}", _POWER.sub(r"^{\1}", text)).translate(_SIGNS)
    text = _SCIENTIFIC.sub(r"\1 \\times 10^{\2}", _MIXED.sub(r"\1\\frac{\2}{\3}", text))
    text = _NAMES.sub(r"\\\1 ", _INFINITY.sub(r"\\infty ", text))
    return f"${text}$"


def _compare(question: list[str]) -> dict[str, Any]:
    """The parsed reference and answer, and whether they agree; runs in the other process."""
    from math_verify import LatexExtractionConfig, parse, verify

    settings: dict[str, Any] = {"fallback_mode": "no_fallback", "parsing_timeout": None}
    reference = parse(question[0], **settings)
    if not _NUMBER_IN_WORDS.fullmatch(question[1]):
        # else the first number of what is no formula counts: 2 of 2|3
        settings["extraction_config"] = [LatexExtractionConfig()]
    answer = parse(question[1], **settings)
    ok = bool(reference and answer) and verify(reference, answer, timeout_seconds=None)
    texts = [str(found[0])[:200] if found else "" for found in (reference, answer)]
    return {"ok": ok, "reference": texts[0], "answer": texts[1]}


if __name__ == "__main__":
    _compare(["$1$", "$x = 1$"])  # load the libraries' late imports before the clock runs
    serve(_compare)


_NAME = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_MOST_NAMES = 2


def _is_formula(text: str) -> bool:
    """sin, cos: a formula, no sentence."""
    return len(_NAME.findall(text)) <= _MOST_NAMES


CHECK = Check(
    version=4,
    agrees=agrees,
    slow=True,
    reads=_is_formula,
    vote=lambda answer, choices: as_number(answer),
)
