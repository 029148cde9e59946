"""The candidate: a server of plain data that runs the answer's program and does what the examiner
asks. Runs inside the sandbox.

The answer's code shares this process and may do anything to it, so this module serves honest code
and protects nothing. `tasks.sandbox.client`, in the examiner's process, decides what an answer can
do.
"""

import builtins
import operator
import sys
import threading
import types
from typing import Any

from tasks.sandbox import assembly
from tasks.sandbox.plain import MUTABLE, TYPES, decode, encode
from tasks.sandbox.wire import Pipe


def serve(payload: dict[str, Any], pipe: Pipe) -> None:
    """Run the answer's program, tell the examiner which of the names it asks for the program
    defines, and serve it to the end."""
    number, _, _, _, (asked,), _ = pipe.receive()
    names = decode(asked, _refuse)
    module = types.ModuleType("answer")
    sys.modules["answer"] = module  # dataclasses look their module up
    server = _Server(pipe, module)
    try:
        program = assembly.program(payload["answer"], payload["prefix"], names)
        has = module.__dict__
        exec(compile(program, "<answer>", "exec"), has)
        found = [[name, server.named(has[name])] for name in names if name in has]
        pipe.send([number, "value", {"list": found}, []])
    except BaseException as error:  # noqa: BLE001  whatever it is, it is the answer's
        pipe.send([number, "raise", [type(error).__name__], _text(error), [], {}, 0])
        return
    while True:
        server.do(pipe.receive())


class _Server:
    """The objects that the candidate gave to the examiner, and those that the examiner lent it."""

    def __init__(self, pipe: Pipe, module: types.ModuleType) -> None:
        self._pipe, self._module = pipe, module
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._lent: dict[int, _Lent] = {}
        self._errors: dict[str, type[BaseException]] = {}
        self._request: int | None = None
        self._lock = threading.RLock()  # the answer's threads may ask back, too

    def named(self, value: Any) -> Any:
        return self._handed(value) if isinstance(value, type) else self._encode(value)

    def do(self, request: list[Any]) -> None:
        """Serve one request."""
        number, _, operation, target, arguments, named = request
        outer, self._request = self._request, number
        answer: list[Any]
        try:
            given = [self._decode(one) for one in arguments]
            keywords = {name: self._decode(one) for name, one in named.items()}
            value = _OPERATIONS[operation](self._decode(target), *given, **keywords)
            before: list[tuple[int | str, Any]] = [*enumerate(arguments), *named.items()]
            after = [*given, *keywords.values()]
            pairs = zip(before, after, strict=True)
            changed = [
                self._changed(*one, item) for one, item in pairs if isinstance(item, MUTABLE)
            ]
            encoded = self._handed(value) if operation == "iter" else self._encode(value)
            answer = [number, "value", encoded, [one for one in changed if one]]
        except BaseException as error:  # noqa: BLE001  whatever it is, it is the answer
            ended = operation == "next" and isinstance(error, StopIteration)
            answer = [number, "end"] if ended else [number, *self._raised(error)]
        with self._lock:
            self._request = outer
            try:
                self._pipe.send(answer)
            except (ValueError, MemoryError, RecursionError) as error:
                self._pipe.send([number, "raise", ["AnswerError"], _text(error), [], {}, 0])

    def back(self, operation: str, lent: int, /, *arguments: Any, **named: Any) -> Any:
        """Ask the examiner about an object that it lent."""
        with self._lock:
            number = self._request
            if number is None:
                raise RuntimeError("what a call was passed can be used until that call returns")
            given = [self._encode(one) for one in arguments]
            by_name = {name: self._encode(one) for name, one in named.items()}
            self._pipe.send([number, "back", operation, lent, given, by_name])
            while True:
                frame = self._pipe.receive()
                if frame[1] == "do":
                    self.do(frame)
                elif frame[1] == "value":
                    return self._decode(frame[2])
                elif frame[1] == "end":
                    raise StopIteration
                else:
                    raise self._error(*frame[2:])

    def _encode(self, value: Any) -> Any:
        return encode(value, self._handed)

    def _handed(self, value: Any) -> Any:
        if type(value) is _Lent:
            return {"lent": value._lent}
        if isinstance(value, type) and issubclass(value, Exception):
            return {"error": [self._number(value), _bases(value)]}
        return {"object": self._number(value)}

    def _number(self, value: Any) -> int:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return self._numbers[id(value)]

    def _decode(self, data: Any) -> Any:
        return decode(data, self._other)

    def _other(self, kind: str, content: Any) -> Any:
        if kind == "object":
            return self._objects[content]
        if kind == "raised":
            return self._error(*content)
        if kind == "error":
            return self._class(content)
        if kind == "type":
            return TYPES[content]
        return self._lent.setdefault(content, _Lent(self, content))

    def _changed(self, place: int | str, before: Any, item: Any) -> list[Any] | None:
        after = self._encode(item)
        if after == before:
            return None
        try:
            same = item == self._decode(before)  # a set may have crossed in another order
        except Exception:  # noqa: BLE001  of an object of the answer that compares with its like
            same = False
        return None if same else [place, after]

    def _raised(self, error: BaseException) -> list[Any]:
        """An exception and the plain data that it holds."""
        names = _bases(type(error))
        try:
            public = {name: one for name, one in vars(error).items() if not name.startswith("_")}
            members = {name: encode(value, _refuse) for name, value in public.items()}
            arguments = [encode(value, _refuse) for value in error.args]
        except Exception:  # noqa: BLE001  its text says enough
            members, arguments = {}, []
        error.__traceback__ = None  # the error stays here, without the values of its frames
        return ["raise", names, _text(error), arguments, members, self._number(error)]

    def _error(self, names: list[str], text: str, arguments: list[Any]) -> BaseException:
        """An exception of the tests."""
        kind = self._class(names)
        try:
            return kind(*[self._decode(one) for one in arguments])
        except Exception:  # noqa: BLE001  it takes something else
            error = kind.__new__(kind)
            error.args = (text,)
            return error

    def _class(self, names: list[str]) -> type[BaseException]:
        """An exception class of the tests: the answer's own, a builtin, or one made for it."""
        for known in (
            getattr(self._module, names[0], None),
            getattr(builtins, names[0], None),
            self._errors.get(names[0]),
        ):
            if isinstance(known, type) and issubclass(known, BaseException):
                return known
        return self._errors.setdefault(names[0], type(names[0], (self._class(names[1:]),), {}))


class _Lent:
    """An object of the tests."""

    __slots__ = ("_lent", "_server")

    def __init__(self, server: _Server, lent: int) -> None:
        object.__setattr__(self, "_server", server)
        object.__setattr__(self, "_lent", lent)

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        return self._server.back("call", self._lent, *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__qualname__"):
            raise AttributeError(name)  # what the standard library looks for in every object
        return self._server.back("getattr", self._lent, name)

    @property
    def __doc__(self) -> Any:  # type: ignore[override]
        return self._server.back("getattr", self._lent, "__doc__")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"objects of the tests cannot be changed from here: {name}")


for _name in ("iter", "next", "len", "getitem", "bool", "str", "repr"):
    _back = lambda self, *given, _name=_name: self._server.back(_name, self._lent, *given)  # noqa: E731
    setattr(_Lent, f"__{_name}__", _back)


def _raise(kind: type[BaseException], /, *arguments: Any, **named: Any) -> Any:
    raise kind(*arguments, **named)


def _exit(target: Any, error: BaseException | None) -> bool:
    return bool(target.__exit__(error and type(error), error, None))


_BINARY = "add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift"
_BUILTIN = (getattr, setattr, delattr, isinstance, issubclass, iter, next, len, bool, str, repr)
_OPERATIONS: dict[str, Any] = {
    "call": lambda target, /, *arguments, **named: target(*arguments, **named),
    "raise": _raise,
    "enter": lambda target: target.__enter__(),
    "exit": _exit,
    **{kind.__name__: kind for kind in _BUILTIN},
}
for _name in ("getitem", "setitem", "delitem", "neg", "pos", "invert"):
    _OPERATIONS[_name] = getattr(operator, _name)
for _name in _BINARY.split():
    _plain, _binary = _name.strip("_"), getattr(operator, _name)
    _OPERATIONS[_plain] = _binary
    _OPERATIONS[f"i{_plain}"] = getattr(operator, f"i{_plain}")
    _OPERATIONS[f"r{_plain}"] = lambda target, left, do=_binary: do(left, target)


def _bases(kind: type) -> list[str]:
    """The names of a class and of its bases; classes of the answer by their path, as
    `Stack.Empty`."""
    return [
        one.__qualname__ if one.__module__ == "answer" else one.__name__ for one in kind.__mro__
    ]


def _refuse(*value: Any) -> Any:
    raise TypeError("no plain data")


def _text(error: BaseException) -> str:
    try:
        return str.__str__(str(error))
    except Exception:  # noqa: BLE001  its own, while it was asked for its text
        return ""
