"""Exceptions of the answer in its tests' process, by the names of classes that the tests can know.
Runs inside the sandbox.

An exception arrives as the names of its class and its bases, its text, and its plain data. It is
raised as the first of these classes that is a builtin Exception, a class of the answer that the
tests ask for by name, or one that the tests passed to it. An exception that would end an iteration
in the tests, or is no Exception (SystemExit), becomes `AnswerError`.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from traceback import walk_tb
from typing import Any

from tasks.sandbox import plain
from tasks.sandbox.proxies import Candidate, ErrorClass

_MOST_BASES = 50
_ENDS_ITERATION = (StopIteration, StopAsyncIteration)


class AnswerError(Exception):
    """The answer raised an exception that its tests cannot know."""


class Errors:
    """The exception classes that the tests know beside Python's own, and the tests' exceptions that
    were sent to the answer."""

    def __init__(self, client: Candidate) -> None:
        self._client = client
        self._classes: dict[str, type[Exception]] = {}
        self._passing: dict[tuple[str, str], Exception] = {}

    def given(self, names: Any, number: int, asked: str = "") -> ErrorClass:
        """A class of the answer: one that the tests ask for by its name, or an attribute or a
        value, as in `except Stack.Empty`."""
        if not names or not all(type(name) is str for name in names):
            raise ValueError("no exception class")
        name = asked or names[0]
        known: Any = self._classes.get(name)
        if type(known) is not ErrorClass or known._number not in (None, number):
            known = self._made(name, self._known(names[1:]))
        known._number = number
        if asked and names[0] not in plain.ERRORS:  # an alias
            self._classes[names[0]] = known
        return known

    def _made(self, name: str, base: type[Exception]) -> ErrorClass:
        content = {
            "__module__": "answer",
            "__str__": lambda self: self.__dict__.get(" text", ""),
            "__getattr__": _attribute,
        }
        made = ErrorClass(name.rpartition(".")[2], (base,), content)
        made._client, made._number = self._client, None
        if type(self._classes.get(name, made)) is ErrorClass:  # otherwise it is the tests' own
            self._classes[name] = made  # type: ignore[assignment]
        return made

    def known(self, kind: type[Exception]) -> list[str]:
        """The names of a class that the tests pass to the answer."""
        if not issubclass(kind, _ENDS_ITERATION):
            self._classes.setdefault(kind.__name__, kind)
        return [base.__name__ for base in kind.__mro__]

    def described(self, error: Exception, encode: Callable[[Any], Any]) -> list[Any]:
        """An exception of the tests as it is sent to the answer. If the answer raises it again, the
        tests get this very object."""
        names = self.known(type(error))
        if not isinstance(error, _ENDS_ITERATION):
            self._passing[names[0], str(error)] = error
        try:
            return [names, str(error), [encode(one) for one in error.args]]
        except ValueError:  # one of them is nested too deep
            return [names, str(error), []]

    def raised(self, described: list[Any], number: int, decode: Callable[[Any], Any]) -> Exception:
        """The exception that the answer raised. Raises an Exception for data that describe none."""
        names, text, arguments, members = described
        named = 0 < len(names) < _MOST_BASES and all(type(name) is str for name in names)
        if type(text) is not str or not named:
            raise ValueError("no exception")
        if (names[0], text) in self._passing:
            return self._passing[names[0], text]
        given = [decode(one) for one in arguments]
        content: Mapping[str, Any] = {str(name): decode(one) for name, one in members.items()}
        kind = self._known(names)
        if type(kind) is ErrorClass:
            error = kind.__new__(kind)
            error.args = tuple(given)
            error.__dict__.update({" text": text, " object": number})
        else:
            if kind is AnswerError:
                text = f"{names[0]}: {text}".removesuffix(": ")
            error = _told(kind, given, text)
        for name, value in content.items():
            public = name.isidentifier() and not name.startswith("_")
            if public and not hasattr(Exception, name) and not callable(value):
                error.__dict__[name] = value
        return error

    def _known(self, names: Sequence[str]) -> type[Exception]:
        """The class with these names of a class and its bases. It makes an unknown one, since tests
        may ask for it later."""
        if not names:
            return AnswerError
        known = self._classes.get(names[0]) or plain.ERRORS.get(names[0])
        if known is None:
            base = self._known(names[1:])
            return base if base is AnswerError else self._made(names[0], base)  # type: ignore[return-value]
        return AnswerError if issubclass(known, _ENDS_ITERATION) else known


def _attribute(error: Any, name: str) -> Any:
    """A property or method of an exception of the answer's own class."""
    if name.startswith("__") or " object" not in error.__dict__:
        raise AttributeError(f"{type(error).__name__!r} object has no attribute {name!r}")
    return error._client.attribute_of(error.__dict__[" object"], name)


def _told(kind: type[Exception], arguments: list[Any], text: str) -> Exception:
    """An exception with this text, made of its arguments if they give the text."""
    with suppress(Exception):  # its constructor takes other arguments
        error = kind(*arguments)
        if type(error) is kind and str(error) == text:
            return error
    error = kind.__new__(kind)
    error.args = (text,)
    return error


def origin(error: BaseException) -> list[tuple[str, int]]:
    """The files and lines of the code that an exception came through, the outermost first."""
    return [(one.f_code.co_filename, line) for one, line in walk_tb(error.__traceback__)]
