"""Numbers as people write them, read exactly, and when two of them agree."""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from tasks.verification.text import normalise_answer, plain_signs, unstyled, with_powers


@dataclass(frozen=True)
class Number:
    """A parsed number. `decimals` counts the digits written after the decimal point (negative for
    1.2e5); None for a fraction. `percent`: a percent sign, or the word, follows it."""

    value: Fraction
    decimals: int | None
    percent: bool = False


_MONEY = "$€£¥₹"
_DIGITS = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)"

_NUMBER = re.compile(
    r"(?:(?P<name>[a-z]\w{0,15})? ?(?:= ?)+)?(?:(?:about|approximately|approx\.?|roughly|around) )?"
    rf"(?P<sign>[-+]?) ?(?P<money>[{_MONEY}]?) ?(?P<inner_sign>[-+]?)"
    rf"(?:(?:(?P<whole>{_DIGITS}) )?(?P<numerator>{_DIGITS}) ?/ ?(?P<denominator>{_DIGITS})"
    rf"|(?P<mantissa>{_DIGITS}(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?:e(?P<exponent>[-+]?[0-9]{1,3})| ?[x×*·] ?10\^[{(]?(?P<power>[-+]?[0-9]{1,3})[)}]?)?)"
    r" ?(?P<unit>.*)"
)

_UNIT = re.compile(rf"(?:[^\W\d_]|[°%{_MONEY}])(?:[^\W\d_]|[ °%{_MONEY}/.·'()-]|\^-?[0-9])*")
_LETTERS = re.compile(r"[^\W\d_]+")
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9}
_SCALES["trillion"] = 10**12
_PARTS = ["halve", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"]
_PARTS_OF = {part: Fraction(1, size) for size, part in enumerate(_PARTS, 2)}
_PARTS_OF |= {"hundredth": Fraction(1, 100), "thousandth": Fraction(1, 1000)}
_OF_MONEY = {"k": 10**3, "m": 10**6, "mn": 10**6, "b": 10**9, "bn": 10**9}
_CURRENCIES = {"dollars", "usd", "euros", "eur", "pounds", "gbp"}
"""Beside a currency's sign or name; elsewhere they are units: kelvin, metres."""
_MOST_UNIT_WORDS = 3
_PERCENT = re.compile(r"%|per ?cent\b")

NO_UNITS = frozenset(
    _LETTERS.findall("""
        or and not nor but maybe perhaps between minus plus times over half squared cubed factorial
        root sqrt pi π τ tau zero one two three four five six seven eight nine ten eleven twelve
        twenty thirty forty fifty sixty seventy eighty ninety
        """)
)
"""Words that turn the number beside them into another, or into two: 5 or six, 5 and a half, 3
pi."""

# characters; no honest answer is longer, and a model's endless digits must not cost quadratic time
_LONGEST_NUMBER = 200


def as_number(text: str) -> str | None:
    """A canonical form, equal for equal numbers; None: it is no number."""
    number = parse_number(text)
    return None if number is None else str(number.value)


def parse_number(text: str) -> Number | None:
    """The one number that `text` states, or None.

    Understands thousands separators (1,234, 1\\,234 and thin or unbreakable spaces), a currency
    sign ($5k, 5 k€ and 5k dollars are 5000), a percent sign or a unit of up to three words after
    the number (ignored: the question fixes the unit), a leading `x =`, "about" or "minus",
    fractions (3/4, 1 1/2, ½, 2 thirds), scientific notation (1.2e5, 1.2 × 10^5, 1.2×10⁵), the words
    dozen to trillion, Unicode's minus signs, the decimal digits of every script, and the marks of
    LaTeX and Markdown around all of it. Two numbers ("5 or 6", 3:30), a decimal comma, NaN,
    infinity, a zero denominator, and words that change a number ("5 or six", "3 pi") are no number.
    """
    if len(text) > _LONGEST_NUMBER or any(
        unicodedata.category(char) in ("Nl", "Lo") and unicodedata.numeric(char, 0) for char in text
    ):
        return None  # numbers that are letters: Ⅵ, 五
    match = _NUMBER.fullmatch(_plain(text))
    if match is None or match["name"] in NO_UNITS or (match["sign"] and match["inner_sign"]):
        return None
    scale = _scale(match["unit"], money=bool(match["money"]))
    if scale is None:
        return None
    percent = _PERCENT.match(match["unit"]) is not None
    sign = -1 if "-" in (match["sign"], match["inner_sign"]) else 1
    if match["mantissa"] is None:
        denominator = _integer(match["denominator"])
        if denominator == 0:
            return None
        part = Fraction(_integer(match["numerator"]), denominator)
        return Number(sign * scale * (_integer(match["whole"] or "0") + part), None, percent)
    exponent = int(match["exponent"] or match["power"] or 0)
    mantissa = match["mantissa"].replace(",", "")
    value = Fraction(Decimal(mantissa)) * Fraction(10) ** exponent
    decimals = None if scale < 1 else len(mantissa.partition(".")[2]) - exponent
    return Number(sign * scale * value, decimals, percent)


_CHAIN = re.compile(r"=|≈|≃|∼|\\(?:approx|simeq|sim|neq|ne|equiv)(?![A-Za-z])|≠|≡")
_ROUNDING = Fraction(1, 50)


def says_two(text: str) -> bool:
    """Whether a text sets one number equal to another: 4 = 3. Rounded ones are the same: 1/3 =
    0.33."""
    if len(text) > _LONGEST_NUMBER:
        return False
    read = [parse_number(part.strip(" $")) for part in _CHAIN.split(text)]
    numbers = [number.value for number in read if number]
    return len(numbers) > 1 and max(numbers) - min(numbers) > _ROUNDING * max(map(abs, numbers))


def _fraction(found: re.Match[str]) -> str:
    whole, *parts = found.groups()
    written = unicodedata.normalize("NFKC", "/".join(parts)).replace("⁄", "/")
    return f"{whole} {written}" if whole else written


_Spellings = tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...]
_SPELLINGS: _Spellings = (
    (re.compile(r"\{,\}|(?<=\d)(?:\\,|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))"), ","),
    (re.compile(r"\A(\W*)(?:minus|negative) (?=\W?[\d.])", re.IGNORECASE), r"\1-"),
    (re.compile(r"(?:(\d) ?)?\\[dt]?frac\s*\{?(\d+)\}?\s*\{?(\d+)\}?"), _fraction),
    (re.compile(r"(?:(\d) ?)?([¼-¾⅐-⅞])"), _fraction),
)
_MARKS: _Spellings = (
    (re.compile(r"\A\s*(\$+)([^$].*?)\1\s*\Z"), r"\2"),
    (re.compile(r"\\(?:approx|simeq|sim)(?![A-Za-z])|[≈≃∼]|~(?= ?[$€£¥₹]?[-.\d])"), "="),
    (
        re.compile(r"\\(?:boxed|text|textbf|mathbf|mathrm|left|right)(?![A-Za-z])|\\[()\[\],;:! ]"),
        " ",
    ),
    (re.compile(r"\\(?=[$%])|(?<!\d)\{|\}"), ""),
)
"""What LaTeX puts around a number; `≈` is read as `=`."""


def spelled(text: str) -> str:
    """The text with 1{,}234, –5, \\frac{3}{4} and 1½ as 1,234, -5, 3/4 and 1 1/2."""
    return rewritten(plain_signs(text), _SPELLINGS)


def rewritten(text: str, spellings: _Spellings) -> str:
    """The text after each of these substitutions in turn."""
    for pattern, plain in spellings:
        text = pattern.sub(plain, text)
    return text


def _plain(text: str) -> str:
    """Lower-case NFKC text without marks, in which ½, ² and the digits of other scripts keep their
    value (NFKC alone makes 11⁄2 of 1½ and 102 of 10²)."""
    text = spelled(unstyled(with_powers(text)))
    text = normalise_answer(rewritten(text, _MARKS)).replace("⁄", "/")
    return "".join(str(unicodedata.decimal(char, char)) for char in text)


def _integer(digits: str) -> int:
    return int(digits.replace(",", ""))


def _scale(unit: str, *, money: bool) -> Fraction | int | None:
    """The factor given by the text after a number (1 for a unit), or None when that text is no
    unit. `money`: there is a currency sign before the number."""
    scales = _SCALES | _PARTS_OF
    plain = unit.translate(dict.fromkeys(map(ord, _MONEY)))
    words = plain.split()
    money |= plain != unit or not _CURRENCIES.isdisjoint(words)
    if not words:
        return 1
    first = words[0].removesuffix("s")
    scale = scales.get(first) or (_OF_MONEY.get(words[0], 1) if money else 1)
    named = words if scale == 1 else words[1:]
    scaled = any(word.removesuffix("s") in scales for word in named)
    other = not NO_UNITS.isdisjoint(_LETTERS.findall(unit))
    if len(named) > _MOST_UNIT_WORDS or scaled or other or not _UNIT.fullmatch(unit):
        return None
    return scale


def gap_of(value: Number, reference: Number) -> Fraction:
    """The distance of two numbers; a percentage is a fraction, too, beside a reference of at most 1
    without a percent sign."""
    values = [value.value]
    if value.percent and not reference.percent and abs(reference.value) <= 1:
        values.append(value.value / 100)
    return min(abs(one - reference.value) for one in values)


def is_close(value: Number, reference: Number, tolerance: float | None) -> bool:
    """Whether two numbers agree, as `tasks.checks.numeric` says."""
    gap, size = gap_of(value, reference), abs(reference.value)
    if tolerance is not None:
        return gap <= size * Fraction(str(tolerance))
    if reference.value.denominator == 1:
        return gap == 0
    if reference.decimals is None:
        return gap <= size / 1000
    return gap <= min(size / 100, Fraction(1, 2) / Fraction(10) ** reference.decimals)
