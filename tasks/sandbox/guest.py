"""The program inside a sandbox, with the standard library alone: the candidate has an answer's
code, the examiner its tests.

They are two processes in two sandboxes, joined by a pair of pipes (`wire`). The tests call the
answer's functions by name; the candidate runs them and sends back what they return as plain data,
which the examiner builds anew and compares *in its own process*. So an answer cannot pass by ending
the process, by changing assert, builtins or the tests, by objects that equal everything, by
printing a verdict, by forking, or by speaking the protocol itself: it reaches its own process
alone, and the examiner accepts nothing from there but replies to calls that the tests made
(`client`). Only the examiner holds the pipe of the verdict, and only it ever saw the tests. An
answer passes when the tests ran to their end, none failed, and they used the answer.
"""

import ast
import importlib
import inspect
import json
import os
import re
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tasks.sandbox import assembly, candidate
from tasks.sandbox.client import GONE, Client, Stopped, shortened
from tasks.sandbox.errors import AnswerError, origin
from tasks.sandbox.plain import BARE
from tasks.sandbox.reading import Reading
from tasks.sandbox.wire import Pipe

_LONGEST = 2000  # characters of a detail
_IMPORT = ast.Import | ast.ImportFrom


def main(role: str, given: int, *pipes: int) -> None:
    """Run a guest, given a file with its payload and the ends of its pipes. `probe` only shows that
    a guest starts."""
    sys.set_int_max_str_digits(0)
    with os.fdopen(given, encoding="utf-8") as file:
        payload = json.load(file)
    if role == "candidate":
        candidate.serve(payload, Pipe(*pipes))
    elif role == "examiner":
        _examiner(payload, *pipes)


class _Report:
    """The examiner's report to the host, in lines of JSON: the number of cases, the result of each,
    and at the end the verdict.

    Attributes:
        failures: how many failures nothing swallowed.
        detail: the first of them.
    """

    def __init__(self, verdict: int, pipe: Pipe, tests: str, *, shown: bool) -> None:
        self.client = Client(pipe, self.failed, shown=shown)
        self._verdict, self._tests = verdict, tests
        self._said: dict[int, bool] = {}
        self.failures, self.detail = 0, ""
        self._refuted: list[int] = []

    def say(self, **what: Any) -> None:
        os.write(self._verdict, json.dumps(what).encode() + b"\n")

    def failed(self, error: BaseException) -> None:
        self.failures += 1
        if self.failures == 1:
            self.detail = _explained(error, self._tests, self.client)

    def asserted(self, value: Any) -> bool:
        """Record whether an assertion of the tests holds. A failure counts even where an answer
        swallows its exception."""
        holds = bool(value)
        if not holds:
            self._refuted.append(sys._getframe(1).f_lineno)
        return holds

    @contextmanager
    def case(self, number: int) -> Iterator[None]:
        """Run a case: whatever it raises ends the case, and the tests go on. A case that runs
        several times passes when it passed every time. No case passes before the tests used the
        answer's code, or after the examination stopped."""
        before = self.failures, len(self._refuted)
        try:
            yield
        except Exception as error:  # noqa: BLE001  of the answer, or what the tests make of its values
            self.failed(error)
        alive = self.client.used > 0 and self.client.stopped is None
        sound = alive and (self.failures, len(self._refuted)) == before
        passed = sound and self._said.get(number, True)
        if self._said.get(number) is not passed:
            self._said[number] = passed
            self.say(case=number, passed=passed)

    def conclude(self, finished: bool) -> None:
        """Write the verdict."""
        client, detail = self.client, self.detail
        if self._refuted and not self.failures:
            detail = (
                f"{_at(self._tests, self._refuted[0])}an assertion that failed and was swallowed"
            )
        if client.stopped is not None and client.stopped not in detail:
            detail = client.stopped
        elif detail and client.unseen:
            detail += (
                " (calls that returned something changed their arguments, of which these tests kept"
                " their copies)"
            )
        elif not client.used:
            detail = detail or "the tests never used the answer's code"
        failed = self.failures or self._refuted or client.stopped is not None
        ok = finished and not failed and client.used > 0
        text = detail.encode(errors="replace").decode()[:_LONGEST] or "the tests failed"
        told = {"verifiable": client.verifiable, "unseen": client.unseen}
        told["gone"] = client.stopped == GONE
        self.say(ok=ok, **told, detail="" if ok else text)


def _examiner(payload: dict[str, Any], incoming: int, outgoing: int, verdict: int) -> None:
    """Run the tests against the candidate and report the result."""
    report = _Report(verdict, Pipe(incoming, outgoing), payload["tests"], shown=payload["shown"])
    finished = False
    try:
        _examine(report, payload)
        finished = True
    except BaseException as error:  # noqa: BLE001  SystemExit too: tests that end their process have not passed
        report.failed(error)
    report.conclude(finished)


def _examine(report: _Report, payload: dict[str, Any]) -> None:
    module = types.ModuleType("tests")
    sys.modules["tests"] = module
    namespace = module.__dict__
    support, client = assembly.support(payload["prefix"]), report.client
    try:
        exec(compile(support, "<prefix>", "exec"), namespace)
        reading = Reading(payload["tests"], support, assembly.stubs(payload["prefix"]))
        tree = ast.parse(payload["tests"])
        imports = ast.Module([one for one in tree.body if isinstance(one, _IMPORT)], [])
        exec(compile(imports, "<tests>", "exec"), namespace)
        if payload["every"]:
            report.say(cases=assembly.divide(tree, "<case>"))
            namespace["<case>"] = report.case
        assembly.watch(tree, "<assert>")
        namespace["<assert>"] = report.asserted
        compiled = compile(tree, "<tests>", "exec")
    except Exception as error:  # noqa: BLE001  whatever it is, no answer has a part in it
        client.refuse(f"tests or prefix cannot be used here: {type(error).__name__}: {error}")
    found = client.names(reading)
    namespace.update(reading.resolved)
    namespace.update(found)
    client.used += any(reading.asked[name] and _is_data(value) for name, value in found.items())
    exec(compiled, namespace)
    for name in reading.cases:
        if (code := _code(namespace.get(name))) is None or code.co_name != name:
            client.refuse(f"{name} is not what they define under this name")
    for name, value in list(namespace.items()):
        if name.startswith("test") and _is_test(value):
            try:
                if isinstance(waits := value(), types.CoroutineType):
                    importlib.import_module("asyncio").run(waits)
            except Exception as error:  # noqa: BLE001  as in `_Report.case`
                report.failed(error)
                if not payload["every"]:
                    return


def _is_data(value: Any) -> bool:
    return type(value) in BARE or isinstance(value, list | tuple | dict | set | frozenset)


def _is_test(value: Any) -> bool:
    """Whether it is a function of the tests without parameters, perhaps in a wrapper
    (`unittest.mock.patch`)."""
    return _code(value) is not None and not value.__code__.co_argcount


def _code(value: Any) -> types.CodeType | None:
    """The code of a function of the tests, without its wrappers."""
    inner = inspect.unwrap(value) if isinstance(value, types.FunctionType) else None
    code = inner.__code__ if isinstance(inner, types.FunctionType) else None
    return code if code is not None and code.co_filename == "<tests>" else None


def _explained(error: BaseException, tests: str, client: Client) -> str:
    """The failing line of the tests, the exception, and the result of the last call of the answer's
    code."""
    ours = isinstance(error, AnswerError | Stopped)
    if ours and not client.last:
        return str(error)
    line = next((line for file, line in reversed(origin(error)) if file == "<tests>"), 0)
    text = str(error) if ours else f"{type(error).__name__}: {error}".removesuffix(": ")
    last = f"; the last call, {client.last}" if client.last and line else ""
    return f"{_at(tests, line) if line else ''}{text}{last}"


def _at(tests: str, line: int) -> str:
    lines = re.split("\r\n?|\n", tests)  # as Python counts them: splitlines knows more ends
    return f"line {line} of the tests, {shortened(repr(lines[line - 1].strip()))}: "
