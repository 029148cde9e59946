"""Rollouts that are kept: what was sampled, and what it was found to be worth, in the stage's
journal.

A rollout has two entries: `<number>.sampled` (prompts, tokens, log-probabilities), written before
anything is made of it, and `<number>.scored` (the rows of the ledger), written when its rewards are
there. A stage that was interrupted samples nothing and asks no judge again for what is in them: an
abstention stays one. After the weights were put back numbers have the suffix `+1`. The entries go
when the stage's artifact is committed.
"""

import base64
import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from schemas.ledger import LedgerRow
from tasks.contract.journal import Rows
from tasks.reinforcement.rewarding import Rewards
from tasks.sampling.rollouts import Rollout

if TYPE_CHECKING:
    from tasks.sampling.sampler import Completion, Sampler


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
        head = {"chosen": self.chosen, "gap": self.gap, "compiles": self.compiles}
        responses = [
            {"tokens": _text(np.array(one.tokens, np.int32)), "logps": _text(one.logps)}
            for one in self.completions
        ]
        if self.old is not None:
            for row, old, one in zip(responses, self.old, self.completions, strict=True):
                row["old"] = _text(old[: len(one.tokens)])
        return [head, *responses]

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
            old = np.zeros((len(responses), sampler.response_length), np.float32)
            for row, values in zip(
                old, (_array(one["old"], np.float32) for one in responses), strict=True
            ):
                row[: len(values)] = values
        return cls(head["chosen"], completions, old, head["gap"], head["compiles"])


def ledger_rows(rollout: Rollout, index: int, step: int, trained: Sequence[int]) -> Rows:
    """The rows of the ledger of rollout `index`, whose first update is `step`; `trained`: the
    groups that were trained on."""
    details = rollout.rewards.details
    return [
        LedgerRow(
            rollout=index,
            step=step,
            group=number // rollout.group_size,
            id=rollout.prompts[number].id,
            completion=one.text,
            tokens=len(one.tokens),
            truncated=not one.terminated,
            **rollout.scores_of(number),
            details={name: of_each[number] for name, of_each in details.items() if of_each[number]},
            advantage=float(rollout.advantages[number]),
            trained=number // rollout.group_size in trained,
        ).model_dump(mode="json")
        for number, one in enumerate(rollout.completions)
    ]


def rewards_of(rows: Rows) -> Rewards:
    """The rewards in a rollout's rows of the ledger."""
    names = list(rows[0]["rewards"])
    components = {name: _values([row["rewards"][name] for row in rows]) for name in names}
    details = {
        name: [row["details"].get(name, {}) for row in rows]
        for name in names
        if any(name in row["details"] for row in rows)
    }
    return Rewards(components, _values([row["reward"] for row in rows]), details)


def write_ledger(path: Path, rollouts: Iterable[Rows]) -> int:
    """Write rows of the ledger; the same rows give the same bytes. Returns their number."""
    count = 0
    with (
        path.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as out,
    ):
        for rows in rollouts:
            out.writelines(
                json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"
                for row in rows
            )
            count += len(rows)
    return count


def _text(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _array(text: str, dtype: type[np.generic]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype)


def _values(numbers: Sequence[Any]) -> np.ndarray:
    return np.array([np.nan if number is None else number for number in numbers], np.float64)
