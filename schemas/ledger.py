"""The ledger of a GRPO stage: every response of every rollout, what each reward gave for it, and
what came of it.

`ledger.jsonl.gz` in the artifact, one row per response in the order of sampling. With it a finished
run can be judged again, under other rubrics or weights, without sampling anything (`lyceum
rejudge`).
"""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import Field

from schemas.base import StrictModel


class LedgerRow(StrictModel):
    """One response.

    Attributes:
        rollout: from 0. step: the first update that trained on this rollout, from 1.
        frozen: the update whose weights and penalties it was scored with, where a rollback froze
            them before `step`.
        group: which of the rollout's groups, from 0; the responses of one group answer one prompt.
        id: of the prompt. completion: the text without its terminator.
        tokens: with it. truncated: it was cut off before one.
        rewards: reward name -> value; None where it abstained.
        details: reward name -> what the reward keeps of how it came about; rewards that keep
            nothing are absent.
        reward: the weighted mean; None: it has none.
        advantage: 0 where it has none.
        trained: whether its group was trained on, not left out by dynamic sampling.
    """

    rollout: int
    step: int
    frozen: int | None = Field(default=None, exclude_if=lambda value: value is None)
    group: int
    id: str
    completion: str
    tokens: int
    truncated: bool
    rewards: dict[str, float | None]
    details: dict[str, dict[str, Any]] = Field(default_factory=dict)
    reward: float | None
    advantage: float
    trained: bool


def write_ledger(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows (`LedgerRow` as JSON); the same rows give the same bytes."""
    with path.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as out:
        for row in rows:
            line = json.dumps(row, ensure_ascii=False, allow_nan=False)
            out.write(line.encode() + b"\n")
