"""Crashes a Python process at a chosen call of a chosen function, with SIGKILL: no handler, no
flush, no farewell.

Python imports a module of this name at start-up when its directory is on PYTHONPATH, so whole
commands can be crashed without a hook in the product. It does nothing unless told to by the
environment:

    LYCEUM_CRASH        JSON list of points (`Point`); the first that is reached kills the process,
                        or its parent
    LYCEUM_CRASH_SPENT  a directory; a point leaves a file there when it fires, and fires only once
                        whatever is run again
"""

import functools
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple


class Point(NamedTuple):
    """A call: of `function` (`module:name`), its `number` (from 1) in the processes of one stage
    `kind`, before it or after it.

    `victim` is the process itself (a worker) or its parent (the flow).
    """

    kind: str
    function: str
    number: int
    when: str = "before"
    victim: str = "self"

    def __str__(self) -> str:
        return (
            f"{self.kind}-{self.function.replace(':', '.')}-{self.number}-{self.when}-{self.victim}"
        )


def _kind(arguments: Sequence[str]) -> str:
    """The stage kind of a worker process, from its job.json; empty for other processes."""
    for argument in arguments:
        if argument.endswith("job.json") and os.path.isfile(argument):
            return str(json.loads(Path(argument).read_bytes())["kind"])
    return ""


_FLOW = os.getppid()
"""Whoever started this process: a worker, or the process that forks workers."""


class _Crasher:
    def __init__(self, points: Sequence[Point], spent: Path | None) -> None:
        self._points, self._spent = points, spent
        self._calls: Counter[str] = Counter()

    def wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            self._calls[name] += 1
            number = self._calls[name]
            self._reach(name, number, "before")
            result = function(*arguments, **named)
            self._reach(name, number, "after")
            return result

        return call

    def _reach(self, name: str, number: int, when: str) -> None:
        for point in self._points:
            if (point.function, point.number, point.when) == (name, number, when) and self._spend(
                point
            ):
                os.kill(_FLOW if point.victim == "parent" else os.getpid(), signal.SIGKILL)

    def _spend(self, point: Point) -> bool:
        if self._spent is None:
            return True
        try:
            os.close(os.open(self._spent / str(point), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class _PatchOnImport(importlib.abc.MetaPathFinder):
    """Wraps functions of modules as soon as these are imported."""

    def __init__(self, crasher: _Crasher, names: Sequence[str]) -> None:
        self._crasher = crasher
        self._names: dict[str, list[str]] = {}
        for name in names:
            self._names.setdefault(name.split(":")[0], []).append(name)
        for module in list(self._names):
            if module in sys.modules:
                self.patch(sys.modules[module])

    def patch(self, module: ModuleType) -> None:
        for name in self._names.pop(module.__name__, []):
            *path, attribute = name.split(":")[1].split(".")
            owner = functools.reduce(getattr, path, module)
            setattr(owner, attribute, self._crasher.wrapped(name, getattr(owner, attribute)))

    def find_spec(
        self, fullname: str, path: Any, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._names:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def execute(module: ModuleType) -> None:
            run(module)
            self.patch(module)

        spec.loader.exec_module = execute  # type: ignore[method-assign]
        return spec


class _ArmForks(importlib.abc.MetaPathFinder):
    """Arms a fork when it begins its job: `tasks.worker.__main__.main` is called with it."""

    def find_spec(
        self, fullname: str, path: Any, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "tasks.worker.__main__":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None
        assert spec.loader is not None
        run = spec.loader.exec_module

        def execute(module: ModuleType) -> None:
            run(module)
            main = module.main

            def armed(arguments: list[str]) -> int:
                _arm(_kind(arguments))
                return int(main(arguments))

            module.main = armed  # type: ignore[attr-defined]

        spec.loader.exec_module = execute  # type: ignore[method-assign]
        return spec


def install(points: Sequence[Point], kind: str, spent: Path | None = None) -> None:
    """Arm this process, which runs a stage of `kind`: crash it at the first of its points that is
    reached."""
    here = [point for point in points if point.kind == kind]
    if here:
        names = sorted({point.function for point in here})
        sys.meta_path.insert(0, _PatchOnImport(_Crasher(here, spent), names))


def _arm(kind: str) -> None:
    armed = [Point(*point) for point in json.loads(os.environ["LYCEUM_CRASH"])]
    spent = os.environ.get("LYCEUM_CRASH_SPENT")
    install(armed, kind, Path(spent) if spent else None)


if "LYCEUM_CRASH" in os.environ:
    if "tasks.worker.fork_server" in sys.orig_argv:  # its forks have a job each
        sys.meta_path.insert(0, _ArmForks())
    else:
        _arm(_kind(sys.orig_argv))
