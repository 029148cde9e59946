"""The pipes between two sandboxed processes: plain data crosses, everything else stays where it is. Runs inside the sandbox.

Plain data is numbers, text, bytes, None and the builtin containers; subclasses of them cross as what they derive from. Anything else is
handed over as a `Distant` object, whose calls, attributes, items, iteration and arithmetic work across the pipe. Comparisons do not:
Distant objects are equal only to themselves, have no order, and contain what iterating gives. `abs(f(2) - 4) < 1e-6` and `4 in f(2)` would
else ask the answer for the verdict.
"""

import builtins
import importlib
import json
import operator
import os
import sys
import types
from collections.abc import Callable
from typing import Any

ENDED = "the answer's process ended"
_LARGEST_MESSAGE = 64 * 2**20
_SHORTEN = 300  # characters of a value that a detail shows


class AnswerError(Exception):
    """The answer's process failed in a way that is no exception of its code."""


class Peer:
    """One end of the pipes: asks the other end to do things, and does what it is asked meanwhile.

    A message is 8 bytes of length and JSON. Plain data is JSON, with containers as {"<type>": [...]}; other objects are {"here": number},
    a number in the sender's table `lent`, and go back as {"yours": number}.

    Args:
        may: whether the other end may do an operation to an object with arguments.

    Attributes:
        used: operations asked of the other end, without asking for its names.
        last: the last call of one of its functions, for a person.
    """

    def __init__(self, incoming: int, outgoing: int, may: Callable[[str, Any, list[Any]], bool]) -> None:
        self.incoming, self.outgoing, self.may = incoming, outgoing, may
        self.lent: list[Any] = []
        self.numbers: dict[int, int] = {}
        self.distant: dict[int, Distant] = {}
        self.errors: dict[str, type[Exception]] = {}
        self.used = 0
        self.last = ""

    def ask(self, operation: str, target: Any, *arguments: Any, **named: Any) -> Any:
        """What the other end answers: a value, or the exception that it raised. Lists, dicts and sets it changed are changed here too."""
        self.used += operation != "names"
        self.send([operation, self.encode(target), self.encode(list(arguments)), self.encode(named)])
        while True:
            kind, *rest = self.receive()
            if kind == "value":
                for index, changed in rest[1]:
                    _replace(arguments[index], self.decode(changed))
                return self.decode(rest[0])
            if kind == "raise":
                raise self.error(*rest)
            self.serve(kind, *rest)

    def serve(self, operation: str, target: Any, arguments: Any, named: Any) -> None:
        """Do one thing for the other end and answer it."""
        try:
            found, given, keywords = self.decode(target), self.decode(arguments), self.decode(named)
            if not self.may(operation, found, given):
                raise PermissionError(f"{operation} of an object of the tests")
            value = self.encode(_OPERATIONS[operation](found, *given, **keywords))
            changed = [
                [index, after]
                for index, (before, item) in enumerate(zip(arguments["list"], given, strict=True))
                if isinstance(item, list | dict | set) and (after := self.encode(item)) != before
            ]
            answer = ["value", value, changed]
        except BaseException as error:  # noqa: BLE001  whatever it is, it is the answer
            answer = ["raise", [cls.__name__ for cls in type(error).__mro__], f"{error}"]
        self.send(answer)

    def error(self, names: list[str], text: str) -> Exception:
        """An exception of the other end as one of ours: of the answer's own class where the tests know it, else of its nearest builtin."""
        for name in names:
            known = self.errors.get(name) or getattr(builtins, name, None)
            if isinstance(known, type) and issubclass(known, Exception):
                error = known.__new__(known)  # not known(text): UnicodeDecodeError and its like take more
                error.args = (text,)
                return error
        return AnswerError(text if names[0] == AnswerError.__name__ else f"{names[0]}: {text}")

    def send(self, message: list[Any]) -> None:
        data = json.dumps(message).encode()
        data = len(data).to_bytes(8, "big") + data
        view = memoryview(data)
        while view:
            view = view[os.write(self.outgoing, view[: 2**20]) :]

    def receive(self) -> Any:
        size = int.from_bytes(self._exactly(8), "big")
        if size > _LARGEST_MESSAGE:
            raise AnswerError(f"a value of {size} bytes; at most {_LARGEST_MESSAGE} can be handed over")
        return json.loads(self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = os.read(self.incoming, min(size, 2**20))
            if not part:
                raise AnswerError(ENDED)
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def encode(self, value: Any) -> Any:
        if value is None or isinstance(value, bool):
            return value
        for scalar in (int, float, str):
            if isinstance(value, scalar):
                return scalar(value)
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}
        if isinstance(value, bytes | bytearray):
            return {"bytes" if isinstance(value, bytes) else "bytearray": list(value)}
        for kind in (list, tuple, set, frozenset):
            if isinstance(value, kind):
                return {kind.__name__: [self.encode(item) for item in value]}
        if isinstance(value, dict):
            return {"dict": [[self.encode(key), self.encode(item)] for key, item in value.items()]}
        if isinstance(value, range):
            return {"range": [value.start, value.stop, value.step]}
        if isinstance(value, Distant) and value._peer is self:
            return {"yours": value._number}
        if isinstance(value, type) and issubclass(value, Exception):
            return {"error": [cls.__name__ for cls in value.__mro__]}
        if isinstance(value, types.ModuleType):
            return {"module": value.__name__}
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.lent)
            self.lent.append(value)
        return {"here": self.numbers[id(value)]}

    def decode(self, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        ((kind, content),) = data.items()
        if kind == "dict":
            return {self.decode(key): self.decode(item) for key, item in content}
        if kind in _CONTAINERS:
            return _CONTAINERS[kind]([self.decode(item) for item in content])
        if kind in ("complex", "range"):
            return {"complex": complex, "range": range}[kind](*content)
        if kind == "yours":
            return self.lent[content]
        if kind == "here":
            return self.distant.setdefault(content, Distant(self, content))
        if kind == "error":
            return self.errors.setdefault(content[0], type(content[0], (type(self.error(content[1:], "")),), {}))
        if kind == "module" and content in sys.stdlib_module_names:
            return importlib.import_module(content)
        raise AnswerError(f"a value of kind {kind!r} cannot be handed over")


_CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {kind.__name__: kind for kind in (list, tuple, set, frozenset, bytes, bytearray)}


class Distant:
    """An object of the other end."""

    _peer: Peer
    _number: int

    def __init__(self, peer: Peer, number: int) -> None:
        self.__dict__.update(_peer=peer, _number=number)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        given = ", ".join([shortened(item) for item in arguments] + [f"{key}={shortened(item)}" for key, item in named.items()])
        self._peer.last = f"with ({given}) did not return"
        value = self._peer.ask("call", self, *arguments, **named)
        self._peer.last = f"with ({given}) gave {shortened(value)}"
        return value

    def __getattr__(self, name: str) -> Any:
        return self._peer.ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.ask("setattr", self, name, value)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Distant) and self._peer.ask("isinstance", instance, self) is True


_ITEMS = ("getitem", "setitem", "delitem")
_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "abs")
_OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda target, *arguments, **named: target(*arguments, **named),
    "getattr": getattr,
    "setattr": setattr,
    "isinstance": isinstance,
    "__len__": len,
    "__iter__": iter,
    "__next__": next,
    "__bool__": bool,
    "__str__": str,
    "__repr__": repr,
    "__int__": int,
    "__float__": float,
    "__enter__": lambda target: target.__enter__(),
    "__exit__": lambda target, *_: target.__exit__(None, None, None),
    **{f"__{name.strip('_')}__": getattr(operator, name) for name in _ITEMS + _ARITHMETIC},
}


def _forwarded(name: str) -> Callable[..., Any]:
    return lambda self, *arguments: self._peer.ask(name, self, *arguments)


for _name in _OPERATIONS:
    if _name.startswith("__"):
        setattr(Distant, _name, _forwarded(_name))


def shortened(value: Any) -> str:
    """A value as a detail shows it."""
    if isinstance(value, Distant):
        return "an object"
    text = repr(value)
    return text if len(text) <= _SHORTEN else text[:_SHORTEN] + "..."


def _replace(item: Any, value: Any) -> None:
    """Make an argument what the other end made of it."""
    if isinstance(item, list):
        item[:] = value
    else:
        item.clear()
        item.update(value)
