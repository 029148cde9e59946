"""What runs inside a sandbox, alone with the standard library: the candidate holds an answer's code, the examiner its tests.

They are two processes in two sandboxes, joined by a pair of pipes (`wire`). The tests call the answer's functions by name; the candidate
runs them and sends back what they return as plain data, which the examiner rebuilds and compares *in its own process*. So an answer cannot
pass by ending the process, by changing assert, builtins or the tests, by objects that equal everything, by printing a verdict or by
forking: all that it reaches is its own process. Only the examiner holds the pipe of the verdict, and only it ever saw the tests.
"""

import ast
import json
import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tasks.sandbox import assembly
from tasks.sandbox.wire import AnswerError, Distant, Peer, shortened


def main(role: str, given: int, *pipes: int) -> None:
    """A guest's life, with a file that holds its payload and the ends of its pipes. `probe` only shows that a guest can live."""
    sys.set_int_max_str_digits(0)
    with os.fdopen(given, encoding="utf-8") as file:
        payload = json.load(file)
    if role == "candidate":
        _candidate(payload, *pipes)
    elif role == "examiner":
        _examiner(payload, *pipes)


def _candidate(payload: dict[str, Any], incoming: int, outgoing: int) -> None:
    """Run the answer's program, then do what the examiner asks. What it asks first is which names of its list the program defines."""
    peer = Peer(incoming, outgoing, may=lambda operation, target, arguments: True)
    _, _, arguments, _ = peer.receive()
    (names,) = peer.decode(arguments)
    module = types.ModuleType("answer")
    sys.modules["answer"] = module  # dataclasses look their module up
    try:
        exec(compile(assembly.program(payload["answer"], payload["prefix"], names), "<answer>", "exec"), module.__dict__)
        found = peer.encode({name: module.__dict__[name] for name in names if name in module.__dict__})
    except BaseException as error:  # noqa: BLE001  whatever it is, it is the answer's
        peer.send(["raise", ["AnswerError"], f"the code does not run: {type(error).__name__}: {error}"])
        return
    peer.send(["value", found, []])
    while True:
        peer.serve(*peer.receive())


def _may(operation: str, target: Any, arguments: list[Any]) -> bool:
    """What a candidate may do with the examiner's objects: call what a test passed, iterate, and read public attributes of the tests' own
    classes. Not of functions and generators, whose attributes lead to the tests."""
    if operation == "getattr":
        return type(target).__module__ == "tests" and not isinstance(target, type) and not arguments[0].startswith("_")
    return operation in ("call", "__iter__", "__next__", "__len__", "__getitem__")


class _Report:
    """What the examiner tells the host, in lines of JSON: how many cases there are, how each went, and at the end the verdict.

    Attributes:
        detail: what the first failure was; empty: there was none.
    """

    def __init__(self, verdict: int, peer: Peer, tests: str) -> None:
        self._verdict, self._peer, self._tests = verdict, peer, tests
        self._said: dict[int, bool] = {}
        self.detail = ""

    def say(self, **what: Any) -> None:
        os.write(self._verdict, json.dumps(what).encode() + b"\n")

    def failed(self, error: BaseException) -> None:
        self.detail = self.detail or _explained(error, self._tests, self._peer)

    @contextmanager
    def case(self, number: int) -> Iterator[None]:
        """Whatever a case raises ends this case, not the tests. One that runs again has passed when it always did. Nothing has passed
        before the answer's code was used."""
        try:
            yield
            passed = self._peer.used > 0 and self._said.get(number, True)
        except Exception as error:  # noqa: BLE001  of the answer, or what the tests make of its values
            self.failed(error)
            passed = False
        if self._said.get(number) is not passed:
            self._said[number] = passed
            self.say(case=number, passed=passed)


def _examiner(payload: dict[str, Any], incoming: int, outgoing: int, verdict: int) -> None:
    """Run the tests against the candidate and say what came of it."""
    peer = Peer(incoming, outgoing, may=_may)
    report = _Report(verdict, peer, payload["tests"])
    try:
        _examine(peer, payload, report)
    except BaseException as error:  # noqa: BLE001  SystemExit too: tests that end their process have not passed
        report.failed(error)
    detail = report.detail or ("" if peer.used else "the tests never used the answer's code")
    report.say(ok=not detail, detail=detail)


def _examine(peer: Peer, payload: dict[str, Any], report: _Report) -> None:
    module = types.ModuleType("tests")
    sys.modules["tests"] = module
    namespace = module.__dict__
    support, tests = assembly.support(payload["prefix"]), payload["tests"]
    exec(compile(support, "<prefix>", "exec"), namespace)
    code = ast.parse(tests)
    if payload["every"]:
        report.say(cases=assembly.divide(code, "<case>"))
        namespace["<case>"] = report.case
    compiled = compile(code, "<tests>", "exec")
    needed = assembly.needed(tests, support)
    found = peer.ask("names", None, sorted({*needed, *assembly.stubs(payload["prefix"])}))
    namespace.update(found)
    constants = (name for name, value in found.items() if not isinstance(value, Distant | types.ModuleType | type))
    peer.used += any(needed.get(name, False) for name in constants)
    before = set(namespace)
    exec(compiled, namespace)
    for name, value in list(namespace.items()):
        if name not in before and name.startswith("test") and isinstance(value, types.FunctionType) and not value.__code__.co_argcount:
            try:
                value()
            except Exception as error:  # noqa: BLE001  as in `_Report.case`
                report.failed(error)
                if not payload["every"]:
                    return


def _explained(error: BaseException, tests: str, peer: Peer) -> str:
    """The failing line of the tests, the exception, and what the last call of the answer's code gave."""
    if isinstance(error, AnswerError) and not peer.last:
        return str(error)[:2000]
    frame, line = error.__traceback__, 0
    while frame:
        if frame.tb_frame.f_code.co_filename == "<tests>":
            line = frame.tb_lineno
        frame = frame.tb_next
    text = str(error) if isinstance(error, AnswerError) else f"{type(error).__name__}: {error}".removesuffix(": ")
    where = f"line {line} of the tests, {shortened(tests.splitlines()[line - 1].strip())}: " if line else ""
    return f"{where}{text}{f'; the last call, {peer.last}' if peer.last and line else ''}"[:2000]
