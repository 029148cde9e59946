"""A rollout: what was sampled, what it was found to be worth, and what of it is trained on.

In the stage's journal a rollout has two entries: `<number>.sampled` (prompts, tokens,
log-probabilities), written before anything is made of it, and `<number>.scored` (the rows of the
ledger), written when its rewards are there. A stage that was interrupted samples nothing and asks
no judge again for what is in them: an abstention stays one. After the weights were put back numbers
have the suffix `+1`. The entries go when the stage's artifact is committed.

`tasks.losses.grpo` has the formulas and papers of advantages and weights.
"""

import base64
import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from schemas.examples import Prompt
from schemas.ledger import LedgerRow
from tasks.contract.journal import Rows
from tasks.reinforcement.rewarding import Rewards
from tasks.verification.correct import are_correct

if TYPE_CHECKING:
    from tasks.sampling.sampler import Completion, Sampler

Scale = Literal["group", "none", "batch"]
"""What the rewards' distances from their group's mean are divided by: the group's std, nothing, or
the batch's std (2508.08221)."""

Aggregation = Literal["sequence", "token", "fixed"]
"""What is the same for all: a response's share of the loss, a token's share, or a token's share as
if all responses were full-length."""

SAME_REWARD = 1e-9
"""Rewards of one group that differ by no more than this are equal: rounding must not be blown up by
the division by a tiny std."""


@dataclass(frozen=True)
class Sampled:
    """The N responses of a rollout, and what the policy of that time said of them.

    Attributes:
        chosen: index of each group's prompt.
        completions: (N,), the responses to one prompt side by side.
        old: (N, R) float32 log-probabilities by the program that trains, at the sampling
            temperature; None where no loss needs them.
        gap: mean absolute difference between those and the sampler's, in nats; None where it was
            not measured.
        compiles: programs compiled until then.
    """

    chosen: list[int]
    completions: "list[Completion]"
    old: np.ndarray | None
    gap: float | None
    compiles: dict[str, int]

    def rows(self) -> Rows:
        """For the journal: a head, and a row per response."""
        responses = [
            {"tokens": _text(np.array(one.tokens, np.int32)), "logps": _text(one.logps)}
            for one in self.completions
        ]
        for place, old in enumerate(() if self.old is None else self.old):
            responses[place]["old"] = _text(old[: len(self.completions[place].tokens)])
        return [{"chosen": self.chosen, "gap": self.gap, "compiles": self.compiles}, *responses]

    @classmethod
    def of(cls, rows: Rows, sampler: "Sampler") -> "Sampled":
        """From the journal."""
        head, *responses = rows
        completions = [
            sampler.completion_of(
                _array(row["tokens"], np.int32).tolist(), _array(row["logps"], np.float32)
            )
            for row in responses
        ]
        old = None
        if "old" in responses[0]:
            values = (_array(row["old"], np.float32) for row in responses)
            old = padded(values, len(responses), sampler.response_length)
        return cls(head["chosen"], completions, old, head["gap"], head["compiles"])


@dataclass(frozen=True)
class Rollout:
    """One rollout of N = P x G responses, the G of one prompt side by side.

    Attributes:
        prompts: (N,) the prompt of each response.
        completions: (N,) the responses.
        rewards: their scores; NaN in `rewards.total` where there is none.
        advantages: (N,) group-relative, 0 where there is no reward.
        group_size: G.
    """

    prompts: "list[Prompt]"
    completions: "list[Completion]"
    rewards: Rewards
    advantages: np.ndarray
    group_size: int

    @property
    def informative(self) -> np.ndarray:
        """(P,) bool: the groups that have advantages."""
        return np.asarray(self.advantages.reshape(-1, self.group_size).any(axis=1))

    @cached_property
    def correct(self) -> np.ndarray:
        """(P, G) of True, False, and None where an answer cannot be verified."""
        found = are_correct(self.prompts, [completion.text for completion in self.completions])
        return np.array(found, object).reshape(-1, self.group_size)

    def metrics(self) -> dict[str, float]:
        """What the curve shows of a rollout; a mean over nothing is left out.

        reward (mean total), reward/<name> (mean of one reward), abstained/<name> (fraction of
        responses on which it abstained), reward_std (mean within-group std), zero_variance
        (fraction of groups that teach nothing because their rewards are equal), all_right and
        all_wrong (those of them whose responses are all correct, or all not), effective_groups
        (count of groups with advantages), unrewarded (fraction of responses), completion_tokens
        (mean), truncated (fraction).
        """
        totals, components = self.rewards.total, self.rewards.components
        dead = ~self.informative
        groups = (group[~np.isnan(group)] for group in totals.reshape(-1, self.group_size))
        stds = [np.std(group, ddof=1) for group in groups if len(group) >= 2]
        means = {
            "reward": totals,
            **{f"reward/{name}": values for name, values in components.items()},
            "reward_std": np.array(stds),
            **{f"abstained/{name}": np.isnan(values) for name, values in components.items()},
            "zero_variance": dead,
            "all_right": dead & (self.correct == True).all(axis=1),  # noqa: E712  None is neither
            "all_wrong": dead & (self.correct == False).all(axis=1),  # noqa: E712
            "effective_groups": np.array([np.sum(~dead)]),
            "unrewarded": np.isnan(totals),
            "completion_tokens": np.array([len(one.tokens) for one in self.completions]),
            "truncated": np.array([not one.terminated for one in self.completions]),
        }
        known = {name: values for name, values in means.items() if not np.isnan(values).all()}
        return {name: float(np.nanmean(values)) for name, values in known.items()}

    def chosen(self, groups: int) -> np.ndarray:
        """Which groups fill a batch of so many: those that have advantages first, in order, then
        the first of those that have none."""
        return np.sort(np.argsort(~self.informative, kind="stable")[:groups])

    def rows(self, step: int) -> Iterator[dict[str, Any]]:
        """The responses to the first prompt, for `rollouts.jsonl`. `step` counts from 1, as in the
        curve."""
        for index in range(self.group_size):
            yield {
                "step": step,
                "id": self.prompts[index].id,
                "prompt": self.prompts[index].prompt,
                "reference": self.prompts[index].answer,
                "completion": self.completions[index].text,
                "terminated": self.completions[index].terminated,
                **self._scores_of(index),
                "advantage": float(self.advantages[index]),
            }

    def ledger(self, number: int, step: int, trained: Sequence[int]) -> Rows:
        """Its rows of the ledger. It is rollout `number`, its first update is `step`, and the
        groups `trained` were trained on."""
        details = self.rewards.details
        return [
            LedgerRow(
                rollout=number,
                step=step,
                group=index // self.group_size,
                id=self.prompts[index].id,
                completion=one.text,
                tokens=len(one.tokens),
                truncated=not one.terminated,
                **self._scores_of(index),
                details={name: every[index] for name, every in details.items() if every[index]},
                advantage=float(self.advantages[index]),
                trained=index // self.group_size in trained,
            ).model_dump(mode="json")
            for index, one in enumerate(self.completions)
        ]

    def _scores_of(self, index: int) -> dict[str, Any]:
        """Of one response, what each reward gave and the total; None where there is none."""
        rewards = {
            name: number_of(values[index]) for name, values in self.rewards.components.items()
        }
        return {"rewards": rewards, "reward": number_of(self.rewards.total[index])}


def group_advantages(
    rewards: np.ndarray, group_size: int, scale: Scale = "group", *, epsilon: float = 1e-6
) -> np.ndarray:
    """Advantages within each group of completions of one prompt: r - mean, divided by what `scale`
    says plus epsilon; std with ddof = 1.

    A completion without a reward is left out of its group's mean and of every std; with fewer than
    two rewards a group has no advantages.

    Args:
        rewards: (N * group_size,) rewards, the completions of one prompt side by side; NaN where a
            completion has no reward.
        epsilon: 1e-6 is Tunix's; TRL's is 1e-4.

    Returns:
        (N * group_size,) float64; 0 for completions without a reward, and throughout a group whose
        rewards are all equal.

    Raises:
        ValueError: the number of rewards is no multiple of the group size.
    """
    if rewards.ndim != 1 or len(rewards) % group_size:
        raise ValueError(f"rewards of shape {rewards.shape} are no groups of {group_size}")
    advantages = np.zeros(len(rewards), np.float64)
    given = rewards[~np.isnan(rewards)].astype(np.float64)
    for start in range(0, len(rewards), group_size):
        rewarded = start + np.flatnonzero(~np.isnan(rewards[start : start + group_size]))
        group = rewards[rewarded].astype(np.float64)
        if len(group) < 2 or np.ptp(group) <= SAME_REWARD:
            continue
        advantages[rewarded] = group - group.mean()
        if scale != "none":
            advantages[rewarded] /= np.std(group if scale == "group" else given, ddof=1) + epsilon
    return advantages


def row_weights(
    mask: np.ndarray, counted: np.ndarray, aggregation: Aggregation, length: int
) -> np.ndarray:
    """Of each response, the weight of one of its tokens' loss, on the host.

    The loss is the mean over rows of weight x sum over tokens, so all weights have the factor B:
    then it is the same for any number of micro-batches, over which a trainer takes the mean.

    Args:
        mask: (B, R) bool: the tokens of the whole batch's responses.
        counted: (B,) bool: the responses that count.
        aggregation: "sequence" gives B / (N |o|), "token" B / sum of |o|, "fixed" B / (N length),
            over the N that count.
        length: L of "fixed", in tokens: the most a response has.

    Returns:
        (B,) float32, 0 where a response does not count or has no token.
    """
    lengths = mask.sum(axis=1) * counted
    rows = np.maximum((lengths > 0).sum(), 1)
    parts = {
        "sequence": rows * np.maximum(lengths, 1),
        "token": np.maximum(lengths.sum(), 1),
        "fixed": rows * length,
    }[aggregation]
    weights: np.ndarray = np.where(lengths > 0, len(mask) / parts, 0).astype(np.float32)
    return weights


def rewards_of(rows: Rows) -> Rewards:
    """The rewards in a rollout's rows of the ledger."""
    names = list(rows[0]["rewards"])
    components = {name: _values([row["rewards"][name] for row in rows]) for name in names}
    details = {name: [row["details"].get(name, {}) for row in rows] for name in names}
    given = {name: of_each for name, of_each in details.items() if any(of_each)}
    return Rewards(components, _values([row["reward"] for row in rows]), given)


def write_ledger(path: Path, rollouts: Iterable[Rows]) -> None:
    """Write rows of the ledger; the same rows give the same bytes."""
    with path.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as out:
        for rows in rollouts:
            for row in rows:
                line = json.dumps(row, ensure_ascii=False, allow_nan=False)
                out.write(line.encode() + b"\n")


def padded(rows: Iterable[np.ndarray], count: int, length: int) -> np.ndarray:
    """(count, length) float32 of rows that are no longer; 0 behind their ends."""
    out = np.zeros((count, length), np.float32)
    for place, row in enumerate(rows):
        out[place, : len(row)] = row
    return out


def number_of(value: float) -> float | None:
    """None for NaN, as JSON has it."""
    return None if np.isnan(value) else float(value)


def _values(numbers: Sequence[float | None]) -> np.ndarray:
    return np.array([np.nan if number is None else number for number in numbers], np.float64)


def _text(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _array(text: str, dtype: type[np.generic]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype)
