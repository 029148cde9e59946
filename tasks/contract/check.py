"""The contract of a check: one `CHECK = Check(...)` in a file of `tasks/checks/`. Its name is the
file's, and `Prompt.check`.

A check compares an answer with what its prompt knows; `tasks.verification.verify` calls it. The
check `none` has no file: it is free text, which cannot be verified.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from schemas.base import InputError, nearest
from schemas.examples import Prompt
from tasks.contract.plugins import Family, Plugin


@dataclass(frozen=True)
class Outcome:
    """Whether an answer agrees, and if it does not, the finding as text for a person."""

    ok: bool
    detail: str = ""


def unusable(prompt: Prompt, problem: str) -> InputError:
    """The error of a check that cannot work with a prompt."""
    return InputError(
        f"prompt {prompt.id} (source {prompt.source!r}): its check is {prompt.check!r} but"
        f" {problem}."
    )


@dataclass(frozen=True, kw_only=True)
class Check(Plugin):
    """A check.

    Attributes:
        agrees: whether an answer, the non-empty content of the answer tag, agrees. It may be called
            from threads. For a prompt that it cannot work with (a reference that is no number, an
            unknown constraint) it raises InputError with the prompt's id.
        slow: whether a call takes milliseconds or more; then all cores are used.
        by_reference: whether it compares with `Prompt.answer`. Then data must have one, an example
            has it as its answer, and samples can vote; otherwise an example's answer is the
            sample's own text.
        needs, takes: the other fields that a row must have and may have: `tests`, `constraints`,
            `choices`, `tolerance`, `code_prefix`.
        reads: whether a text is an answer in its form, and `form` what that is called: "number".
            None: any text is.
        at_once: whether rows are checked when they are read, so that data depend on its version;
            others are too slow.
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
    """The check of that name; None for free text. Raises InputError with the valid names."""
    if name != FREE and name not in CHECKS.names():
        raise InputError(f"unknown check {name!r}.{nearest(name, (*CHECKS.names(), FREE))}")
    return None if name == FREE else CHECKS[name]
