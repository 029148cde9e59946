"""What a check is: one `CHECK = Check(...)` in a file of `tasks/checks/`. Its name is the file's,
and `Prompt.check`.

A check compares an answer with what its prompt knows; `tasks.verification.verify` is the one that
asks it. The check `none` is no file: free text, which nothing can verify.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from schemas.base import InputError, nearest
from schemas.examples import Prompt
from tasks.contract.plugins import Family, Plugin


@dataclass(frozen=True)
class Outcome:
    """Whether an answer agrees, and for one that does not what was found: text for a person."""

    ok: bool
    detail: str = ""


def unusable(prompt: Prompt, problem: str) -> InputError:
    """What a check raises for a prompt that it cannot work with."""
    return InputError(
        f"prompt {prompt.id} (source {prompt.source!r}): its check is {prompt.check!r} but"
        f" {problem}."
    )


@dataclass(frozen=True, kw_only=True)
class Check(Plugin):
    """A check.

    Attributes:
        agrees: whether an answer agrees: what stands in the answer tag, not empty. It may be asked
            from threads. A prompt that it cannot work with (a reference that is no number, an
            unknown constraint) is an InputError that names it.
        slow: whether a judgement takes milliseconds or more; then all cores are used.
        by_reference: whether it compares with `Prompt.answer`. Then data must have one, an example
            keeps it as its answer, and samples can vote; otherwise the sample's own text is the
            example's answer.
        needs, takes: what else of a row it must have and may have: `tests`, `constraints`,
            `choices`, `tolerance`, `code_prefix`.
        reads: whether a text is an answer in its form, and `form` what that is called: "number".
            None: any text is one.
        at_once: whether a row is looked at when it is read, so that data depend on its version.
            Others are too slow.
        vote: given an answer and the texts to choose from, a form in which equal answers are equal;
            None: as it is written.
    """

    agrees: Callable[[Prompt, str], Outcome]
    slow: bool = False
    by_reference: bool = True
    needs: Collection[str] = ()
    takes: Collection[str] = ()
    reads: Callable[[str], bool] | None = None
    form: str = "text"
    at_once: bool = False
    vote: Callable[[str, tuple[str, ...]], str | None] = field(default=lambda answer, choices: None)


CHECKS: Family[Check] = Family("tasks.checks", Check)

FREE = "none"


def check_of(name: str) -> Check | None:
    """The check of that name; None: free text. Raises InputError with the valid names."""
    if name != FREE and name not in CHECKS.names():
        raise InputError(f"unknown check {name!r}.{nearest(name, (*CHECKS.names(), FREE))}")
    return None if name == FREE else CHECKS[name]
