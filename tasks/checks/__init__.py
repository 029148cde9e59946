"""Checks: how an answer is compared with what its prompt knows. A check is a file here; its name is the file's name and `Prompt.check`.

    VERSION: int                     raise it when the same answer would be judged differently: it enters stage keys
    SLOW = True                      where a judgement takes milliseconds or more: `tasks.verify.verify_many` then uses all cores
    def agrees(prompt: Prompt, answer: str) -> Outcome

`answer` is what stands in the answer tag, not empty. A prompt that a check cannot work with (a reference that is no number, an unknown
constraint) is an InputError that names the prompt. `agrees` may be called from threads. `tasks.verify` is the one that calls.
"""

from dataclasses import dataclass

from schemas.base import InputError
from schemas.examples import Prompt


@dataclass(frozen=True)
class Outcome:
    """Whether an answer agrees, and for one that does not what was found: text for a person."""

    ok: bool
    detail: str = ""


def unusable(prompt: Prompt, problem: str) -> InputError:
    """What a check raises for a prompt that it cannot work with."""
    return InputError(f"prompt {prompt.id} (source {prompt.source!r}): its check is {prompt.check!r} but {problem}.")
