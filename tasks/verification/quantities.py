"""Quantities as people write them: numbers with units, read by pint."""

import math
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from tasks.verification.numbers import NO_UNITS, rewritten, spelled
from tasks.verification.text import unstyled, with_powers

LONGEST = 200  # characters


@dataclass(frozen=True)
class Quantity:
    """A number as written, its unit's factor and offset to SI, and the dimension as sorted (SI
    unit, exponent). `things`: words that are no unit. `bare`: the number stands alone."""

    number: float
    factor: float
    offset: float
    dimension: tuple[tuple[str, float], ...]
    things: frozenset[str]
    bare: bool

    def unit(self) -> str:
        """The dimension, for a person."""
        parts = [name if power == 1 else f"{name}^{power:g}" for name, power in self.dimension]
        return " ".join(parts) or "no dimension"


_PLAIN = (
    (
        r"\\left|\\right|\\[,;:! ]|~|\\hat\s*\{[^{}]*(?:\{[^{}]*\})?[^{}]*\}|\\displaystyle|\\quad",
        " ",
    ),
    (r"\{?\s*\}?\s*\^?\s*\{?\s*\\circ\s*\}?|º|˚|\\degree", "°"),
    (
        r"\\(?:boxed|mathrm|text|rm|mathbf|operatorname|textrm|mathit|bf)(?![A-Za-z])\s*"
        r"(?:\{([^{}]*)\})?",
        r" \1",
    ),
    (r"\^\s*\(\s*([-+]?\d+)\s*\)", r"^\1"),
    (r"\\mu(?![A-Za-z])|μ", "µ"),
    (r"\\Omega(?![A-Za-z])|Ω", "ohm"),
    (r"\\AA(?![A-Za-z])|Å|\\mathring\{A\}", " angstrom"),
    (r"\\alpha(?![A-Za-z])", "alpha"),
    (r"\\ast(?![A-Za-z])|·|×|⋅|\*", " * "),
    (r"\\d?frac\s*\{((?:[^{}]|\{[^{}]*\})*)\}\s*\{((?:[^{}]|\{[^{}]*\})*)\}", r"\1/\2"),
    (r"\\\$(?! ?[\d.])", " dollar "),
    (r"(?<=[A-Za-z])\.(?=[A-Za-z])", " * "),
    (r"\\approx|\\simeq|\\sim|≈|\babout\b|\bapproximately\b|\broughly\b", " = "),
    (r"[$\\]", " "),
    (r"[{}]", ""),
    (r"µ\s+", "µ"),
    (r"\bdeg(?:rees?)?\s+(?=[CcFfKk])|°\s+(?=[CF]\b)", "°"),
    (r"°[cC]elsius|℃", "°C"),
    (r"°[fF]ahrenheit|℉", "°F"),
    (r"°(?=[kK])", ""),
)

_LATEX = tuple((re.compile(pattern), plain) for pattern, plain in _PLAIN)
_POWER_OF_TEN = r"10 ?\^ ?(?P<%s>[-+]?\d{1,3})"

_NUMBER = re.compile(
    r"(?P<sign>[-+]?)"
    rf" ?(?:{_POWER_OF_TEN % 'alone'}|(?P<mantissa>[1-9]\d{{0,2}}(?:,\d{{3}})+(?:\.\d*)?"
    r"|\d+(?:\.\d*)?|\.\d+)(?! ?\^|\d)"
    r"(?:[eE](?P<exponent>[-+]?\d{1,3})(?![\w.]))?(?: ?/ ?(?P<denominator>\d+(?:\.\d+)?)(?![\d.]))?"
    rf"(?: ?[*x(]* ?{_POWER_OF_TEN % 'power'} ?\)?)?)(?P<unit>.*)"
)


def parse_quantity(text: str) -> list[Quantity]:
    """The readings of a text as one number with a unit: one, two where a slash is ambiguous, none
    for anything else."""
    if len(text) > LONGEST:
        return []
    text = rewritten(spelled(with_powers(unstyled(text))), _LATEX)
    text = " ".join(text.rpartition("=")[2].split()).removesuffix(".").strip()
    match = _NUMBER.fullmatch(text)
    if match is None:
        return []
    number = float(match["sign"] + (match["mantissa"] or "1").replace(",", ""))
    denominator = float(match["denominator"] or 1)
    power = int(match["exponent"] or 0) + int(match["power"] or match["alone"] or 0)
    if not denominator or abs(power) > 300:
        return []
    number = number / denominator * 10.0**power
    units = _units(match["unit"].strip(" ;,"))
    units += [
        [("lbf" if name in _POUNDS else name, power) for name, power in unit]
        for unit in units
        if len(unit) > 1 and _POUNDS & dict(unit).keys()
    ]
    readings = [_with_unit(number, unit) for unit in units]
    known = [one for one in readings if one and one.factor and one.things.isdisjoint(NO_UNITS)]
    return [one for one in known if math.isfinite(one.number * one.factor)]


_WORDS = re.compile(
    r"(?P<name>°[CF]\b|[°%]|[^\W\d_]+)(?: ?\^"
    r" ?(?P<power>[-+]?\d{1,2}(?:\.\d+)?)|(?P<digits>-?[1-9])(?![\d.]))?"
)
_JOINT = re.compile(r"[ *-]*(?P<slash>/|\bper\b)?[ *(-]*")

_SHAPES = (
    (re.compile(r"\bsquared?\s+(?=per\b|/|$)"), "^2 "),
    (re.compile(r"(\w+)\s+squared\b"), r"\1^2"),
    (re.compile(r"(\w+)\s+cubed\b"), r"\1^3"),
    (re.compile(r"\b(?:square|sq\.?)\s+(\w+)"), r"\1^2"),
    (re.compile(r"\b(?:cubic|cu\.?)\s+(\w+)"), r"\1^3"),
    (re.compile(r"\bmm Hg\b"), "mmHg"),
    (re.compile(r"\belectron[ -]volts?\b"), "eV"),
    (re.compile(r"\bper cent\b"), "percent"),
)

# of force as well, where they are part of a unit: lb/in^2
_POUNDS = {"lb", "lbs", "pound", "pounds"}
Unit = list[tuple[str, float]]


def _units(text: str) -> list[Unit]:
    """The readings of a unit's text as names with exponents; none where it is something else."""
    text = rewritten(text, _SHAPES)
    nearest: Unit = []  # a slash divides by the next unit, or by all in the parentheses after it
    whole: Unit = []  # a slash divides by all that follows
    position = depth = 0
    slashed = False
    while position < len(text):
        joint = _JOINT.match(text, position)
        assert joint  # it may be empty
        below = bool(joint["slash"]) or depth > 0
        slashed |= bool(joint["slash"])
        word = _WORDS.match(text, joint.end())
        if word is None:
            return []
        exponent = float(word["power"] or word["digits"] or 1)
        for name, power in _symbols(word["name"], exponent):
            nearest.append((name, -power if below else power))
            whole.append((name, -power if slashed else power))
        position = word.end()
        depth += joint[0].count("(") if below else 0
        while position < len(text) and text[position] in ") ":
            depth -= text[position] == ")" and depth > 0
            position += 1
    return [nearest] if nearest == whole else [nearest, whole]


def _symbols(name: str, exponent: float) -> Unit:
    """A name with its exponent; two symbols without a space ("JK^-1", "Jmol") are two names, and
    the exponent is the second one's."""
    if _known(name) is None:
        for cut in range(1, len(name)):
            if {name[:cut], name[cut:]} <= _SYMBOLS:
                return [(name[:cut], 1.0), (name[cut:], exponent)]
    return [(name, exponent)]


def _with_unit(number: float, unit: Unit) -> Quantity | None:
    factor, offset, dimension, things = 1.0, 0.0, dict[str, float](), set[str]()
    for name, exponent in unit:
        known = _known(name)
        if known is None:
            things.add(name.lower().removesuffix("s"))
            continue
        scale, base, shift = known
        if shift and len(unit) == 1 and exponent == 1:
            offset = shift
        try:
            factor *= scale**exponent
        except OverflowError:
            return None
        for part, power in base:
            dimension[part] = dimension.get(part, 0) + power * exponent
    powers = tuple(sorted((part, power) for part, power in dimension.items() if power))
    return Quantity(number, factor, offset, powers, frozenset(things), bare=not unit)


_SPELLINGS = {
    "KJ": "kJ", "kPA": "kPa", "AU": "astronomical_unit", "Nm": "N*m", "Ohm": "ohm", "hz": "hertz",
    "amps": "ampere", "Amps": "ampere", "kms": "km", "kmh": "km/hour", "a": "",
}  # fmt: skip
"""Spelling of a unit -> pint's name, where pint reads none or another; an empty name: no unit."""


@cache
def _registry() -> Any:
    import pint

    return pint.UnitRegistry()


@lru_cache(maxsize=4096)
def _known(name: str) -> tuple[float, tuple[tuple[str, float], ...], float] | None:
    """A unit's factor to SI, its SI dimension and its offset (of temperatures); None for a word
    that is no unit."""

    registry = _registry()
    for spelling in (_SPELLINGS.get(name, name), name.lower() if len(name) > 3 else ""):
        if not spelling:
            continue
        try:
            unit = registry.parse_units(spelling, as_delta=False)
        except Exception:  # noqa: BLE001  whatever pint says of a word (AssertionError of `½`)
            continue
        zero, one = (registry.Quantity(number, unit).to_base_units() for number in (0.0, 1.0))
        parts = [(str(part), float(power)) for part, power in one.unit_items()]
        dimension = tuple(sorted(part for part in parts if part[0] != "radian"))
        return float(one.magnitude - zero.magnitude), dimension, float(zero.magnitude)
    return None


_SYMBOLS = {"J", "kJ", "K", "mol", "N", "m", "kg", "s", "Pa", "kPa", "W", "V", "A", "C", "L"}
_SYMBOLS |= {"g", "cm", "T"}
