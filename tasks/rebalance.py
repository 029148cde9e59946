"""Rebalance: exact quotas per domain and split, stratified by difficulty, from what distill produced.

The split of a prompt is decided by its hash first (`tasks.data.splits`), then each quota is filled from its split alone
(`tasks.data.quotas`): no prompt is in two splits, and the result is the same for the same rows in any order. Writes `train.jsonl`,
`validation.jsonl` and `heldout.jsonl`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import Field, model_validator

from schemas.base import InputError, StrictModel
from schemas.examples import Domain, Example, Grounding
from tasks.data.quotas import rank, take
from tasks.data.splits import SPLITS, Split, split_of
from tasks.job import Input, Job, read_jsonl, write_jsonl

VERSION = 1
INPUTS = {"examples": Input(("distill",))}


class Quota(StrictModel):
    """Rows per split: exactly so many, or the stage fails."""

    train: int = Field(default=0, ge=0)
    validation: int = Field(default=0, ge=0)
    heldout: int = Field(default=0, ge=0)


class Config(StrictModel):
    """Which rows to keep.

    ```toml
    [stages.rebalance.config]
    validation_fraction = 0.05
    heldout_fraction = 0.15
    [stages.rebalance.config.quotas]
    math = { train = 600, validation = 20, heldout = 100 }
    [stages.rebalance.config.grounding_quotas]
    answerable = { train = 150, heldout = 50 }
    ```

    Attributes:
        quotas: reasoning rows (not grounded) per domain; a domain that is not named gets none.
        grounding_quotas: grounded question-answering rows per grounding; a grounding that is not named gets none.
        validation_fraction: the share of all prompts that the hash puts into the validation split, whether a quota takes them or not.
        heldout_fraction: likewise for the held-out split. The rest trains.
        seed: which rows of a split fill its quota; it does not move a prompt to another split.
    """

    quotas: dict[Domain, Quota] = Field(default_factory=dict)
    grounding_quotas: dict[Grounding, Quota] = Field(default_factory=dict)
    validation_fraction: float = Field(default=0.05, ge=0, lt=1)
    heldout_fraction: float = Field(default=0.15, ge=0, lt=1)
    seed: int = 0

    @model_validator(mode="after")
    def _something_is_left_to_train(self) -> Self:
        if self.validation_fraction + self.heldout_fraction >= 1:
            raise ValueError(
                f"validation_fraction {self.validation_fraction} + heldout_fraction {self.heldout_fraction} leaves nothing to train on"
            )
        if not self.quotas and not self.grounding_quotas:
            raise ValueError("no quota is set; add e.g. quotas.math = { train = 600, validation = 20, heldout = 100 }")
        return self


Pools = dict[str, dict[Split, list[Example]]]
"""Rows by domain or grounding, then by split."""


def pools(examples: Sequence[Example], config: Config) -> tuple[Pools, Pools]:
    """Reasoning rows by domain and grounded rows by grounding, each by split."""
    domains: Pools = {domain.value: {split: [] for split in SPLITS} for domain in Domain}
    groundings: Pools = {grounding: {split: [] for split in SPLITS} for grounding in ("answerable", "unanswerable", "out_of_domain")}
    for example in examples:
        split = split_of(example.id, config.validation_fraction, config.heldout_fraction)
        pool = groundings[example.grounding] if example.grounding else domains[example.domain.value]
        pool[split].append(example)
    return domains, groundings


def shortages(table: str, quotas: Mapping[Any, Quota], pool: Pools) -> list[str]:
    """One line for each quota that its split cannot fill."""
    lines = []
    for name, quota in quotas.items():
        has = {split: len(rows) for split, rows in pool[name].items()}
        for split in SPLITS:
            wanted = getattr(quota, split)
            if wanted > has[split]:
                lines.append(
                    f"{table}.{name}.{split} = {wanted}: there are {has[split]}, {wanted - has[split]} are missing "
                    f"({sum(has.values())} rows of {name} in all: {', '.join(f'{count} {other}' for other, count in has.items())})"
                )
    return lines


def run(job: Job[Config]) -> dict[str, Any]:
    """Fill the quotas. Raises InputError, listing every quota that cannot be filled."""
    config = job.config
    examples = read_jsonl(job.inputs["examples"] / "examples.jsonl", Example)
    domains, groundings = pools(examples, config)
    lines = shortages("quotas", config.quotas, domains) + shortages("grounding_quotas", config.grounding_quotas, groundings)
    if lines:
        raise InputError(
            "the quotas ask for more rows than distill produced:\n  "
            + "\n  ".join(lines)
            + "\nLower the quota, let the teacher produce more rows, or give the split a larger validation_fraction or heldout_fraction."
        )
    chosen: dict[Split, list[Example]] = {split: [] for split in SPLITS}
    achieved: dict[str, dict[str, dict[str, Any]]] = {"domains": {}, "groundings": {}}
    for table, quotas, pool in (("domains", config.quotas, domains), ("groundings", config.grounding_quotas, groundings)):
        for name, quota in quotas.items():
            achieved[table][str(name)] = {}
            for split in SPLITS:
                rows = take(pool[name][split], getattr(quota, split), config.seed)
                chosen[split] += rows
                achieved[table][str(name)][split] = {
                    "requested": getattr(quota, split),
                    "achieved": len(rows),
                    "available": len(pool[name][split]),
                    "difficulty": {str(level): count for level, count in sorted(Counter(row.difficulty for row in rows).items())},
                }
        job.progress(sum(map(len, chosen.values())), len(examples), "examples")
    for split, rows in chosen.items():
        rows.sort(key=lambda row: rank(config.seed, row.id))
        write_jsonl(job.out / f"{split}.jsonl", rows)
    return {"rows": {split: len(rows) for split, rows in chosen.items()}, **achieved}
