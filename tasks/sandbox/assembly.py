"""Makes a program of an answer's text and a prompt's prefix, and cases of tests. Runs inside the
sandbox, because crafted text can crash Python's parser and compiler. It runs none of the code.
"""

import ast
import re
import textwrap
from collections.abc import Iterator

_FENCE = re.compile(
    r"^[ \t]*(```+|~~~+)[^\n]*\n(.*?)(?:^[ \t]*\1[^\n]*$|\Z)", re.MULTILINE | re.DOTALL
)
_OUTERMOST = re.compile(r"^([ \t]*)(```+|~~~+)[^\n]*\n(.*)^\1\2[ \t]*$", re.MULTILINE | re.DOTALL)
"""A block with fences of its own in it, as in a docstring."""
_FUTURE = re.compile(r"^from __future__ import [^\n]*\n?", re.MULTILINE)
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def program(answer: str, prefix: str, names: list[str]) -> str:
    """The program that an answer means: the last of its fenced blocks, or all of it, that can be
    read as what is asked for.

    It tries a block, without its common indentation, as a whole program after the prefix and the
    blocks before it; as text that continues the prefix (HumanEval's body of a function), also when
    the first line has lost its indentation; and indented as a whole. Then it tries all from the
    first fence to the last. A reading fits when it defines the prefix's stubs, or one of `names`.
    When none fits, it returns the first reading: running that shows what is wrong.
    """
    blocks = [match[2] for match in _FENCE.finditer(answer)] or [answer]
    wanted = set(stubs(prefix))

    def fits(text: str) -> bool:
        tree = _parsed(text)
        return tree is not None and (
            _defined(tree) >= wanted if wanted else not names or bool(_defined(tree) & set(names))
        )

    for index in reversed(range(len(blocks))):
        if fits(whole := _whole(blocks[index], prefix)):
            together = _whole("\n".join(map(_dedented, blocks[: index + 1])), prefix)
            return together if fits(together) else whole
        for reading in _continued(blocks[index], prefix):
            if fits(reading):
                return reading
    outermost = _OUTERMOST.search(answer)
    if outermost and fits(whole := _whole(outermost[3], prefix)):
        return whole
    return _whole(blocks[-1], prefix)


def _whole(block: str, prefix: str) -> str:
    block = _dedented(block)
    first = "".join(_FUTURE.findall(block))  # Python wants these before the prefix
    return f"{first}{_completed(prefix)}\n\n{_FUTURE.sub('', block)}"


def _continued(block: str, prefix: str) -> Iterator[str]:
    if prefix:
        # a suite may have stripped the prefix
        for start in dict.fromkeys((prefix.rstrip(" "), f"{prefix.rstrip()}\n")):
            yield start + block
            yield f"{start}    {block.lstrip()}"
            margin = _margin(block.splitlines()[1:])  # that of a first line which lost its own
            for body in (block, margin + block.lstrip()):
                yield start + textwrap.indent(_dedented(body), "    ")


def _margin(lines: list[str]) -> str:
    """The least indentation of lines."""
    indented = [line[: -len(line.lstrip())] for line in lines if line.strip()]
    return min(indented, key=len, default="")


def _dedented(block: str) -> str:
    """The block without its lines' common indentation. Lines of white space alone stay: they may be
    part of a text in the code."""
    return re.sub(f"^{_margin(block.splitlines())}", "", block, flags=re.MULTILINE)


def _completed(prefix: str) -> str:
    """The prefix as a module that parses: one that ends in `def f(x):` gets a body."""
    texts = (prefix, f"{prefix}\n    pass\n", f"{prefix}\n        pass\n")
    return next((text for text in texts if _parsed(text)), prefix)


def _parsed(text: str) -> ast.Module | None:
    try:
        compile(text, "<answer>", "exec")  # finds more than parsing: a return outside of a function
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_stub(node: ast.stmt) -> bool:
    """Whether a definition lacks its body: a function of a docstring, pass, ... or raise alone, or
    a class with such a function."""
    if isinstance(node, ast.ClassDef):
        return any(_is_stub(inner) for inner in node.body) or not any(
            isinstance(inner, _Definition | ast.Assign) for inner in node.body
        )
    if not isinstance(node, _Definition):
        return False
    return all(
        isinstance(line, ast.Pass | ast.Raise | ast.Import | ast.ImportFrom)
        or (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
        for line in node.body
    )


def _defined(tree: ast.Module) -> set[str]:
    """Names of a module's finished definitions, assignments and imports, the last of each name."""
    last: dict[str, bool] = {}
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            last.update({alias.asname or alias.name: True for alias in node.names})
        elif isinstance(node, _Definition):
            last[node.name] = not _is_stub(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            last.update({target.id: True for target in targets if isinstance(target, ast.Name)})
    return {name for name, finished in last.items() if finished}


def stubs(prefix: str) -> dict[str, set[str] | None]:
    """The names that a prefix leaves to the answer: a class with the names of its methods, a
    function with None."""
    tree = _parsed(_completed(prefix))
    body = tree.body if tree else []
    found: dict[str, set[str] | None] = {}
    for node in body:
        if isinstance(node, _Definition) and _is_stub(node):
            methods = {one.name for one in node.body if isinstance(one, _Definition)}
            found[node.name] = methods if isinstance(node, ast.ClassDef) else None
    return found


def support(prefix: str) -> str:
    """The definitions that a prefix has in full, e.g. HumanEval/32's `poly`: the tests use these,
    even where the answer redefines them."""
    tree = _parsed(_completed(prefix))
    if tree is None:
        return ""
    tree.body = [node for node in tree.body if not _is_stub(node)]
    return ast.unparse(tree)


def divide(tests: ast.Module, name: str) -> int:
    """Put each case of the tests under `with name(number):`, in place, and count them.

    A case is a statement with an assertion in it, such as one `assert` or a loop around one, in the
    module or in one of its functions (HumanEval's `check`). Definitions and assertions of a
    constant do not count.
    """
    count = 0
    functions = [node.body for node in tests.body if isinstance(node, ast.FunctionDef)]
    for body in [tests.body, *functions]:
        for place, node in enumerate(body):
            tests_of = [one.test for one in ast.walk(node) if isinstance(one, ast.Assert)]
            asserts = any(not isinstance(one, ast.Constant) for one in tests_of)
            if asserts and not isinstance(node, _Definition):
                call = ast.Call(ast.Name(name, ast.Load()), [ast.Constant(count)], [])
                body[place] = ast.copy_location(ast.With([ast.withitem(call)], [node]), node)
                count += 1
    ast.fix_missing_locations(tests)
    return count


def watch(tests: ast.Module, name: str) -> None:
    """Report each assertion of the tests: `assert name(test)`. Assertions that the tests expect to
    fail stay as they are."""
    expected: set[ast.AST] = set()
    for node in ast.walk(tests):
        if isinstance(node, ast.Try) and any(map(_expects, node.handlers)):
            expected |= {inner for line in node.body for inner in ast.walk(line)}
    for node in ast.walk(tests):
        if isinstance(node, ast.Assert) and node not in expected:
            asked = ast.Call(ast.Name(name, ast.Load()), [node.test], [])
            node.test = ast.copy_location(asked, node.test)
    ast.fix_missing_locations(tests)


def _expects(handler: ast.ExceptHandler) -> bool:
    """Whether a handler is for failed assertions: it names them, or it catches everything and makes
    an assertion of its own."""
    names = {"BaseException"}
    if handler.type:
        names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    instead = any(isinstance(node, ast.Assert) for line in handler.body for node in ast.walk(line))
    return "AssertionError" in names or (
        instead and not names.isdisjoint({"Exception", "BaseException"})
    )
