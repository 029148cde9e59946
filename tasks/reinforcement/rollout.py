"""A rollout: its responses and rewards, their advantages and weights, and the batch in packed rows.

The stage's journal has three entries for a rollout: `<number>.sampled` (prompts, tokens,
log-probabilities), written first, and when all rewards are there `<number>.values` (what a judge
had cost by then) and `<number>.scored` (the rows of the ledger). An interrupted stage neither
samples nor asks a judge again for what they hold: an abstention stays one. After a rollback,
numbers have the suffix `+1`. The entries are deleted when the stage's artifact is committed.

How many rows a batch fills depends on what was sampled; its shape does not. It has a row for each
response, the filled ones first, and a step skips micro-batches in which nothing is predicted. So
one program costs what the actual tokens cost. The responses to a prompt share it in a row, where
attention sees it (`tasks.models.attention.sees_prefixes`).

`tasks.losses.grpo` has the formulas and papers of advantages and weights.
"""

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from schemas.examples import Prompt
from schemas.ledger import LedgerRow
from tasks.contract.journal import Rows
from tasks.data.packing import Shape, Text, in_groups, pack_responses
from tasks.devices.hosts import agree, is_committer
from tasks.reinforcement.rewarding import Rewards
from tasks.verification.correct import are_correct

if TYPE_CHECKING:
    from tasks.sampling.sampler import Completion, Sampler

Scale = Literal["group", "none", "batch"]
"""The divisor of a reward's distance from its group's mean: the group's std, nothing, or the
batch's std (2508.08221)."""

Aggregation = Literal["sequence", "token", "fixed"]
"""The unit with an equal share of the loss: every response, every token, or every token with all
responses counted at full length."""

SAME_REWARD = 1e-9
"""Rewards of one group that differ by at most this are equal, so that dividing by a tiny std does
not amplify rounding."""


@dataclass(frozen=True)
class Sampled:
    """The N responses of a rollout, with log-probabilities by the policy that sampled them.

    Attributes:
        chosen: index of each group's prompt.
        completions: (N,), the responses to one prompt side by side.
        old: (N, R) float32 log-probabilities by the training program, at the sampling temperature;
            None where no loss needs them.
        gap: mean absolute difference between those and the sampler's, in nats; None where it was
            not measured.
    """

    chosen: list[int]
    completions: "list[Completion]"
    old: np.ndarray | None
    gap: float | None

    def rows(self) -> Rows:
        """The journal's entry: a header, and a row per response."""
        responses = [
            {"tokens": _text(np.array(one.tokens, np.int32)), "logps": _text(one.logps)}
            for one in self.completions
        ]
        for place, old in enumerate(() if self.old is None else self.old):
            responses[place]["old"] = _text(old[: len(self.completions[place].tokens)])
        return [{"chosen": self.chosen, "gap": self.gap}, *responses]

    @classmethod
    def of(cls, rows: Rows, sampler: "Sampler") -> "Sampled":
        """Read a journal's entry."""
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
        return cls(head["chosen"], completions, old, head["gap"])


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
        """(P,) bool: the groups whose rewards differ, and so have advantages."""
        return np.asarray(self.advantages.reshape(-1, self.group_size).any(axis=1))

    @cached_property
    def correct(self) -> np.ndarray:
        """(P, G) of True, False, and None where nothing is known (`are_correct`). Host 0 says: a
        limit of time decides on code."""
        texts = [completion.text for completion in self.completions]
        found = agree(are_correct(self.prompts, texts) if is_committer() else None)
        return np.array(found, object).reshape(-1, self.group_size)

    def metrics(self) -> dict[str, float]:
        """The curve's values; a mean over nothing is left out.

        reward (mean total), reward/<name> (mean of one reward), abstained/<name> (fraction of
        responses on which it abstained), reward_std (mean within-group std), zero_variance
        (fraction of groups whose rewards are all equal), all_right and all_wrong (those of them
        whose responses are all correct, or all incorrect), effective_groups (count of groups with
        advantages), unrewarded (fraction of responses), completion_tokens (mean), truncated
        (fraction).
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
        """Indices of the groups that fill a batch of `groups`, ascending: first those that have
        advantages, then others, each in order."""
        return np.sort(np.argsort(~self.informative, kind="stable")[:groups])

    def rows(self, step: int) -> Iterator[dict[str, Any]]:
        """The responses to the first prompt, for `rollouts.jsonl`. `step` counts from 1, as in the
        curve."""
        for index in range(self.group_size):
            scores = {**self._scores_of(index), "advantage": float(self.advantages[index])}
            yield sample_row(step, self.prompts[index], self.completions[index], **scores)

    def ledger(self, number: int, step: int, planned: int, trained: Sequence[int]) -> Rows:
        """The ledger's rows of rollout `number`, whose first update is `step` and whose rewards are
        those of `planned`; `trained`: indices of the groups that were trained on."""
        details = self.rewards.details
        return [
            LedgerRow(
                rollout=number,
                step=step,
                frozen=None if planned == step else planned,
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
        """Each reward and the total of one response; None where there is none."""
        rewards = {
            name: number_of(values[index]) for name, values in self.rewards.components.items()
        }
        return {"rewards": rewards, "reward": number_of(self.rewards.total[index])}


def sample_row(
    step: int, prompt: Prompt, completion: "Completion", **scores: Any
) -> dict[str, Any]:
    """A row of `rollouts.jsonl`: a response with its `rewards`, `reward` and `advantage`."""
    return {
        "step": step,
        "id": prompt.id,
        "prompt": prompt.prompt,
        "reference": prompt.answer,
        "completion": completion.text,
        "terminated": completion.terminated,
        **scores,
    }


def group_advantages(
    rewards: np.ndarray, group_size: int, scale: Scale = "group", *, epsilon: float = 1e-6
) -> np.ndarray:
    """Advantages within each group: (r - mean) / (what `scale` says + epsilon); std with ddof = 1.

    A completion without a reward is left out of its group's mean and of every std; a group with
    fewer than two rewards has no advantages.

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
    """The weight of a token's loss, for each response; computed on the host.

    The loss is the mean over rows of weight x sum over tokens, so all weights have the factor B.
    So the loss is the same for any number of micro-batches, whose mean a trainer takes.

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


class PolicyBatch(NamedTuple):
    """Responses to train on, in N packed rows of L tokens. A value of a response's token is at the
    token before it, which predicts it; elsewhere it is 0.

    Attributes:
        tokens, positions, segments: (N, L) int32, what the model takes.
        predicts: (N, L) bool: the next token is one of a response.
        advantages: (N, L) float32.
        weights: (N, L) float32 of a token's loss (`row_weights`): the loss is the mean over
            micro-batches of the weighted sum over tokens.
        token_weights: (N, L) float32, the same with aggregation "token"; metrics use them.
        ref_per_token_logps: (N, L) float32 of the reference; None without a KL term.
        old_per_token_logps: (N, L) float32 of the policy that sampled, by the training program at
            the sampling temperature. None: the trained policy itself sampled.
        sampler_per_token_logps: (N, L) float32 by the sampler at the sampling temperature; None: no
            correction.
    """

    tokens: Any
    positions: Any
    segments: Any
    predicts: Any
    advantages: Any
    weights: Any
    token_weights: Any
    ref_per_token_logps: Any = None
    old_per_token_logps: Any = None
    sampler_per_token_logps: Any = None


def policy_batch(
    texts: Sequence[Text],
    numbers: Sequence[np.ndarray | None],
    *,
    length: int,
    pad_id: int,
    micro_batches: int = 1,
    shared: bool = True,
) -> PolicyBatch:
    """Pack B responses behind their prompts; leave out those of weight 0.

    Args:
        numbers: `advantages`, `weights`, `token_weights` and optionally the log-probabilities of a
            PolicyBatch, in this order: (B,) per response, or (B, R) per token.
        length: tokens of a row.
        micro_batches: how many the batch is cut into.
        shared: whether neighbours of one prompt share it.
    """
    advantages, weights, token_weights, *logps = numbers
    assert weights is not None
    assert token_weights is not None
    counted = np.flatnonzero(weights).tolist()
    width = max((len(texts[row][1]) for row in counted), default=1)
    shape = Shape(len(texts), length)
    groups = in_groups([texts[row] for row in counted], shared=shared)
    packed = pack_responses(groups, shape, width, pad_id)

    def at_tokens(values: np.ndarray | None) -> np.ndarray | None:
        if values is None:
            return None
        of_rows = values[counted] if values.ndim == 2 else values[counted, None]
        flat = np.zeros(packed.tokens.size + 1, np.float32)  # the last takes what is past an end
        flat[packed.places] = np.broadcast_to(of_rows[:, :width], packed.places.shape)
        return flat[:-1].reshape(shape)

    share = micro_batches / len(texts)
    found = (advantages, weights * share, token_weights * share, *logps)
    return PolicyBatch(*packed[:4], *map(at_tokens, found))


def empty_batch(responses: int, length: int, *, logps: tuple[bool, bool, bool]) -> PolicyBatch:
    """A batch of zeros. `logps`: which of its log-probabilities it has, in their order."""
    tokens = np.zeros((responses, length), np.int32)
    number = tokens.astype(np.float32)
    wanted = [number if one else None for one in logps]
    return PolicyBatch(tokens, tokens, tokens, tokens > 0, number, number, number, *wanted)


def tokens_there(texts: Sequence[Text], response_length: int) -> np.ndarray:
    """(B, R) bool: which tokens each response has."""
    lengths = np.array([len(response) for _, response in texts])
    return np.arange(response_length) < lengths[:, None]


def padded(rows: Iterable[np.ndarray], count: int, length: int) -> np.ndarray:
    """(count, length) float32 of rows of at most `length`; 0 past their ends."""
    out = np.zeros((count, length), np.float32)
    for place, row in enumerate(rows):
        out[place, : len(row)] = row
    return out


def number_of(value: float) -> float | None:
    """None for NaN, as JSON has it."""
    return None if np.isnan(value) else float(value)


def _text(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _array(text: str, dtype: type[np.generic]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype)
