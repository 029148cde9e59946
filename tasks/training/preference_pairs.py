"""Preference pairs of sampled responses, a teacher's or a policy's: the chosen one is verified, the
rejected one wrong, malformed or truncated.

The policy samples K responses to every prompt. Distinct verified responses and distinct rejected
ones are paired in the order of sampling, so a frequent mistake comes first. Where no sample
verifies but the teacher's trace does, that can be the chosen response (`chosen_from = "teacher"`),
which keeps the hardest prompts in training. A prompt whose answer cannot be verified gives format
pairs: a well-formed sample is chosen, and only malformed and truncated ones are rejected. Each pair
names its samples, and the check that the rejected one failed with its finding.

Against verbosity, if a recipe asks for it (`rejected_because` has "long"): the shortest verified
response is chosen, and verified ones that are longer by a factor are rejected as `long`. This is
never done where the answer cannot be verified, since there a shorter response may be worse.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from schemas.base import StageFailed
from schemas.examples import Example, PreferencePair, Prompt, Rejection
from tasks.verification.correct import are_correct, is_correct, is_verifiable
from tasks.verification.verify import Verdict, verify_many

if TYPE_CHECKING:
    from tasks.sampling.sampler import Completion


@dataclass(frozen=True)
class CheckedSample:
    """A distinct response to a prompt: its first sample, the reason of its rejection, and the
    finding.

    `rejected_because` is None if it is verified, or well-formed where nothing can be verified.
    """

    sample: int
    text: str
    rejected_because: Rejection | None
    detail: str


def check_samples(
    prompts: Sequence[Prompt], samples: "Sequence[Sequence[Completion]]"
) -> list[list[CheckedSample]]:
    """The distinct responses to each prompt in the order of sampling, all verified in one batch.

    A response without its terminator is truncated, even if it parses.
    """
    firsts = [
        {sample.text: index for index, sample in reversed(list(enumerate(group)))}
        for group in samples
    ]
    distinct = [
        (prompt, text, index, group[index].terminated)
        for prompt, group, first in zip(prompts, samples, firsts, strict=True)
        for text, index in sorted(first.items(), key=lambda item: item[1])
    ]
    ended = [(prompt, text) for prompt, text, _, terminated in distinct if terminated]
    verdicts = iter(verify_many([prompt for prompt, _ in ended], [text for _, text in ended]))
    checked = (
        CheckedSample(index, text, *rejection_of(prompt, next(verdicts) if terminated else None))
        for prompt, text, index, terminated in distinct
    )
    return [list(islice(checked, len(first))) for first in firsts]


def rejection_of(prompt: Prompt, verdict: Verdict | None) -> tuple[Rejection | None, str]:
    """Why a response is rejected, and the finding; (None, "") where it is not. Without a verdict it
    is truncated."""
    if verdict is None:
        return "truncated", "no terminator"
    if not verdict.format:
        return "malformed", verdict.detail
    if is_correct(prompt, verdict) is not False:
        return None, ""
    if prompt.grounding in ("unanswerable", "out_of_domain"):
        return "wrong", f"{verdict.answer!r} is given where the context holds no answer"
    return "wrong", verdict.detail


def make_pairs(
    prompt: Prompt,
    chosen: Sequence[tuple[str, int | None]],
    rejected: Sequence[CheckedSample],
    *,
    most: int,
    chosen_from: Literal["policy", "teacher"],
) -> list[PreferencePair]:
    """Pair the first `most` chosen responses, each with its sample's index, with the first rejected
    ones."""
    pairs = list(zip(chosen, rejected, strict=False))[:most]
    return [
        PreferencePair(
            id=prompt.id,
            prompt=prompt.prompt,
            domain=prompt.domain,
            chosen=text,
            rejected=bad.text,
            chosen_from=chosen_from,
            rejected_because=bad.rejected_because,
            failed_check=prompt.check if bad.rejected_because == "wrong" else None,
            detail=bad.detail,
            chosen_sample=sample,
            rejected_sample=bad.sample,
            channels=prompt.channels,
        )
        for (text, sample), bad in pairs
        if bad.rejected_because is not None
    ]


def pairs_of_prompt(
    example: Example,
    checked: Sequence[CheckedSample],
    most: int,
    rejected_because: Sequence[Rejection] | None,
    teacher_when_none_verified: bool,
    long_factor: float,
) -> list[PreferencePair]:
    """Choose at most `most` pairs of one prompt; none when no sample is rejected for these reasons,
    or when none verifies and the teacher's trace may not be chosen."""
    if "long" in (rejected_because or ()) and is_verifiable(example):
        checked = _long_rejected(checked, long_factor, most)
    verified = [(one.text, one.sample) for one in checked if one.rejected_because is None]
    rejected = [one for one in checked if one.rejected_because is not None]
    if rejected_because is not None:
        rank = {reason: place for place, reason in enumerate(rejected_because)}
        wanted = [
            (rank[one.rejected_because], one) for one in rejected if one.rejected_because in rank
        ]
        rejected = [one for _, one in sorted(wanted, key=lambda item: item[0])]
    if verified or not teacher_when_none_verified:
        return make_pairs(example, verified, rejected, most=most, chosen_from="policy")
    choices = [(example.response(), None)] * len(rejected)
    return make_pairs(example, choices, rejected, most=most, chosen_from="teacher")


def _long_rejected(
    checked: Sequence[CheckedSample], factor: float, most: int
) -> list[CheckedSample]:
    """The responses, with the `most` shortest verified ones first, and those that have `factor`
    times the characters of each of these rejected."""
    right = sorted(
        (one for one in checked if one.rejected_because is None), key=lambda one: len(one.text)
    )
    short = [one for one in right[:most] if len(one.text) < factor * len(right[0].text)]
    longest = max((len(one.text) for one in short), default=0)
    long = [one for one in right if short and len(one.text) >= factor * longest]
    detail = "{} characters, where {} are enough"
    return [
        *short,
        *(one for one in checked if one.rejected_because is not None),
        *(
            replace(one, rejected_because="long", detail=detail.format(len(one.text), longest))
            for one in long
        ),
    ]


def mine_pairs(
    examples: Sequence[Example],
    samples: "Sequence[Sequence[Completion]]",
    *,
    pairs_per_prompt: int,
    rejected_because: Sequence[Rejection] | None,
    teacher_when_none_verified: bool,
    long_factor: float = 1.5,
    fits: Callable[[PreferencePair], bool],
) -> tuple[list[PreferencePair], dict[str, int]]:
    """Mine the pairs of all prompts.

    Args:
        examples: N prompts with the teacher's trace.
        samples: the K responses sampled for each of them.
        rejected_because: use only responses rejected for these reasons, those of the first reason
            first; None: all, in the order of sampling.
        long_factor: a right response is `long` if it has this many times the characters of another
            right one.
        fits: whether a pair fits the fixed shapes of training.

    Returns:
        the pairs in the order of `examples`, and the number of prompts by outcome: `paired`, or why
            there is no pair: `all_verified` (nothing to reject), `not_verifiable` (the same where
            the answer cannot be checked: all are well-formed), `other_reasons` (all rejections have
            other reasons), `none_verified` (nothing to choose), `too_long`.
    """
    pairs: list[PreferencePair] = []
    outcomes: Counter[str] = Counter(
        paired=0, not_verifiable=0, all_verified=0, other_reasons=0, none_verified=0, too_long=0
    )
    found = list(zip(examples, check_samples(examples, samples), strict=True))
    taught = set[str]()
    if teacher_when_none_verified:
        lacking = [one for one, checked in found if all(each.rejected_because for each in checked)]
        right = are_correct(lacking, [one.response() for one in lacking])
        told = zip(lacking, right, strict=True)
        taught = {one.id for one, good in told if good or not is_verifiable(one)}
    for example, checked in found:
        how = pairs_per_prompt, rejected_because, example.id in taught, long_factor
        mined = pairs_of_prompt(example, checked, *how)
        fitting = [pair for pair in mined if fits(pair)]
        pairs += fitting
        if mined:
            outcomes["paired" if fitting else "too_long"] += 1
        else:
            outcomes[_without_pairs(example, checked, rejected_because)] += 1
    return pairs, dict(outcomes)


def read_pairs(path: Path) -> Iterator[PreferencePair]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield PreferencePair.model_validate_json(line)


def _without_pairs(
    example: Example, checked: Sequence[CheckedSample], rejected_because: Sequence[Rejection] | None
) -> str:
    """The outcome (see `mine_pairs`) of a prompt without pairs."""
    reasons = {response.rejected_because for response in checked} - {None}
    if not reasons:
        return "all_verified" if is_verifiable(example) else "not_verifiable"
    wanted = rejected_because is None or reasons & set(rejected_because)
    return "none_verified" if wanted else "other_reasons"


_FIXES = {
    "all_verified": (
        "every sample was right: take harder prompts, raise temperature or samples_per_prompt, or"
        " leave this stage out"
    ),
    "none_verified": (
        "no sample was right: train longer before this stage, raise samples_per_prompt, or set"
        " teacher_when_none_verified, for teacher's traces that verify"
    ),
    "too_long": "their responses do not fit response_length: raise it",
    "not_verifiable": (
        'their answers cannot be checked (check = "none") and all samples were well-formed: give'
        " this stage prompts with verifiable answers"
    ),
    "other_reasons": (
        "their samples were rejected for other reasons than rejected_because: add those, or leave"
        " this stage out"
    ),
}


def require_pairs(
    pairs: Sequence[PreferencePair], outcomes: dict[str, int], min_pairs: int, of_data: int = 0
) -> None:
    """Raise StageFailed when there are fewer than `min_pairs` pairs, `of_data` of which are not of
    the prompts; say why most prompts gave none and what to change."""
    if len(pairs) >= min_pairs:
        return
    prompts = sum(outcomes.values())
    reason = max(_FIXES, key=lambda name: outcomes[name])
    because = (
        f"{outcomes[reason]} prompts gave none because {_FIXES[reason]}"
        if outcomes[reason]
        else "raise prompts or pairs_per_prompt"
    )
    raise StageFailed(
        f"{prompts} prompts gave {len(pairs) - of_data} preference pairs"
        f"{f' and the data {of_data}' if of_data else ''}, fewer than min_pairs = {min_pairs} ("
        f"{', '.join(f'{name}: {count}' for name, count in outcomes.items())}); {because}."
    )
