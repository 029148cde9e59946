"""Verifies a completion: is it a well-formed trace of the prompt's format, and is its answer the
prompt's?

Rewards, preference pairs, the teachers' rejection sampling and evaluations all call this one
function, so that we measure what we train. A malformed completion has no answer: an answer outside
its tag, a repeated tag or text around the tags does not verify. The prompt's `check` names the file
in `tasks/checks/` that judges the answer, or is `none`: free text, which is never exact and belongs
in no denominator.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from infra.cores import usable_cores
from schemas.examples import Prompt, parse_trace
from tasks.contract.check import CHECKS, Outcome, check_of
from tasks.contract.plugins import naming

T = TypeVar("T")


@dataclass(frozen=True)
class Verdict:
    """The result of a verification.

    Attributes:
        format: a well-formed trace.
        exact: its answer agrees.
        answer: as written; None: malformed.
        detail: why an answer does not agree: its value, the violated constraint, the failing
            assertion.
    """

    format: bool
    exact: bool
    answer: str | None
    detail: str = ""


def verify(prompt: Prompt, completion: str) -> Verdict:
    """Verify a completion, without the terminator, against its prompt.

    Raises:
        InputError: the prompt's check cannot work with the prompt (a numeric reference that is no
            number, an unknown constraint), or not on this machine (tests without a sandbox).
    """
    trace = parse_trace(completion, prompt.channels)
    if trace is None:
        return Verdict(format=False, exact=False, answer=None, detail="no well-formed trace")
    if prompt.check == "none":
        return Verdict(format=True, exact=False, answer=trace.answer, detail="not verifiable")
    outcome = agrees(prompt, trace.answer)
    return Verdict(format=True, exact=outcome.ok, answer=trace.answer, detail=outcome.detail)


def agrees(prompt: Prompt, answer: str) -> Outcome:
    """Whether an answer, not empty and without tags, agrees with a prompt whose check is not
    `none`. Raises InputError as `verify`, and what a check with a fault in it raises."""
    where = f"check {prompt.check!r}, answer {answer[:80]!r} to prompt {prompt.id}"
    with naming(where):
        outcome = CHECKS[prompt.check].agrees(prompt, answer)
        if not isinstance(outcome, Outcome):
            raise TypeError(f"returned {outcome!r} instead of an Outcome")
        return outcome


def verify_many(prompts: Sequence[Prompt], completions: Sequence[str]) -> list[Verdict]:
    """`verify` for each completion and its prompt, in order; slow checks use all cores."""
    pairs = list(zip(prompts, completions, strict=True))
    return for_each(prompts, lambda index: verify(*pairs[index]))


def for_each(prompts: Sequence[Prompt], judge: Callable[[int], T]) -> list[T]:
    """`judge(index)`, which verifies an answer, for each prompt, in order; slow checks use all
    cores.

    The threads only wait: slow checks work in processes of their own (`tasks.checks.math`,
    `tasks.sandbox`), started by command line and never forked, which a process that runs JAX must
    not be.
    """
    checks = [check_of(prompt.check) for prompt in prompts]
    slow = [index for index, check in enumerate(checks) if check and check.slow]
    if not slow:
        return [judge(index) for index in range(len(prompts))]
    with ThreadPoolExecutor(usable_cores()) as threads:
        found = dict(zip(slow, threads.map(judge, slow), strict=True))
    return [found[index] if index in found else judge(index) for index in range(len(prompts))]


def check_versions(names: Iterable[str] | None = None) -> dict[str, str | int]:
    """`{"checks.exact": 1}` for each named check, or for all: part of the key of a stage whose
    bytes depend on verification."""
    return CHECKS.versions(CHECKS.names() if names is None else sorted(set(names) - {"none"}))
