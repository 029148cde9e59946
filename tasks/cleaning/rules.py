"""The rules of cleaning (`tasks.cleaning.clean`), the columns of its decisions, and the split by
hash. No numpy.

A prompt's split depends only on its text and the fractions. Its id (sha256 of the normalised
prompt) is read as a fraction of its range: [0, heldout) is held out, [heldout, heldout +
validation) validates, the rest trains. So no prompt is ever in two splits, and none changes its
split when other rows are added, removed or reordered.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, get_args

from pydantic import Field, model_validator

from schemas.base import StrictModel
from schemas.examples import Domain, Grounding

if TYPE_CHECKING:
    from tasks.cleaning.filters import Filter

Progress = Callable[[int, int, str], None]
"""Told (done, total, unit) now and then; the unit is bytes."""

Split = Literal["train", "validation", "heldout"]
SPLITS: tuple[Split, ...] = get_args(Split)

GROUPS: tuple[str, ...] = (*(domain.value for domain in Domain), *get_args(Grounding))
"""The names that `group` counts: the grounding of a grounded row, else its domain."""

Cause = Literal[
    "kept", "duplicate_prompt", "near_duplicate", "contaminated", "too_long", "language", "pii"
]
CAUSES: tuple[Cause, ...] = get_args(Cause)

Hit = Literal[
    "none", "exact", "coverage", "run", "heldout_exact", "heldout_coverage", "heldout_run"
]
HITS: tuple[Hit, ...] = get_args(Hit)
"""How a contaminated row matches: the same words; enough of the n-grams; a long run of words. Of an
evaluation item or a held-out row."""

COLUMNS: dict[str, str] = {
    **{"file": "<u2", "offset": "<i8", "length": "<i4", "id": "<u8", "content": "<u8"},
    **{"words": "<i4", "group": "u1", "difficulty": "u1", "split": "u1", "cause": "u1"},
    **{"hit": "u1", "match": "<i8", "score": "<f4"},
}
"""Columns of the state and their numpy types."""

STATE_BYTES = 51

DECIDED = ("id", "content", "group", "difficulty", "split", "cause", "hit", "match", "score")
"""Columns that do not say where a row is."""

DETAILS = "details.txt"
"""The file in the scratch directory that says, in order, why a filter dropped each row."""


class NearDuplicates(StrictModel):
    """Near duplicates by MinHash (Broder 1997) and locality-sensitive hashing, with datasketch's
    signatures and bands (`affine32`).

    The defaults suit prompts, which are short: with shingles of 5 words, as for documents, one
    changed word of GSM8K's 45 takes the similarity from 1 to 0.78. Of 500 planted light edits
    (docs/measurements.md) threshold 0.8 with 5 words finds 58%, 0.7 with 5 words 80%, 0.8 with 3
    words 83%, 0.7 with 3 words 95%, all without a false positive. Exercises that differ only in a
    number are near duplicates too: turn this off to train on variants of a template.

    Attributes:
        threshold: rows whose estimated Jaccard similarity is at least this are near duplicates.
        words: length of the shingles.
        permutations: length of the signatures.
    """

    threshold: float = Field(default=0.7, gt=0, le=1)
    words: int = Field(default=3, ge=1)
    permutations: int = Field(default=128, ge=16, le=1024)


class Contamination(StrictModel):
    """Which rows give evaluation items away (exactly: `tasks.cleaning.contamination`).

    Attributes:
        words: length of the n-grams for coverage. Texts with fewer words are compared as wholes
            only.
        coverage: the share of the row's or of the item's n-grams that are in both, from which on
            the row is contaminated.
        long_words: a run of so many words in both is enough.
        heldout: compare rows of the training and validation splits with the held-out split's, too.
    """

    words: int = Field(default=8, ge=2)
    coverage: float = Field(default=0.5, gt=0, le=1)
    long_words: int = Field(default=13, ge=2)
    heldout: bool = True

    @model_validator(mode="after")
    def _long_is_longer(self) -> Self:
        if self.long_words <= self.words:
            raise ValueError(f"long_words {self.long_words} must be more than words {self.words}")
        return self


@dataclass(frozen=True)
class Rules:
    """What is dropped, and which rows are compared.

    Attributes:
        near_duplicates, contamination: None: skip it.
        validation_fraction, heldout_fraction: of the splits.
        seed: of the order in which near duplicates become leaders.
        filters: called with each parsed row, in processes of their own: they must pickle.
    """

    near_duplicates: NearDuplicates | None
    contamination: Contamination | None
    validation_fraction: float
    heldout_fraction: float
    seed: int
    filters: "Sequence[Filter]"


@dataclass(frozen=True)
class EvaluationItems:
    """An evaluation set: its name and (id, text) of each item."""

    name: str
    texts: Sequence[tuple[str, str]]


def split_of(prompt_id: str, validation_fraction: float, heldout_fraction: float) -> Split:
    """The split of a prompt, given its id (`schemas.examples.prompt_id`) and the expected fractions
    of all prompts in each split."""
    position = int(prompt_id, 16) / 16 ** len(prompt_id)
    if position < heldout_fraction:
        return "heldout"
    return "validation" if position < heldout_fraction + validation_fraction else "train"
