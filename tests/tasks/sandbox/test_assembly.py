"""The program that an answer means: how models write code, around it, and behind a prefix."""

from typing import Any

import pytest

from tasks.sandbox.assembly import program

CODE = "def f(x):\n    return x * x"
INDENTED = CODE.replace("\n", "\n    ")
ANSWERS = {
    "alone": CODE,
    "as a lambda": "f = lambda x: x * x",
    "in a fence": f"Sure:\n```python\n{CODE}\n```\nThat is it.",
    "in a fence that is not closed": f"```python\n{CODE}",
    "in a fence with words behind its end": f"```python\n{CODE}\n``` This works.\nDone.",
    "in a fence of a list": f"1. The code:\n    ```python\n    {INDENTED}\n    ```\n2. Done.",
    "indented": f"    {INDENTED}",
    "before an example": f"```python\n{CODE}\n```\nUsage:\n```python\nprint(f(3))\n```",
    "before what it prints": f"```python\n{CODE}\n```\nOutput:\n```\n9\n```",
    "before its signature": f"```python\n{CODE}\n```\n```python\ndef f(x):\n    ...\n```",
    "after a first try": f"```python\ndef f(x):\n    return x\n```\nFixed:\n```python\n{CODE}\n```",
    "between an import and its use": (
        f"```python\nimport operator\n```\nand\n```python\n{CODE}\n```\nUse:\n```python\nf(1)\n```"
    ),
    "after its helper": (
        "```python\ndef g(x):\n    return x\n```\nThen:\n"
        "```python\ndef f(x):\n    return g(x) * x\n```"
    ),
    "after a command": f"```bash\npip install numpy\n```\n```python\n{CODE}\n```",
    "around an example in a fence": (
        "```python\ndef f(x):\n    '''Square.\n\n    ```python\n    f(3)\n    ```\n    '''\n"
        "    return x * x\n```"
    ),
    "in lines of Windows": f"```python\n{CODE}\n```".replace("\n", "\r\n"),
}
PREFIX = 'def f(x: int) -> int:\n    """Square."""\n'
BODIES = (
    "    return x * x", "return x * x", "```python\n    return x * x\n```",
    f"{PREFIX}    return x * x", CODE, f"import cmath\n{CODE}",
    f"'''Doc.'''\nfrom __future__ import annotations\n{CODE}", "y = x\nreturn y * x",
    *(f"if x:\n{step * 2}return x * x\n{step}return 0" for step in ("  ", "\t", "        ")),
    "y = x\n    return y * x", f"```python\n    {INDENTED}\n```",
)  # fmt: skip


def square_of_three(answer: str, prefix: str) -> Any:
    found: dict[str, Any] = {}
    exec(program(answer, prefix, ["f"]), found)
    return found["f"](3)


@pytest.mark.parametrize("how", ANSWERS)
def test_code_is_found_in_what_models_write_around_it(how: str) -> None:
    assert square_of_three(ANSWERS[how], "") == 9


def test_a_body_goes_on_behind_its_prefix_however_it_is_indented() -> None:
    assert [square_of_three(body, PREFIX) for body in BODIES] == [9] * len(BODIES)


def test_a_text_in_the_code_keeps_its_empty_lines() -> None:
    code = 'def f(x):\n    return """a\n  \n\nb"""'
    for written in (code, "    " + code.replace("\n", "\n    ")):
        assert square_of_three(written, "") == "a\n  \n\nb"


def test_what_is_no_program_is_returned_as_it_is() -> None:
    assert program("I would square it.", "", ["f"]).strip() == "I would square it."
