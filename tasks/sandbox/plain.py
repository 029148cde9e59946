"""Plain data: the closed set of types that cross between two sandboxed processes, as JSON. Runs
inside the sandbox.

None, bool, int, float and str are themselves. Every other value is an object of one key, its type's
name: {"list": [1, 2]}, {"Decimal": "1.50"}. A reader builds exactly these types, so that a value
that crossed contains no code of its sender. A subclass crosses as the type that it derives from, a
named tuple as a named tuple of the same fields.
"""

import builtins
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Any

DEEPEST = 300  # levels of containers
BARE = frozenset({type(None), bool, int, float, str})
_EXACT: dict[type, Callable[[Any], Any]] = {int: int.__int__, float: float.__float__}
_EXACT[str] = str.__str__
_SEQUENCES: dict[str, Callable[[list[Any]], Any]] = {
    kind.__name__: kind for kind in (list, tuple, set, frozenset)
}
_MAPPINGS: dict[str, Callable[[dict[Any, Any]], Any]] = {
    kind.__name__: kind for kind in (dict, OrderedDict, Counter)
}
_VALUES: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    complex: (lambda value: [value.real, value.imag], lambda content: complex(*content)),
    bytes: (lambda value: value.decode("latin-1"), lambda content: content.encode("latin-1")),
    bytearray: (
        lambda value: value.decode("latin-1"),
        lambda content: bytearray(content.encode("latin-1")),
    ),
    range: (lambda value: [value.start, value.stop, value.step], lambda content: range(*content)),
    Decimal: (str, Decimal),
    Fraction: (
        lambda value: [value.numerator, value.denominator],
        lambda content: Fraction(*content),
    ),
    datetime: (datetime.isoformat, datetime.fromisoformat),
    date: (date.isoformat, date.fromisoformat),
    time: (time.isoformat, time.fromisoformat),
    timedelta: (
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda content: timedelta(*content),
    ),
}
_BUILDERS = {kind.__name__: build for kind, (_, build) in _VALUES.items()}
_CONTAINERS = (Counter, OrderedDict, defaultdict, dict, deque, list, tuple, set, frozenset)
_ORDER = (*_EXACT, *_VALUES, *_CONTAINERS)
"""Subclasses before their bases, so that a value of another type crosses as the first type here
that it derives from."""

_PLAIN = frozenset(_ORDER)
_FACTORIES = {kind.__name__: kind for kind in _ORDER}

MUTABLE = (list, dict, set, bytearray, deque)
ERRORS = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type)
    and issubclass(kind, Exception)
    and not issubclass(kind, BaseExceptionGroup)
}
TYPES: dict[str, type] = {kind.__name__: kind for kind in (*_ORDER, bool, type(None))} | ERRORS
NAMES = frozenset(name for kind in _ORDER for name in dir(kind) if not name.startswith("_"))
"""Public attributes of plain data: `startswith`, `count`, `issubset`."""


def encode(value: Any, other: Callable[[Any], Any], depth: int = DEEPEST) -> Any:
    """A value as JSON; `other` encodes objects that are no plain data. Raises ValueError for a
    value nested too deep."""
    kind = type(value)
    if kind in BARE:
        return value
    if not depth:
        raise ValueError(f"a value nested deeper than {DEEPEST} levels cannot be handed over")
    if kind not in _PLAIN:
        found = next((one for one in _ORDER if isinstance(value, one)), None)
        if found is None:
            known = isinstance(value, type) and TYPES.get(value.__name__) is value
            return {"type": value.__name__} if known else other(value)
        if found in _EXACT:
            return _EXACT[found](value)
        if found is tuple and hasattr(kind, "_fields"):
            items = [encode(one, other, depth - 1) for one in value]
            return {"namedtuple": [kind.__name__, list(kind._fields), items]}
        kind = found
    name = kind.__name__
    if name in _SEQUENCES:
        return {
            name: [one if type(one) in BARE else encode(one, other, depth - 1) for one in value]
        }
    if name in _MAPPINGS:
        inner = lambda one: encode(one, other, depth - 1)  # noqa: E731
        return {name: [[inner(key), inner(one)] for key, one in value.items()]}
    if kind is defaultdict:
        made = value.default_factory
        known = isinstance(made, type) and _FACTORIES.get(made.__name__) is made
        factory = made.__name__ if known else None
        return {name: [factory, encode(dict(value), other, depth - 1)]}
    if kind is deque:
        return {name: [value.maxlen, [encode(one, other, depth - 1) for one in value]]}
    return {name: _VALUES[kind][0](value)}


def decode(data: Any, other: Callable[[str, Any], Any], depth: int = DEEPEST) -> Any:
    """The value of JSON that `encode` made; `other` decodes objects that are no plain data. Raises
    an Exception of any kind for other JSON."""
    if type(data) in BARE:
        return data
    if type(data) is not dict or not depth:
        raise ValueError("no value, or one nested too deep")
    ((name, content),) = data.items()
    if name in _SEQUENCES:
        return _SEQUENCES[name](
            [one if type(one) in BARE else decode(one, other, depth - 1) for one in content]
        )
    if name in _MAPPINGS:
        return _MAPPINGS[name](
            {decode(key, other, depth - 1): decode(one, other, depth - 1) for key, one in content}
        )
    if name in _BUILDERS:
        return _BUILDERS[name](content)
    if name == "defaultdict":
        return defaultdict(
            content[0] and _FACTORIES[content[0]], decode(content[1], other, depth - 1)
        )
    if name == "deque":
        return deque([decode(one, other, depth - 1) for one in content[1]], content[0])
    if name == "namedtuple":
        items = [decode(one, other, depth - 1) for one in content[2]]
        if any(callable(one) for one in items):
            raise ValueError("a named tuple with methods")
        return _named(content[0], tuple(content[1]))(*items)
    return other(name, content)


@cache
def _named(name: str, fields: tuple[str, ...]) -> type:
    return namedtuple(name, fields)  # it refuses anything but names
