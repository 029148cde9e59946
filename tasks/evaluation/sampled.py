"""Metrics of sampled answers: pass@k, majority@k, and the noise of the seed.

pass@k       the chance that one of k answers is right: 1 - C(n-c, k) / C(n, k) for c right ones of
             a prompt's n samples, which is unbiased (Chen et al. 2021, 2107.03374). Over all
             prompts that can be verified.
majority@k   the chance that the most frequent answer of k samples is right (self-consistency,
             Wang et al. 2023, 2203.11171), over the disjoint groups of k samples. Answers are
             equal if they are after normalisation (`ballot`); a completion that is no trace has no
             vote; with a tie the first answer wins. Over prompts whose answer can be voted on:
             code and free text cannot.
noise        `tasks.statistics.noise_floor.noise_floor` of each rate over the samples of all
             prompts: one model, as many runs as there are samples.

k is 1, 2, 4, ... up to the number of samples that every prompt has. Intervals are bootstraps over
prompts.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from math import comb
from typing import Any

from schemas.evaluation import EvalItem
from schemas.examples import Format, parse_trace
from tasks.contract.check import CHECKS
from tasks.statistics.intervals import bootstrap_share
from tasks.statistics.noise_floor import noise_floor
from tasks.verification.choices import choices_of
from tasks.verification.text import normalise_answer, unstyled


def sampled_metrics(samples: Sequence[EvalItem], *, seed: int = 0) -> dict[str, Any]:
    """`pass_at_k` and `majority_at_k`: {"1": {"rate", "low", "high", "n"}, "2": ...}; empty without
    prompts that can be verified.

    Args:
        samples: in any order; an evaluation may have drawn more of its prompts than another one.
        seed: of the bootstrap.
    """
    groups = _by_prompt([item for item in samples if item.check != "none"])
    if not groups:
        return {}
    voted = [items for items in groups if CHECKS[items[0].check].by_reference]
    ks = [2**power for power in range(min(map(len, groups)).bit_length())]
    return {
        name: {str(k): _mean([value(items, k) for items in chosen], seed) for k in ks}
        for name, value, chosen in (
            ("pass_at_k", pass_at_k, groups),
            ("majority_at_k", majority_at_k, voted),
        )
        if chosen
    }


def _by_prompt(samples: Sequence[EvalItem]) -> list[list[EvalItem]]:
    """The samples of each prompt, by their number."""
    found: dict[str, list[EvalItem]] = defaultdict(list)
    for item in samples:
        found[item.id].append(item)
    return [sorted(items, key=lambda item: item.sample or 0) for items in found.values()]


def pass_at_k(items: Sequence[EvalItem], k: int) -> float:
    """The unbiased estimate of one prompt's pass@k from its samples, at least k."""
    wrong = sum(not item.exact for item in items)
    return 1 - comb(wrong, k) / comb(len(items), k)


def majority_at_k(items: Sequence[EvalItem], k: int) -> float:
    """The share of the groups of k samples of one prompt whose vote is right."""
    starts = range(0, len(items) - k + 1, k)
    return sum(_elected(items[start : start + k]) for start in starts) / len(starts)


def _elected(items: Sequence[EvalItem]) -> bool:
    """Whether the most frequent answer is right, judged by the first item that gives it."""
    ballots = [ballot(item) for item in items]
    # of equals the first counts as the most common
    votes = Counter(vote for vote in ballots if vote is not None)
    return bool(votes) and items[ballots.index(votes.most_common(1)[0][0])].exact


def ballot(item: EvalItem) -> str | None:
    """An item's vote: its answer as a number, a quantity to three digits, a letter or normalised
    text. None: it is no trace."""
    return _ballot(item.check, item.channels, choices_of(item), item.completion)


# a sample votes for every k, and overall as in its domain and its suite
@lru_cache(maxsize=1 << 16)
def _ballot(check: str, channels: Format, choices: tuple[str, ...], completion: str) -> str | None:
    trace = parse_trace(completion, channels)
    if trace is None:
        return None
    return CHECKS[check].vote(trace.answer, choices) or normalise_answer(unstyled(trace.answer))


def _mean(values: Sequence[float], seed: int) -> dict[str, float | int]:
    ends = asdict(bootstrap_share(values, seed=seed))
    return {"rate": sum(values) / len(values), **ends, "n": len(values)}


def noise_floors(
    samples: Sequence[EvalItem], outcomes: Mapping[str, Callable[[EvalItem], float | None]]
) -> dict[str, dict[str, float | int]]:
    """`noise_floor` of each outcome whose denominator is the same prompts in every run, over as
    many runs as every prompt has samples.

    Args:
        samples: in any order.
        outcomes: name of a rate -> what it counts.
    """
    groups = _by_prompt(samples)
    runs_of_all = min(map(len, groups), default=0)
    found = {}
    for name, outcome in outcomes.items():
        by_prompt = ([outcome(one) for one in items[:runs_of_all]] for items in groups)
        counted = [values for values in by_prompt if any(value is not None for value in values)]
        if counted and not any(value is None for values in counted for value in values):
            runs = zip(*(map(bool, values) for values in counted), strict=True)
            found[name] = noise_floor(list(runs)).model_dump()
    return found
