"""docs/troubleshooting.md and the table of infra/README.md quote what the code says."""

import ast
import re
from functools import cache

import pytest

from infra.process import ROOT

ROOMS = ("schemas", "infra", "tasks", "flows")
VALUE = "…"
MESSAGE = re.compile(r"`((?:[^`]|`lyceum \w+`)+)`(?:, |$)")
"""Of a table's first column; a message may itself quote a command."""


def text(node: ast.AST) -> str | None:
    """The text of a literal, with … for each value that is put in; None for other nodes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text(part) or VALUE for part in node.values)
    return None


@cache
def said() -> frozenset[str]:
    """Every literal of the source."""
    files = [file for room in ROOMS for file in sorted((ROOT / room).rglob("*.py"))]
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text("utf-8"))))
    return frozenset(found for node in nodes if (found := text(node)))


def stands_in_the_code(message: str) -> bool:
    """Whether a literal has the pieces of a message, in order."""
    pieces = [piece for piece in message.split(VALUE) if piece.strip(" .")]
    found = re.compile(".*".join(map(re.escape, pieces)), re.S)
    return bool(pieces) and any(pieces[0] in one and found.search(one) for one in said())


def quoted() -> list[str]:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    page = page.split("## Messages of other programs")[0]
    cells = re.findall(r"^\| (`.*?) \|", page, re.M)
    infra = (ROOT / "infra" / "README.md").read_text(encoding="utf-8")
    infra = infra.split("## When something is wrong")[1].split("\n## ")[0]
    cells += [cell for cell in re.findall(r"^\| (`.*?) \|", infra, re.M) if "Terraform" not in cell]
    return [message for cell in cells for message in MESSAGE.findall(cell.split(" from ")[0])]


@pytest.mark.parametrize("message", quoted())
def test_a_message_that_is_quoted_stands_in_the_code(message: str) -> None:
    assert stands_in_the_code(message)


def test_a_message_that_nobody_says_is_found_out() -> None:
    assert not stands_in_the_code("the model is … tired")
    assert not stands_in_the_code("…")


def test_most_of_what_the_page_is_for_is_quoted() -> None:
    assert len(quoted()) > 80
