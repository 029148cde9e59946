"""Preference pairs mined from a policy's own samples: chosen is verified, rejected is wrong, malformed or cut off.

For every prompt the policy samples K responses. Distinct verified responses and distinct rejected ones are paired in the order in which
they were sampled, so a frequent mistake is met early and pushed down first. Where no sample verifies, the teacher's trace can stand in as
the chosen response (`chosen_from = "teacher"`), which keeps the hardest prompts in training.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from schemas.base import StageFailed
from schemas.examples import Example, PreferencePair
from tasks.rewards.exact_answer import is_correct, is_verifiable
from tasks.verify import verify

Rejection = Literal["wrong", "malformed", "truncated"]


class Sampled(Protocol):
    """What is needed of a sampled response (`tasks.sampling.Completion`): its text, and whether it ended with the terminator."""

    @property
    def text(self) -> str: ...

    @property
    def terminated(self) -> bool: ...


def rejection(example: Example, sample: Sampled) -> Rejection | None:
    """Why a sample cannot be chosen, or None: it is verified. Without its terminator a response is truncated, even one that parses."""
    if not sample.terminated:
        return "truncated"
    if is_correct(example, sample.text):
        return None
    return "wrong" if verify(example, sample.text).format else "malformed"


def pairs_of_prompt(example: Example, samples: Sequence[Sampled], *, most: int, teacher_when_none_verified: bool) -> list[PreferencePair]:
    """At most `most` pairs for one prompt; none when every sample verifies, or none does and the teacher may not stand in."""
    rejections = {sample.text: rejection(example, sample) for sample in samples}
    chosen = [text for text, reason in rejections.items() if reason is None]
    rejected = [(text, reason) for text, reason in rejections.items() if reason is not None]
    writer: Literal["policy", "teacher"] = "policy"
    if not chosen and teacher_when_none_verified:
        chosen, writer = [example.response()] * len(rejected), "teacher"
    return [
        PreferencePair(
            id=example.id,
            prompt=example.prompt,
            domain=example.domain,
            chosen=good,
            rejected=bad,
            chosen_from=writer,
            rejected_because=reason,
        )
        for good, (bad, reason) in list(zip(chosen, rejected, strict=False))[:most]
    ]


def mine_pairs(
    examples: Sequence[Example],
    samples: Sequence[Sequence[Sampled]],
    *,
    pairs_per_prompt: int,
    teacher_when_none_verified: bool,
    fits: Callable[[PreferencePair], bool],
) -> tuple[list[PreferencePair], dict[str, int]]:
    """Mine the pairs of all prompts.

    Args:
        examples: N prompts with the teacher's trace.
        samples: the K responses sampled for each of them.
        fits: whether a pair fits the fixed shapes it will be trained in.

    Returns:
        the pairs in the order of `examples`, and the number of prompts by outcome: `paired`, or why there is no pair: `not_verifiable`
        (the prompt has no checkable answer), `all_verified` (nothing to reject), `none_verified` (nothing to choose), `too_long`.
    """
    pairs: list[PreferencePair] = []
    outcomes: Counter[str] = Counter(paired=0, not_verifiable=0, all_verified=0, none_verified=0, too_long=0)
    for example, sampled in zip(examples, samples, strict=True):
        if not is_verifiable(example):
            outcomes["not_verifiable"] += 1
            continue
        mined = pairs_of_prompt(example, sampled, most=pairs_per_prompt, teacher_when_none_verified=teacher_when_none_verified)
        fitting = [pair for pair in mined if fits(pair)]
        pairs += fitting
        if mined:
            outcomes["paired" if fitting else "too_long"] += 1
        else:
            outcomes["all_verified" if rejection(example, sampled[0]) is None else "none_verified"] += 1
    return pairs, dict(outcomes)


_FIXES = {
    "all_verified": "every sample was right: take harder prompts, raise temperature or samples_per_prompt, or leave this stage out",
    "none_verified": "no sample was right: train longer before this stage, raise samples_per_prompt, or set teacher_when_none_verified",
    "too_long": "their responses do not fit response_length: raise it",
    "not_verifiable": 'their answers cannot be checked (check = "none"): give this stage prompts with verifiable answers',
}


def require_pairs(pairs: Sequence[PreferencePair], outcomes: dict[str, int], min_pairs: int) -> None:
    """Raises StageFailed when there are fewer than `min_pairs` pairs, saying why most prompts gave none and what to change."""
    if len(pairs) >= min_pairs:
        return
    prompts = sum(outcomes.values())
    reason = max(_FIXES, key=lambda name: outcomes[name])
    because = f"{outcomes[reason]} prompts gave none because {_FIXES[reason]}" if outcomes[reason] else "raise prompts or pairs_per_prompt"
    raise StageFailed(
        f"{prompts} prompts gave {len(pairs)} preference pairs, fewer than min_pairs = {min_pairs} "
        f"({', '.join(f'{name}: {count}' for name, count in outcomes.items())}); {because}."
    )
