"""Train, validation and held-out split by hash: a prompt's split depends on its text and the
fractions alone.

The prompt's id (sha256 of the normalised prompt) is read as a fraction of its range: [0, heldout)
is held out, [heldout, heldout + validation) validates, the rest trains. So no prompt is ever in two
splits, and none changes its split when other rows are added, removed or reordered.
"""

from typing import Literal, get_args

Split = Literal["train", "validation", "heldout"]
SPLITS: tuple[Split, ...] = get_args(Split)


def split_of(prompt_id: str, validation_fraction: float, heldout_fraction: float) -> Split:
    """The split of a prompt, given its id (`schemas.examples.prompt_id`) and the expected fractions
    of all prompts in each split."""
    position = int(prompt_id, 16) / 16 ** len(prompt_id)
    if position < heldout_fraction:
        return "heldout"
    return "validation" if position < heldout_fraction + validation_fraction else "train"
