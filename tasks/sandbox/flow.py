"""Follows values through tests: which are made of the answer's results, and which share data with
an argument. Runs inside the sandbox.

It takes two variables of one name for one, wherever they stand, which is the stricter reading.
"""

import ast
import builtins
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property

_BUILTINS = frozenset(dir(builtins))
_COPYING = {"list", "dict", "set", "sorted", "bytearray", "deque", "copy", "deepcopy"}
_FILLING = {"append", "appendleft", "add", "extend", "insert", "update", "setdefault"}
_HELD_AGAINST = ast.Compare | ast.BinOp | ast.Tuple | ast.List | ast.Dict | ast.Call
_Source = tuple[ast.AST | None, bool]
"""The expression that a name is bound to (None: unknown), and whether to the whole of it or to a
part."""


class Flow:
    """The flow of values through tests.

    Args:
        nodes: all nodes of the tests.
        asked: names that are the answer's.
    """

    def __init__(self, nodes: Collection[ast.AST], asked: Collection[str]) -> None:
        self._nodes = nodes
        self._functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
        self._parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
        self._calls = calls_by_name(nodes)
        self._bound = self._bindings()
        asked = set(asked) | (self._parameters & self._calls.keys())
        self.answers = _reached(asked, self._edges())
        self._loaded = Counter(names_in(nodes, ast.Load))

    def _bindings(self) -> dict[str, list[_Source]]:
        bound: dict[str, list[_Source]] = {name: self._given(name) for name in self._parameters}
        for node in self._nodes:
            targets: Iterable[tuple[ast.AST, ast.AST | None]] = []
            match node:
                case ast.Assign():
                    targets = [pair for one in node.targets for pair in pairs(one, node.value)]
                case ast.For() | ast.comprehension():
                    targets = [(node.target, node.iter)]
                case ast.AugAssign() | ast.NamedExpr() | ast.AnnAssign():
                    targets = [(node.target, node.value)]
                case ast.withitem(optional_vars=ast.expr() as entered):
                    targets = [(entered, node.context_expr)]
                case ast.Import() | ast.ImportFrom():
                    for one in node.names:
                        imported = one.asname or one.name.partition(".")[0]
                        bound.setdefault(imported, []).append((ast.Constant(None), True))
                case ast.Call(func=ast.Attribute() as func) if func.attr in _FILLING:
                    targets = [(func.value, one) for one in node.args]  # `results.append(f(x))`
            for target, value in targets:
                assigned = isinstance(node, ast.Assign | ast.NamedExpr | ast.AnnAssign)
                whole = assigned and isinstance(target, ast.Name)
                for name in stores(target) or roots(target):
                    bound.setdefault(name, []).append((value, whole))
        return bound

    def _given(self, parameter: str) -> list[_Source]:
        """The arguments that calls of the tests' functions give for a parameter."""
        found: list[_Source] = []
        for name, function in self._functions.items():
            names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
            if parameter in names:
                place = names.index(parameter)
                uses = sum(isinstance(one, ast.Name) and one.id == name for one in self._nodes)
                calls = self._calls.get(name, [])
                plain = [one for one in calls if not one.keywords and len(one.args) == len(names)]
                starred = [any(isinstance(arg, ast.Starred) for arg in one.args) for one in plain]
                if calls and len(plain) == uses and not any(starred):
                    found += [(call.args[place], True) for call in plain]
                else:
                    found.append((None, False))
        return found or [(None, False)]

    def _edges(self, outside: Collection[ast.AST] = ()) -> dict[str, set[str]]:
        """Map each name to the names that are made of it, outside of some expressions."""
        made: dict[str, set[str]] = {}
        for name, sources in self._bound.items():
            for one in {one for value, _ in sources if value for one in loads(value, outside)}:
                made.setdefault(one, set()).add(name)
        for name, function in self._functions.items():
            read = {one for line in function.body for one in loads(line, outside)}
            for one in read - stores(function):
                made.setdefault(one, set()).add(name)
        return made

    def sources(self, name: str) -> set[str] | None:
        """A name, and those that it may share data with because it was taken out of them. None:
        unknown."""
        reached, left = {name}, [name]
        while left:
            for value, whole in self._bound.get(left.pop(), []):
                if value is None:
                    return None
                if not (whole and _copies(value)):
                    new = loads(value) - _BUILTINS - self._functions.keys() - reached
                    reached |= new
                    left += new
        return reached

    def free(self, given: Iterable[str] = ()) -> set[str]:
        """Names without data of the answer: builtins, modules, and variables made of constants and
        such names. Those that are `given` to the answer are none."""
        free, before = set(_BUILTINS), -1
        while len(free) > before:
            before = len(free)
            found = {
                name
                for name, sources in self._bound.items()
                if all(value and loads(value) <= free for value, _ in sources)
            }
            free |= found - set(given)
        return free

    def unshared(self, name: str) -> bool:
        """Whether no other variable of the tests shares data with this one."""
        sources = self.sources(name)
        return sources is not None and all(
            self._loaded[one] == 1 for one in sources - {name} - self.answers
        )

    @cached_property
    def measures(self) -> set[str]:
        """Variables passed to the answer that tests also compare with its results: `h.build(xs);
        assert h.total() == sum(xs)`."""
        passed: set[ast.expr] = set()
        checks: list[ast.AST] = []
        for node in self._nodes:
            if isinstance(node, ast.Call) and roots(node.func) & self.answers:
                passed |= {*node.args, *(keyword.value for keyword in node.keywords)}
            elif isinstance(node, ast.Assert):
                checks += conjuncts(node.test)
            elif isinstance(node, ast.If | ast.While):
                checks.append(node.test)
            elif isinstance(node, _HELD_AGAINST):
                checks.append(node)
        edges = self._edges(passed)
        read = [(loads(one), loads(one, passed)) for one in checks]
        mixed = [(names, beside) for names, beside in read if names & self.answers and beside]
        found = set()
        for name in {name for one in passed for name in loads(one) - _BUILTINS}:
            sources = self.sources(name)
            shared = _reached((sources or set()) - self.answers | {name}, edges)
            answers = self.answers - shared
            if sources is None or any(names & answers and rest & shared for names, rest in mixed):
                found.add(name)
        return found


def _reached(names: set[str], edges: Mapping[str, set[str]]) -> set[str]:
    """These names, and all names that are made of them."""
    reached, left = set(names), list(names)
    while left:
        new = edges.get(left.pop(), set()) - reached
        reached |= new
        left += new
    return reached


def conjuncts(test: ast.expr) -> list[ast.expr]:
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]


def loads(node: ast.AST, outside: Collection[ast.AST] = ()) -> set[str]:
    """Names that an expression reads without binding them itself, outside of some of its parts."""
    left: list[ast.AST] = [node]
    found = set()
    while left:
        one = left.pop()
        if one not in outside:
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load):
                found.add(one.id)
            left += ast.iter_child_nodes(one)
    return found - stores(node) - {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}


def stores(node: ast.AST) -> set[str]:
    return set(names_in(ast.walk(node), ast.Store))


def names_in(nodes: Iterable[ast.AST], context: type[ast.expr_context]) -> list[str]:
    """The names among nodes that are read, or assigned to."""
    return [
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, context)
    ]


def calls_by_name(nodes: Iterable[ast.AST]) -> dict[str, list[ast.Call]]:
    """The calls among nodes, by the name that is called."""
    found: dict[str, list[ast.Call]] = {}
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.setdefault(node.func.id, []).append(node)
    return found


def roots(node: ast.AST) -> set[str]:
    """The name at the root of an attribute, an item or a call: `s` of `s.items[0].get(x)`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def pairs(target: ast.AST, value: ast.AST | None) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """The targets of an assignment, each with its value."""
    sides = [one.elts for one in (target, value) if isinstance(one, ast.Tuple)]
    if len(sides) == 2 and len(sides[0]) == len(sides[1]):
        yield from zip(*sides, strict=True)
    else:
        yield target, value


def _copies(value: ast.AST) -> bool:
    """Whether an expression makes a container of its own."""
    match value:
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name in _COPYING
        case ast.ListComp() | ast.BinOp() | ast.Subscript(slice=ast.Slice()):
            return True
    return False
