"""Unit tests for code: the code in the answer, behind `Prompt.code_prefix` where it is no whole
program, must pass `Prompt.tests`.

The code is the last fenced block of the answer that fits, or all of the answer. The tests are
Python that raises when the code is wrong: assertions, functions called `test...` without
parameters, HumanEval's `check(candidate)` with `check(<name>)` after it (Chen et al. 2021,
2107.03374). They see what the code defines by its names, and must use it: tests that call nothing
pass nothing.

Code and tests run in two bubblewrap sandboxes (`tasks.sandbox`); only plain data that answers a
call of the tests passes between them, so code cannot pass by a trick. The price: tests can neither
read the code's globals and output nor compare objects of its classes. An answer that needs that is
not verifiable and does not pass (docs/security.md).
"""

from schemas.examples import Prompt
from tasks.contract.check import Check, Outcome
from tasks.sandbox.examination import examine_answer


def agrees(prompt: Prompt, answer: str) -> Outcome:
    """Whether the answer's code passes. Raises InputError: the prompt has no tests, or there is no
    sandbox on this machine."""
    found = examine_answer(prompt, answer)
    return Outcome(found.ok, found.detail)


CHECK = Check(
    version=5, agrees=agrees, slow=True, by_reference=False, needs={"tests"}, takes={"code_prefix"}
)
