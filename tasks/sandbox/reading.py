"""Reads tests before they run: what they need of an answer, and how they use it. Runs inside the
sandbox.

It reads the tests and the prompt's prefix alone, so that an answer cannot influence it. Where the
text is unclear, the stricter reading holds: a name is a function, and an argument is a copy.
"""

import ast
import builtins
import importlib
import re
import symtable
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

from tasks.sandbox.flow import Flow, calls_by_name, conjuncts, loads, names_in, pairs, stores

_LIBRARY = (
    "math cmath collections itertools functools copy heapq bisect statistics fractions decimal"
    " datetime typing"
)
_BUILTINS = frozenset(dir(builtins))
_GIVE_NOTHING = {"append", "insert", "reverse", "sort", "update"}
_USUAL = {name for kind in (str, list, dict, set, tuple) for name in dir(kind)} - _GIVE_NOTHING
"""Methods of plain data that tests call on a function's result. Those that return nothing have a
value only as methods of a class."""
_DECORATED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_SEEN_BY = {"list", "sorted", "tuple", "set", "len", "sum", "min", "max", "dict", "bytes"}


class Reading:
    """The facts read from tests.

    Args:
        tests: their text. Raises SyntaxError for tests that are no Python.
        support: what the prefix defines in full.
        stubs: what the prefix leaves to the answer, a class with its methods, a function with None.

    Attributes:
        asked: the names that the answer is asked for, and whether they are used outside of
            functions.
        resolved: other names that the tests forgot to import, with their values of the standard
            library.
        classes: those of the names that the tests treat as classes.
        closed: those of the names that the tests neither call nor treat as classes: `np` of
            `np.allclose`.
        errors: those of the names that may be exception classes.
        methods: attributes that plain data has too and that the tests use of instances:
            `stack.pop`.
        cases: functions of the tests that run as cases and that the answer, as a decorator, could
            replace.
    """

    def __init__(self, tests: str, support: str, stubs: dict[str, set[str] | None]) -> None:
        tree = ast.parse(tests)
        self._nodes = list(ast.walk(tree))
        self._calls = calls_by_name(self._nodes)
        needed = _needed(tests, support)
        self.asked = needed
        self.flow = Flow(self._nodes, needed)
        self._makers: dict[str, str] = {}
        makers = {}
        for node in self._nodes:
            if isinstance(node, ast.FunctionDef) and isinstance(node.body[-1], ast.Return):
                makers[node.name] = self._made(node.body[-1].value)
        self._makers = {maker: name for maker, name in makers.items() if name}
        self._made_of, self._classes = self._instances()
        modules = {name for name in needed.keys() - stubs.keys() if self._is_module(name)}
        tools = self._tools(needed.keys() - stubs.keys() - modules, bool(stubs))
        if not stubs and tools.keys() == needed.keys() - modules:
            tools = {}
        self.resolved: dict[str, Any] = tools | {
            name: importlib.import_module(name) for name in modules
        }
        self.asked = {name: used for name, used in needed.items() if name not in self.resolved}
        self.asked |= {name: False for name in stubs if name not in needed}
        self.flow = Flow(self._nodes, self.asked)
        self.classes = {name for name in self._classes & self.asked.keys() if name not in stubs}
        self.classes |= {name for name, methods in stubs.items() if methods is not None}
        methods = [{*self._made_of.get(one, ()), *(stubs.get(one) or ())} for one in self.classes]
        self.methods: set[str] = set().union(*methods)
        self.errors = self.classes | {name for name in self.asked if _camel(name)}
        assigned = {
            name for node in self._nodes if isinstance(node, ast.Assign) for name in stores(node)
        }
        self.cases: set[str] = set()
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                decorated = any(loads(one) & self.asked.keys() for one in node.decorator_list)
                if node.name.startswith("test") and (decorated or node.name in assigned):
                    self.cases.add(node.name)
        others = self.asked.keys() - self._calls.keys() - self.classes - stubs.keys()
        self.closed = {name for name in others if not _camel(name)}

    def _is_module(self, name: str) -> bool:
        """Whether a name is a module of the standard library of which tests use attributes
        alone."""
        named = {one for one in self._nodes if isinstance(one, ast.Name) and one.id == name}
        owners = {node.value for node in self._nodes if isinstance(node, ast.Attribute)}
        return name in sys.stdlib_module_names and named <= owners

    def _tools(self, names: Iterable[str], stubbed: bool) -> dict[str, Any]:
        """Names of the standard library that tests use beside the answer's: `isclose(f(2), 4)`.

        Without stubs such a name may be the answer's own (MBPP asks for `gcd`): when a test uses it
        with constants alone, or as a decorator.
        """
        known = {
            name: value
            for name in names
            for value in _library(name)
            if self._made_of.get(name, set()) <= {*dir(value)}
            and (isinstance(value, type) or name not in self._classes)
        }
        if stubbed or not known:
            return known
        free = self.flow.free()
        subjects: set[str] = set()
        for node in self._nodes:
            if isinstance(node, _DECORATED):
                subjects |= {name for one in node.decorator_list for name in loads(one)}
            elif isinstance(node, ast.Assert | ast.Expr) and loads(node) <= known.keys() | free:
                for name, calls in calls_by_name(ast.walk(node)).items():
                    given = {one for call in calls for inner in call.args for one in loads(inner)}
                    if not given & known.keys():
                        subjects.add(name)
        return {name: value for name, value in known.items() if name not in subjects}

    def _instances(self) -> tuple[dict[str, set[str]], set[str]]:
        """Attributes that tests use of instances of each name, and the names that they treat as
        classes."""
        classes: set[str] = set()
        made: dict[str, str] = {}
        for node in self._nodes:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    for one, value in pairs(target, node.value):
                        if name := self._made(value):
                            made[ast.unparse(one)] = name
            elif isinstance(node, ast.withitem) and (name := self._made(node.context_expr)):
                made.update({ast.unparse(node.optional_vars): name} if node.optional_vars else {})
            elif isinstance(node, ast.ExceptHandler) and node.type:
                classes |= loads(node.type)
            elif isinstance(node, ast.Raise) and node.exc:
                classes |= loads(node.exc)
            elif isinstance(node, ast.ClassDef):
                classes |= {name for base in node.bases for name in loads(base)}
        for kind in ("isinstance", "issubclass"):
            for call in self._calls.get(kind, []):
                classes |= loads(call.args[-1]) if call.args else set()
        for name, calls in self._calls.items():
            if _camel(name) and not all(one.args or one.keywords for one in calls):
                classes.add(name)
        methods: dict[str, set[str]] = {}
        lines = [node.value for node in self._nodes if isinstance(node, ast.Expr)]
        commands = {line.func for line in lines if isinstance(line, ast.Call)}
        for node in self._nodes:
            if isinstance(node, ast.Attribute):
                name = self._made(node.value)
                if made and not name:
                    name = made.get(ast.unparse(node.value), "")
                methods.setdefault(name, set()).add(node.attr)
                if _camel(name) and (
                    node.attr not in _USUAL or node in commands or isinstance(node.ctx, ast.Store)
                ):
                    classes.add(name)
        return methods, classes

    def _made(self, node: ast.AST | None) -> str:
        """The name of the answer that an expression calls, directly or through a function of the
        tests."""
        match node:
            case ast.Call(func=ast.Name(id=called)):
                return called if called in self.asked else self._makers.get(called, "")
        return ""

    @cached_property
    def changeable(self) -> set[str]:
        """Variables passed to the answer whose every use compares them with the tests' own data."""
        shown: Counter[str] = Counter()
        for node in self._nodes:
            if isinstance(node, ast.Expr | ast.Assign):
                shown.update(self._answering.get(node.value, ()))
            elif isinstance(node, ast.Assert):
                for test in conjuncts(node.test):
                    match test:
                        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                            for one, other in ((left, right), (right, left)):
                                whole = other.value if isinstance(other, ast.Subscript) else other
                                if loads(whole) <= self._free:
                                    shown.update(self._answering.get(one) or _shows(one))
                if node.msg:
                    told = [one for one in ast.walk(node.msg) if isinstance(one, ast.Name)]
                    shown.update(one.id for one in told)
        used = Counter(names_in(self._nodes, ast.Load))
        seen = {name for name in self._given if shown[name] == used[name]}
        return {name for name in seen if self.flow.unshared(name)}

    @cached_property
    def _answering(self) -> dict[ast.AST, set[str]]:
        """Calls that may reach the answer (of its names, of parameters (`candidate`), of methods of
        variables), with the variables that are their arguments."""
        parameters = {node.arg for node in self._nodes if isinstance(node, ast.arg)}
        aliases = [node for node in self._nodes if isinstance(node, ast.alias)]
        others = {one.asname or one.name.partition(".")[0] for one in aliases}
        others |= self.resolved.keys() | _BUILTINS
        found: dict[ast.AST, set[str]] = {}
        for node in self._nodes:
            if isinstance(node, ast.Call):
                method = isinstance(node.func, ast.Attribute)
                called = node.func.value if isinstance(node.func, ast.Attribute) else node.func
                name = called.id if isinstance(called, ast.Name) else self._made(called)
                if (name and name not in others) if method else name in {*self.asked, *parameters}:
                    given = [*node.args, *(keyword.value for keyword in node.keywords)]
                    found[node] = {one.id for one in given if isinstance(one, ast.Name)}
        return found

    @cached_property
    def _given(self) -> set[str]:
        """Variables that such calls are passed."""
        return {name for names in self._answering.values() for name in names}

    @cached_property
    def _free(self) -> set[str]:
        return self.flow.free(self._given)

    @cached_property
    def harmless(self) -> set[int]:
        """Lines of `with` blocks that raise by themselves, whatever the answer returns."""
        lines: set[int] = set()
        blocks = [node.body for node in self._nodes if isinstance(node, ast.With)]
        for node in (one for body in blocks for one in body):
            known = self._free | self.classes if isinstance(node, ast.Raise) else self._free
            if isinstance(node, ast.Raise | ast.Expr | ast.Assign) and loads(node) <= known:
                lines |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
        return lines


def _needed(tests: str, support: str) -> dict[str, bool]:
    """The names that tests use and neither they, nor the prefix, nor Python define, and whether
    they use them outside of functions."""
    top = symtable.symtable(tests, "<tests>", "exec")
    prefix = symtable.symtable(support, "<prefix>", "exec")
    own, inside = set(), set()
    for symbol in [*top.get_symbols(), *prefix.get_symbols()]:
        if symbol.is_assigned() or symbol.is_imported():
            own.add(symbol.get_name())
    for symbol in (symbol for table in _tables(top) for symbol in table.get_symbols()):
        if symbol.is_declared_global() and symbol.is_assigned():
            own.add(symbol.get_name())
        if symbol.is_referenced() and symbol.is_global():
            inside.add(symbol.get_name())
    at_top = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_referenced()}
    wanted = (at_top | inside) - own - _BUILTINS
    return {name: name in at_top for name in sorted(wanted) if not name.startswith("__")}


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _library(name: str) -> Iterator[Any]:
    """The value of a name in the first module of the standard library that defines it, if any
    does."""
    for module in map(importlib.import_module, _LIBRARY.split()):
        if name in getattr(module, "__all__", ()) or (
            not hasattr(module, "__all__") and name in vars(module)
        ):
            yield getattr(module, name)
            return


def _camel(name: str) -> bool:
    """Whether a name is in camel case, as classes' are."""
    return re.fullmatch(r"[A-Z][A-Za-z0-9]*", name) is not None


def _shows(node: ast.expr) -> list[str]:
    """The variable whose items an expression shows: `nums`, `nums[:k]`, `sorted(nums[:k])`."""
    match node:
        case ast.Name(id=name):
            return [name]
        case ast.Subscript(value=value):
            return _shows(value)
        case ast.Call(func=ast.Name(id=called), args=[value]) if called in _SEEN_BY:
            return _shows(value)
    return []
