"""Runs a prompt's tests on an answer's code."""

from schemas.examples import Prompt
from tasks.contract.check import unusable
from tasks.sandbox.examination import Examined, examine


def examined(prompt: Prompt, answer: str, *, every: bool) -> Examined:
    """The result of the prompt's tests on the answer's code; of `every` case, or up to the first
    that fails.

    Raises:
        InputError: the prompt has no tests, or there is no sandbox on this machine.
    """
    if not prompt.tests:
        raise unusable(prompt, "it has no tests")
    return examine(answer, prompt.tests, prefix=prompt.code_prefix, every=every)
