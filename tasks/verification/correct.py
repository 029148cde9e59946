"""Whether a completion is correct: its answer verifies or, where the context has no answer, it is
the grounded refusal."""

from collections.abc import Sequence

from schemas.examples import Prompt
from tasks.evaluation.grounding import abstains
from tasks.sandbox.bubblewrap import SandboxFailed
from tasks.verification.verify import Verdict, for_each, verify


def is_verifiable(prompt: Prompt) -> bool:
    """Whether an answer to `prompt` can be called right or wrong at all."""
    return prompt.check != "none" or prompt.grounding in ("unanswerable", "out_of_domain")


def are_correct(prompts: Sequence[Prompt], completions: Sequence[str]) -> list[bool | None]:
    """Whether each completion is a well-formed trace with a correct answer; None where nothing is
    known: the prompt's answer cannot be verified, or the sandbox for its code failed."""
    pairs = list(zip(prompts, completions, strict=True))

    def judge(index: int) -> bool | None:
        try:
            return is_correct(pairs[index][0], verify(*pairs[index]))
        except SandboxFailed:
            return None

    return for_each(prompts, judge)


def is_correct(prompt: Prompt, verdict: Verdict) -> bool | None:
    """Whether a verdict makes an answer to `prompt` correct; None: unknown."""
    if not is_verifiable(prompt):
        return None
    if prompt.grounding in ("unanswerable", "out_of_domain"):
        return verdict.answer is not None and abstains(verdict.answer)
    return verdict.exact
