"""Proxies by which tests use objects of the answer; none passes for plain data. Runs inside the
sandbox.

A proxy forwards calls, attributes, items, iteration, length, truth, text and `with`. It refuses, as
"not verifiable", any operation that would let an object decide a test where plain data are
expected: comparisons (an object may say that it equals everything), conversions to numbers, and
methods that plain data has (`f(x).startswith("a")`), except those that tests use of instances that
they made. Arithmetic gives another proxy.
"""

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol

_MOST_ITEMS = 10_000
_ALWAYS = ("__class__", "__mro_entries__", "__name__", "__qualname__", "__doc__")
ENDED = object()


class Candidate(Protocol):
    """The interface that proxies use of `tasks.sandbox.client.Client`, which documents each
    method."""

    changes: int
    explaining: bool

    def ask(self, operation: str, target: Any, /, *arguments: Any, **named: Any) -> Any: ...
    def call(self, target: "Remote", arguments: Sequence[Any], named: Mapping[str, Any]) -> Any: ...
    def attribute(self, target: "Remote", name: str) -> Any: ...
    def attribute_of(self, number: int, name: str) -> Any: ...
    def special(self, target: "Remote", name: str) -> Any: ...
    def measured(self, target: "Remote", length: int, changes: int) -> None: ...
    def plain(self, operation: str, kind: type, *arguments: Any) -> Any: ...
    def remote(self, operation: str, *arguments: Any) -> "Remote": ...
    def leave(self, target: "Remote", error: BaseException | None) -> bool: ...
    def broken(self, what: Exception | str) -> NoReturn: ...
    def refuse(self, what: str) -> NoReturn: ...


class Remote:
    """An object of the answer: `client` forwards its operations, `number` identifies it at the
    candidate."""

    __slots__ = ("__client", "__number")

    def __init__(self, client: Candidate, number: int) -> None:
        object.__setattr__(self, "_Remote__client", client)
        object.__setattr__(self, "_Remote__number", number)

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        return self.__client.call(self, arguments, named)

    def __getattribute__(self, name: str) -> Any:
        of_tests = sys._getframe(1).f_code.co_filename == "<tests>"
        if of_tests and name.startswith("__") and name not in _ALWAYS:
            return self.__client.special(self, name)
        return object.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__qualname__"):
            raise AttributeError(name)  # what the standard library looks for in every object
        return self.__client.attribute(self, name)

    @property
    def __doc__(self) -> Any:  # type: ignore[override]
        return self.__client.attribute(self, "__doc__")

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            self.__client.refuse(f"they set {name} of an object of the answer")
        self.__client.ask("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self.__client.ask("delattr", self, name)

    def __instancecheck__(self, instance: Any) -> bool:
        return type(instance) is Remote and self.__client.plain("isinstance", bool, instance, self)

    def __subclasscheck__(self, kind: Any) -> bool:
        return type(kind) is Remote and self.__client.plain("issubclass", bool, kind, self)

    def __len__(self) -> int:
        length = self.__client.plain("len", int, self)
        self.__client.measured(self, length, self.__client.changes)
        return length

    def __bool__(self) -> bool:
        return self.__client.plain("bool", bool, self)

    def __str__(self) -> str:
        return self.__client.plain("str", str, self)

    def __repr__(self) -> str:
        return "an object" if self.__client.explaining else self.__client.plain("repr", str, self)

    def __format__(self, how: str) -> str:
        if how:
            self.__client.refuse("they format an object of the answer as if it were a number")
        return str(self)

    def __getitem__(self, key: Any) -> Any:
        return self.__client.ask("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__client.ask("setitem", self, key, value)

    def __delitem__(self, key: Any) -> None:
        self.__client.ask("delitem", self, key)

    def __iter__(self) -> Any:
        iterator, changes = self.__client.remote("iter", self), self.__client.changes
        return iterator if iterator is self else self.__items(iterator, changes)

    def __items(self, iterator: "Remote", changes: int) -> Iterator[Any]:
        count = 0
        for item in iterator:
            count += 1
            yield item
        self.__client.measured(self, count, changes)

    def __next__(self) -> Any:
        item = self.__client.ask("next", self)
        if item is ENDED:
            raise StopIteration
        return item

    def __contains__(self, item: Any) -> bool:
        looks = "they look for an item"
        try:
            items = list(itertools.islice(self, _MOST_ITEMS + 1))
        except TypeError:
            self.__client.refuse(f"{looks} in an object of the answer that cannot be iterated")
        if len(items) > _MOST_ITEMS:
            self.__client.refuse(f"{looks} among more than {_MOST_ITEMS}")
        return item in items

    def __enter__(self) -> Any:
        return self.__client.ask("enter", self)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        return self.__client.leave(self, error)

    def __mro_entries__(self, bases: Any) -> Any:
        return self.__client.refuse("they derive a class from one of the answer's")

    __hash__ = object.__hash__


def _refused(what: str) -> Callable[..., Any]:
    def refuse(self: Remote, *_: Any) -> Any:
        return self._Remote__client.refuse(what)

    return refuse


def _forwarded(operation: str) -> Callable[..., Any]:
    def forward(self: Remote, *others: Any) -> Any:
        try:
            return self._Remote__client.remote(operation, self, *others)
        except TypeError:
            # Python asks the other operand, and raises another one if it does not know either
            return NotImplemented

    return forward


_COMPARED = "they compare an object of the answer, and only plain data can be compared"
_AS_DATA = "they ask an object of the answer for its {}, as if it were plain data"
_REFUSED = {
    _COMPARED: "eq ne lt le gt ge",
    _AS_DATA: "abs round int float complex index trunc floor ceil divmod rdivmod bytes reversed",
    "they use an object of the answer for {}": "copy deepcopy reduce_ex reduce await aiter",
}
_BINARY = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"
for _why, _names in _REFUSED.items():
    for _name in _names.split():
        setattr(Remote, f"__{_name}__", _refused(_why.format(_name)))
_HANDED_ON = [f"{_side}{_name}" for _name in _BINARY.split() for _side in ("", "r", "i")]
for _name in ("neg", "pos", "invert", *_HANDED_ON):
    setattr(Remote, f"__{_name}__", _forwarded(_name))


class ErrorClass(type):
    """An exception class of the answer. Calling it asks the candidate for the exception that the
    answer's class makes of it."""

    _client: Candidate
    _number: int | None

    def __call__(cls, /, *arguments: Any, **named: Any) -> Any:
        try:
            cls._client.ask("raise", cls, *arguments, **named)
        except cls as error:  # type: ignore[misc]
            return error
        return cls._client.broken("a constructor of an exception gave a value")
