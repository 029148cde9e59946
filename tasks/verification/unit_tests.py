"""What a prompt's tests say of an answer's code."""

from schemas.examples import Prompt
from tasks.contract.check import unusable
from tasks.sandbox.examination import Examined, examine


def examined(prompt: Prompt, answer: str, *, every: bool) -> Examined:
    """What the prompt's tests say of the answer's code; of `every` case, or up to the first that
    fails.

    Raises:
        InputError: the prompt has no tests, or there is no sandbox on this machine.
    """
    if not prompt.tests:
        raise unusable(prompt, "it has no tests")
    return examine(answer, prompt.tests, prefix=prompt.code_prefix, every=every)
