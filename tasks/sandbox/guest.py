"""What runs inside a sandbox, alone with the standard library: the candidate holds an answer's code, the examiner its tests.

They are two processes in two sandboxes, joined by a pair of pipes (`wire`). The tests call the answer's functions by name; the candidate
runs them and sends back what they return as plain data, which the examiner rebuilds and compares *in its own process*. So an answer cannot
pass by ending the process, by changing assert, builtins or the tests, by objects that equal everything, by printing a verdict or by
forking: all that it reaches is its own process. Only the examiner holds the pipe of the verdict, and only it ever saw the tests.
"""

import fcntl
import json
import os
import resource
import select
import signal
import sys
import types
from typing import Any

from tasks.sandbox import assembly
from tasks.sandbox.wire import AnswerError, Distant, Peer, shortened


def main(role: str, settings: dict[str, Any], payload: dict[str, str], verdict: int, lifeline: int) -> None:
    """A guest's life. `probe` only shows that a guest can live."""
    _hang_on(lifeline)
    _limit(**settings)
    sys.set_int_max_str_digits(0)
    incoming, outgoing = os.dup(0), os.dup(1)
    nothing = os.open("/dev/null", os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    if role == "probe":
        return
    try:
        if role == "candidate":
            _candidate(payload, incoming, outgoing)
        else:
            _examiner(payload, incoming, outgoing, verdict)
    finally:
        os._exit(0)  # at once, whatever threads and exit handlers the code has left


def _hang_on(lifeline: int) -> None:
    """End when the host does, which alone holds the other end of this pipe. bwrap's --die-with-parent is for users: once root's guest is
    somebody else, bwrap, which has given up its capabilities, may not signal it. To be called as root: the kernel asks who called."""
    signal.signal(signal.SIGIO, lambda *_: os._exit(0))  # a handler: what it has none for, process 1 of a namespace ignores
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    if select.select([lifeline], [], [], 0)[0]:
        os._exit(0)


def _limit(user: int | None, cpu_s: int, memory_bytes: int, threads: int) -> None:
    """Give up root, then every resource beyond the limits. Hard limits: without root they cannot be raised."""
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_NPROC, threads),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, memory_bytes),
    ):
        resource.setrlimit(kind, (most, most))


def _candidate(payload: dict[str, str], incoming: int, outgoing: int) -> None:
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


def _examiner(payload: dict[str, str], incoming: int, outgoing: int, verdict: int) -> None:
    """Run the tests against the candidate and say what came of it, once."""
    peer = Peer(incoming, outgoing, may=_may)
    try:
        _examine(peer, payload["prefix"], payload["tests"])
        result = {"ok": True, "detail": ""} if peer.used else {"ok": False, "detail": "the tests never used the answer's code"}
    except BaseException as error:  # noqa: BLE001  SystemExit too: tests that end their process have not passed
        result = {"ok": False, "detail": _explained(error, payload["tests"], peer)}
    os.write(verdict, json.dumps(result).encode())


def _examine(peer: Peer, prefix: str, tests: str) -> None:
    module = types.ModuleType("tests")
    sys.modules["tests"] = module
    namespace = module.__dict__
    support = assembly.support(prefix)
    exec(compile(support, "<prefix>", "exec"), namespace)
    code = compile(tests, "<tests>", "exec")
    needed = assembly.needed(tests, support)
    found = peer.ask("names", None, sorted({*needed, *assembly.stubs(prefix)}))
    namespace.update(found)
    constants = (name for name, value in found.items() if not isinstance(value, Distant | types.ModuleType | type))
    peer.used += any(needed.get(name, False) for name in constants)
    before = set(namespace)
    exec(code, namespace)
    for name, value in list(namespace.items()):
        if name not in before and name.startswith("test") and isinstance(value, types.FunctionType) and not value.__code__.co_argcount:
            value()


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
