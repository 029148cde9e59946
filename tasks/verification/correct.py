"""Whether a completion is correct: its answer verifies or, where the context has no answer, it is
the grounded refusal."""

from collections.abc import Sequence

from schemas.examples import Prompt
from tasks.evaluation.grounding import abstains
from tasks.verification.verify import Verdict, verify_many


def is_verifiable(prompt: Prompt) -> bool:
    """Whether an answer to `prompt` can be called right or wrong at all."""
    return prompt.check != "none" or prompt.grounding in ("unanswerable", "out_of_domain")


def are_correct(prompts: Sequence[Prompt], completions: Sequence[str]) -> list[bool | None]:
    """Whether each completion is a well-formed trace with a correct answer; None where the prompt's
    answer cannot be verified."""
    verdicts = verify_many(prompts, completions)
    return [is_correct(prompt, verdict) for prompt, verdict in zip(prompts, verdicts, strict=True)]


def is_correct(prompt: Prompt, verdict: Verdict) -> bool | None:
    """Whether a verdict makes an answer to `prompt` correct; None: unknown."""
    if not is_verifiable(prompt):
        return None
    if prompt.grounding in ("unanswerable", "out_of_domain"):
        return verdict.answer is not None and abstains(verdict.answer)
    return verdict.exact
