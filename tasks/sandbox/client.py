"""The examiner's end of the pipes: it asks the candidate for values and believes nothing else. Runs
inside the sandbox.

The candidate's process is hostile: the answer's code can write any bytes at any time. Whatever
arrives is either a valid reply to the request under way, built anew out of the types of
`tasks.sandbox.plain`, or it ends the examination for good. It then raises `Stopped`, which is no
Exception, and `Client.stopped` remembers it where tests swallow that.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from tasks.sandbox import arguments as changes_of
from tasks.sandbox import plain
from tasks.sandbox.errors import Errors, origin
from tasks.sandbox.proxies import ENDED, ErrorClass, Remote
from tasks.sandbox.reading import Reading
from tasks.sandbox.wire import Pipe

GONE = "the answer's process ended"
_SHORTEN = 300  # characters of a value that a detail shows


class Stopped(BaseException):
    """The examination cannot go on, and the answer has not passed."""


class Client:
    """The examiner's connection to the candidate.

    Args:
        failed: called for an assertion of the tests that failed while the answer called back.
        shown: whether tests see every change of their arguments, instead of those that
            `tasks.sandbox.arguments` lets through.

    Attributes:
        used: requests that were answered, except the one for names.
        changes: requests that may have changed an object of the answer.
        last: the last call of one of the answer's functions, for a person.
        stopped: why the examination cannot go on; None: it can.
        verifiable: False when it stopped because these tests cannot examine the answer.
        explaining: whether a detail is being written.
        unseen: whether a call changed an argument and the tests kept the old value.
    """

    def __init__(self, pipe: Pipe, failed: Callable[[BaseException], None], *, shown: bool) -> None:
        self._pipe, self._failed, self._shown = pipe, failed, shown
        self._asked = 0
        self._remotes: dict[int, Remote] = {}
        self._lent: list[Any] = []
        self._lent_as: dict[int, int] = {}
        self._errors = Errors(self)
        self._closed: set[Remote] = set()
        self._lengths: dict[Remote, tuple[int, int]] = {}
        self._reading: Reading
        self._lock = threading.RLock()
        self.used, self.last = 0, ""
        self.changes = 0
        self.stopped: str | None = None
        self.verifiable, self.unseen, self.explaining = True, False, False

    # What the tests' names are

    def names(self, reading: Reading) -> dict[str, Any]:
        """The values of the names that a reading of the tests asks for."""
        self._reading = reading
        number = self._send("names", [{"list": sorted(reading.asked)}])
        kind, *rest = self._frame(number)
        try:
            if kind == "raise":
                self.stop(f"the code does not run: {rest[0][0]}: {rest[1]}")
            found = dict(rest[0]["list"])
            if kind != "value" or not found.keys() <= reading.asked.keys():
                raise ValueError("a name that nobody asked for")
            # bases have shorter lists of bases
            for name, data in sorted(found.items(), key=lambda pair: len(str(pair[1]))):
                found[name] = self._named(name, data, name in reading.errors)
        except Exception as error:  # noqa: BLE001  whatever it is, it was made by the answer
            self.broken(error)
        closed = [found[name] for name in reading.closed & found.keys()]
        self._closed = {one for one in closed if type(one) is Remote}
        return found

    def _named(self, name: str, data: Any, treated: bool) -> Any:
        kinds = data.keys() if type(data) is dict else ()
        if "error" in kinds:
            number, names = data["error"]
            if treated:
                return self._errors.given(names, self._number(number), name)
            return self._remote(number)
        if "lent" in kinds:
            raise ValueError("a name that is an object of the tests")
        value = plain.decode(data, self._other)
        if isinstance(value, type):
            raise ValueError("a type that is no data")
        return value

    # Asking

    def call(self, target: Remote, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        shown = [self._shortened(one) for one in arguments]
        shown += [f"{name}={self._shortened(one)}" for name, one in named.items()]
        given = ", ".join(shown)
        self.last = f"with ({given}) did not return"
        value = self.ask("call", target, *arguments, **named)
        self.last = f"with ({given}) gave {self._shortened(value)}"
        return value

    def _shortened(self, value: Any) -> str:
        """A value as a detail shows it; no object of the answer is asked."""
        self.explaining = True
        try:
            return shortened(repr(value))
        except Exception:  # noqa: BLE001  of an object of the tests, which they did not ask for its text
            return "an object"
        finally:
            self.explaining = False

    def attribute(self, target: Remote, name: str) -> Any:
        if target in self._closed:
            self.refuse(f"they use .{name} of a name that they neither define nor import nor call")
        value = self.ask("getattr", target, name)
        if callable(value) and name in plain.NAMES and name not in self._reading.methods:
            self.refuse(f"they call .{name} of an object of the answer, which plain data has, too")
        return value

    def special(self, target: Remote, name: str) -> Any:
        """A special method that tests look up, as in `hasattr(p, "__len__")`: the proxy has it if
        the object has. Raises AttributeError."""
        value = self.ask("getattr", target, name)
        has = any(name in vars(kind) for kind in Remote.__mro__)
        return object.__getattribute__(target, name) if has else value

    def measured(self, target: Remote, length: int, changes: int) -> None:
        """Hold an object to the length that it states and to as many items, until the tests call
        the answer again."""
        before, known = self._lengths.get(target, (changes, length))
        if before == changes and known != length:
            lengths = f"a length of {known} at one time, and of {length} at another"
            self.refuse(f"an object of the answer has {lengths}")
        self._lengths[target] = changes, length

    def attribute_of(self, number: int, name: str) -> Any:
        """An attribute of an exception of the answer."""
        return self.attribute(self._remote(number), name)

    def plain(self, operation: str, kind: type, *arguments: Any) -> Any:
        """A value that must have one plain type."""
        value = self.ask(operation, *arguments)
        return value if type(value) is kind else self.broken(f"{operation} gave something else")

    def remote(self, operation: str, *arguments: Any) -> Remote:
        """A value that must be an object of the answer."""
        value = self.ask(operation, *arguments)
        if type(value) is not Remote:
            self.refuse("arithmetic with an object of the answer gave plain data")
        return value

    def leave(self, target: Remote, error: BaseException | None) -> bool:
        """Leave a `with` block of the answer. It can swallow an exception of the tests' own code,
        but none in which the answer took part."""
        if isinstance(error, AssertionError):
            self._failed(error)
        if error is not None and not isinstance(error, Exception):
            return False
        swallowed = self.plain("exit", bool, target, error)
        if error is None or not swallowed or isinstance(error, AssertionError):
            return False
        trace = origin(error)
        if [file for file, _ in trace] != ["<tests>"] or trace[0][1] not in self._reading.harmless:
            swallows = "a context manager of the answer swallows an exception"
            self.refuse(f"{swallows} that is no doing of the tests")
        return True

    def ask(self, operation: str, target: Any, /, *arguments: Any, **named: Any) -> Any:
        """The candidate's reply, or the exception that it raised."""
        with self._lock:
            given = [self._encode(one) for one in arguments]
            keywords = {name: self._encode(one) for name, one in named.items()}
            holders: dict[int | str, Any] = dict(enumerate(arguments)) | named
            self.changes += operation not in _READING
            number = self._send(operation, given, keywords, self._encode(target))
            while True:
                kind, *rest = self._frame(number)
                changed: list[tuple[Any, Any]] = []
                try:
                    if kind == "back":
                        how, lent, back, words = rest
                        asked = self._lent[self._place(lent)], [self._decode(one) for one in back]
                        keys = {str(name): self._decode(one) for name, one in words.items()}
                    elif kind == "value":
                        data, changes = rest
                        value = self._decode(data)
                        changes = changes if operation == "call" else []
                        changed = [(place, self._decode(one)) for place, one in changes]
                        changes_of.check(holders, changed)
                    elif kind == "raise":
                        *described, place = rest
                        error = self._errors.raised(described, self._number(place), self._decode)
                    elif operation != "next" or rest:
                        raise ValueError("an answer to something else")
                except Exception as wrong:  # noqa: BLE001  whatever it is, it was made by the answer
                    self.broken(wrong)
                if kind == "back":
                    self._do(number, how, *asked, keys)
                    continue
                self.used += 1
                if kind == "raise":
                    raise error
                if kind == "end":
                    return ENDED
                self.unseen |= changes_of.apply(
                    holders, changed, self._reading, sure=self._shown, nothing=value is None
                )
                return value

    def _send(self, operation: str, given: list[Any], named: Any = None, target: Any = None) -> int:
        if self.stopped is not None:
            self.stop(self.stopped)
        self._asked += 1
        self._reply([self._asked, "do", operation, target, given, named or {}])
        return self._asked

    def _reply(self, frame: list[Any]) -> None:
        try:
            self._pipe.send(frame)
        except OSError:
            self.stop(GONE)

    def _frame(self, number: int) -> list[Any]:
        """The next frame, which must belong to a request."""
        try:
            frame = self._pipe.receive()
            numbered = type(frame) is list and frame[0] == number and type(frame[0]) is int
            if numbered and frame[1] in ("value", "end", "raise", "back"):
                return frame[1:]
            raise ValueError("a frame of no request")
        except EOFError:
            self.stop(GONE)
        except Exception as error:  # noqa: BLE001  whatever it is, it was made by the answer
            self.broken(error)

    # What the candidate asks back

    def _do(
        self, number: int, operation: str, lent: Any, given: list[Any], named: dict[str, Any]
    ) -> None:
        """Do what the answer asks of an object that the tests passed to it, and send the result."""
        try:
            if operation not in _BACK or (operation == "getattr" and not _readable(lent, *given)):
                raise PermissionError(f"{operation} of an object of the tests")
            value = _BACK[operation](lent, *given, **named)
            given = self._handed(value) if operation == "iter" else self._encode(value)
            answer = [number, "value", given]
        except Exception as error:  # noqa: BLE001  whatever it is, it is the answer to a question
            if isinstance(error, AssertionError) and origin(error)[-1][0] != _HERE:
                self._failed(error)
            ended = operation == "next" and isinstance(error, StopIteration)
            described = [] if ended else self._errors.described(error, self._encode)
            answer = [number, "end"] if ended else [number, "raise", *described]
        self._reply(answer)

    # Values

    def _encode(self, value: Any) -> Any:
        return plain.encode(value, self._handed)

    def _handed(self, value: Any) -> Any:
        if type(value) is Remote:
            return {"object": value._Remote__number}
        if type(value) is ErrorClass and value._number is not None:
            return {"object": value._number}
        if isinstance(value, type) and issubclass(value, Exception):
            return {"error": self._errors.known(value)}
        if isinstance(value, Exception):
            return {"raised": self._errors.described(value, self._encode)}
        if id(value) not in self._lent_as:
            self._lent_as[id(value)] = len(self._lent)
            self._lent.append(value)
        return {"lent": self._lent_as[id(value)]}

    def _decode(self, data: Any) -> Any:
        return plain.decode(data, self._other)

    def _other(self, kind: str, content: Any) -> Any:
        if kind == "object":
            return self._remote(content)
        if kind == "lent":
            return self._lent[self._place(content)]
        if kind == "error":
            number, names = content
            return self._errors.given(names, self._number(number))
        if kind == "type":
            if issubclass(AssertionError, plain.TYPES[content]):
                catches = "by which they could catch their own assertions"
                self.refuse(f"the answer gives {content} for a value, {catches}")
            return plain.TYPES[content]
        raise ValueError("no value")

    def _number(self, number: Any) -> int:
        if type(number) is not int or number < 0:
            raise ValueError("no object")
        return number

    def _remote(self, number: Any) -> Remote:
        if self._number(number) not in self._remotes:
            self._remotes[number] = Remote(self, number)
        return self._remotes[number]

    def _place(self, lent: Any) -> int:
        if type(lent) is not int or not 0 <= lent < len(self._lent):
            raise ValueError("an object that was never lent")
        return lent

    # The end

    def broken(self, what: Exception | str) -> NoReturn:
        kind = type(what).__name__ if isinstance(what, Exception) else ""
        self.stop(f"the answer's process said what no answer is: {kind} {what}")

    def refuse(self, what: str) -> NoReturn:
        """Stop, because these tests cannot examine the answer."""
        if self.stopped is None:
            self.verifiable = False
        self.stop(f"not verifiable: {what}")

    def stop(self, why: str) -> NoReturn:
        if self.stopped is None:
            self.stopped = why
        raise Stopped(self.stopped)


_BACK: dict[str, Callable[..., Any]] = {
    "call": lambda target, /, *arguments, **named: target(*arguments, **named),
    "getitem": lambda target, key: target[key],
    **{kind.__name__: kind for kind in (getattr, iter, next, len, bool, str, repr)},
}


_READING = {"iter", "next", "len", "bool", "str", "repr", "getattr", "getitem"}
_READING |= {"isinstance", "issubclass"}
_HERE = Client.ask.__code__.co_filename


def _readable(lent: Any, name: Any) -> bool:
    """Whether an answer may read it: a public attribute of an instance of the tests' own classes,
    of a file, or a name for people. Other attributes, of functions and generators, lead to the
    tests."""
    if name in ("__name__", "__qualname__", "__doc__"):
        return True
    ours = type(lent).__module__ in ("tests", "_io") and not isinstance(lent, type)
    return ours and type(name) is str and not name.startswith("_")


def shortened(text: str) -> str:
    """A text as a detail shows it."""
    return text if len(text) <= _SHORTEN else text[:_SHORTEN] + "..."
