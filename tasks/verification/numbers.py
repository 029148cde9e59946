"""Numbers as people write them, read exactly, and when two of them agree."""

import re
import unicodedata
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from tasks.verification.text import normalise_answer


@dataclass(frozen=True)
class Number:
    """A parsed number. `decimals` counts the digits written after the decimal point (negative for
    1.2e5); None for a fraction."""

    value: Fraction
    decimals: int | None


_SUPERSCRIPTS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"

_NUMBER = re.compile(
    rf"(?:(?P<name>[a-z]\w{{0,15}}) ?= ?)?(?P<sign>[-+]?) ?[$€£]? ?(?P<inner_sign>[-+]?)"
    rf"(?:(?:(?P<whole>{_DIGITS}) )?(?P<numerator>{_DIGITS}) ?/ ?(?P<denominator>{_DIGITS})"
    rf"|(?P<mantissa>{_DIGITS}(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?:e(?P<exponent>[-+]?[0-9]{1,3})| ?[x×*] ?10\^\{?(?P<power>[-+]?[0-9]{1,3})\}?)?)"
    r" ?(?P<unit>.*)"
)

_UNIT = re.compile(r"(?:[^\W\d_]|[°%$€£])(?:[^\W\d_]|[ °%$/.·'()-]|\^-?[0-9])*")
_LETTERS = re.compile(r"[^\W\d_]+")
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9}
_SCALES["trillion"] = 10**12
_MOST_UNIT_WORDS = 3

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

    Understands thousands separators (1,234), a currency sign, a percent sign or a unit of up to
    three words after the number (both are ignored: the question fixes the unit), a leading `x =`,
    fractions (3/4, 1 1/2, ½), scientific notation (1.2e5, 1.2 × 10^5, 1.2×10⁵), the words dozen to
    trillion, the Unicode minus sign and the decimal digits of every script. Two numbers ("5 or 6",
    3:30), a decimal comma, NaN, infinity, a zero denominator, and words that change a number ("5 or
    six", "3 pi") are no number.
    """
    if len(text) > _LONGEST_NUMBER or any(
        unicodedata.category(char) in ("Nl", "Lo") and unicodedata.numeric(char, 0) for char in text
    ):
        return None  # numbers that are letters: Ⅵ, 五
    match = _NUMBER.fullmatch(_plain(text))
    if match is None or match["name"] in NO_UNITS or (match["sign"] and match["inner_sign"]):
        return None
    scale = _scale(match["unit"])
    if scale is None:
        return None
    sign = -1 if "-" in (match["sign"], match["inner_sign"]) else 1
    if match["mantissa"] is None:
        denominator = _integer(match["denominator"])
        if denominator == 0:
            return None
        part = Fraction(_integer(match["numerator"]), denominator)
        return Number(sign * scale * (_integer(match["whole"] or "0") + part), None)
    exponent = int(match["exponent"] or match["power"] or 0)
    mantissa = match["mantissa"].replace(",", "")
    value = Fraction(Decimal(mantissa)) * Fraction(10) ** exponent
    return Number(sign * scale * value, len(mantissa.partition(".")[2]) - exponent)


_CHAIN = re.compile(r"=|≈|≃|∼|\\(?:approx|simeq|sim|neq|ne|equiv)\b|≠|≡")
_MARKS = re.compile(r"\\(?:boxed|text|mathrm|left|right)\b|[$\\{}\[\]]")
_ROUNDING = Fraction(1, 50)


def says_two(text: str) -> bool:
    """Whether a text sets one number equal to another: 4 = 3. Rounded ones are the same: 1/3 =
    0.33."""
    if len(text) > _LONGEST_NUMBER:
        return False
    read = [parse_number(_MARKS.sub(" ", part).strip()) for part in _CHAIN.split(text)]
    numbers = [number.value for number in read if number]
    return len(numbers) > 1 and max(numbers) - min(numbers) > _ROUNDING * max(map(abs, numbers))


def _plain(text: str) -> str:
    """Lower-case NFKC text in which ½, ² and the digits of other scripts keep their value (NFKC
    alone makes 11⁄2 of 1½ and 102 of 10²)."""
    text = _SUPERSCRIPTS.sub(lambda found: "^" + unicodedata.normalize("NFKC", found[0]), text)
    text = "".join(
        f" {char}" if unicodedata.decomposition(char).startswith("<fraction>") else char
        for char in text
    )
    text = normalise_answer(text).replace("⁄", "/").replace("−", "-").replace("–", "-")
    return "".join(str(unicodedata.decimal(char, char)) for char in text)


def _integer(digits: str) -> int:
    return int(digits.replace(",", ""))


def _scale(unit: str) -> int | None:
    """The factor given by the text after a number (1 for a unit), or None when that text is no
    unit."""
    if not unit:
        return 1
    words = unit.split()
    scale = _SCALES.get(words[0].removesuffix("s"), 1)
    named = words[1:] if scale > 1 else words
    scaled = any(word.removesuffix("s") in _SCALES for word in named)
    other = not NO_UNITS.isdisjoint(_LETTERS.findall(unit))
    if len(named) > _MOST_UNIT_WORDS or scaled or other or not _UNIT.fullmatch(unit):
        return None
    return scale


def is_close(value: Number, reference: Number, tolerance: float | None) -> bool:
    """Whether two numbers agree, as `tasks.checks.numeric` says."""
    gap, size = abs(value.value - reference.value), abs(reference.value)
    if tolerance is not None:
        return gap <= size * Fraction(tolerance)
    if reference.value.denominator == 1:
        return gap == 0
    if reference.decimals is None:
        return gap <= size / 1000
    return gap <= min(size / 100, Fraction(1, 2) / Fraction(10) ** reference.decimals)
