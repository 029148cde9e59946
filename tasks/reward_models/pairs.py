"""Pairs of well-formed traces on which a reward model is trained and measured.

The format reward already tells whether a response is a trace; a reward model that saw malformed
ones would learn little else. So pairs with a malformed, truncated, empty or refused side are left
out and counted.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Literal

import numpy as np

from schemas.base import StrictModel, digest
from schemas.examples import AskedFormat, Domain, Example, PreferencePair, Trace, parse_trace
from tasks.cleaning.rules import SPLITS, Split, split_of
from tasks.data.tokens import Tokenizer, pad_left
from tasks.reward_models.steps import TraceRow, damaged, response_arrays, trace_row

Origin = Literal["data", "policy", "damaged"]
"""The origin of a pair: the data (a teacher's samples), the policy's samples, or a teacher's trace
beside a copy with one wrong step."""


class TracePair(StrictModel):
    """A prompt with the better and the worse of two traces, in the format's form.

    Attributes:
        damaged_step: for origin `damaged`, the index of the rejected trace's wrong step, from 0.
        channels: the format of both.
    """

    id: str
    prompt: str
    domain: Domain
    chosen: str
    rejected: str
    origin: Origin
    damaged_step: int | None = None
    channels: AskedFormat = "trace"

    def traces(self) -> tuple[Trace, Trace]:
        """The chosen and the rejected trace."""
        both = self.chosen, self.rejected
        chosen, rejected = (parse_trace(one, self.channels) for one in both)
        assert chosen is not None
        assert rejected is not None
        return chosen, rejected

    def rows(self, tokenizer: Tokenizer) -> tuple[TraceRow, TraceRow]:
        """The chosen and the rejected trace as tokens."""
        chosen, rejected = self.traces()
        return trace_row(tokenizer, self.prompt, chosen), trace_row(
            tokenizer, self.prompt, rejected
        )


Fits = Callable[[TracePair], bool]


def fits_lengths(tokenizer: Tokenizer, prompt_length: int, response_length: int) -> Fits:
    """Whether both rows of a pair fit the fixed lengths."""
    return lambda pair: all(
        row.fits(prompt_length, response_length) for row in pair.rows(tokenizer)
    )


def trace_pairs(
    pairs: Iterable[PreferencePair], origin: Origin, most: int, fits: Fits, left_out: Counter[str]
) -> list[TracePair]:
    """The first `most` pairs of two different traces that fit, and counts by cause of the pairs
    left out before the last of them."""

    def wanted() -> Iterable[TracePair]:
        for pair in pairs:
            both = pair.chosen, pair.rejected
            chosen, rejected = (parse_trace(one, pair.channels) for one in both)
            if chosen is None or rejected is None or pair.rejected_because == "truncated":
                left_out["malformed"] += 1
                continue
            found = _pair(pair, origin, chosen, rejected)
            if found.chosen == found.rejected:
                left_out["same"] += 1
            elif fits(found):
                yield found
            else:
                left_out["too_long"] += 1

    return list(islice(wanted(), most))


def _pair(
    asked: PreferencePair | Example, origin: Origin, chosen: Trace, rejected: Trace, **more: int
) -> TracePair:
    """A pair of two traces for a prompt."""
    about = {name: getattr(asked, name) for name in ("id", "prompt", "domain", "channels")}
    traces = {"chosen": chosen.render(), "rejected": rejected.render()}
    return TracePair.model_validate({**about, "origin": origin, **traces, **more})


def damaged_pairs(
    examples: Sequence[Example], most: int, seed: int, fits: Fits, left_out: Counter[str]
) -> list[TracePair]:
    """The traces of `most` examples, in an order that `seed` draws, each beside a copy with one
    wrong step."""
    of_domain: dict[Domain, list[Example]] = {}
    for example in examples:
        of_domain.setdefault(example.domain, []).append(example)

    def wanted() -> Iterable[TracePair]:
        for index in np.random.Generator(np.random.Philox(seed)).permutation(len(examples)):
            example = examples[index]
            damage = damaged(example, of_domain[example.domain], seed)
            chosen = parse_trace(example.response(), example.channels)
            rejected = damage and parse_trace(
                example.trace(reasoning=damage.reasoning).render(), example.channels
            )
            if damage is None or chosen is None or rejected is None or chosen == rejected:
                left_out["undamaged"] += 1
                continue
            pair = _pair(example, "damaged", chosen, rejected, damaged_step=damage.step)
            if fits(pair):
                yield pair
            else:
                left_out["too_long"] += 1

    return list(islice(wanted(), most))


def split_pairs(
    pairs: Sequence[TracePair], validation: float, heldout: float
) -> dict[Split, list[TracePair]]:
    """Pairs by the split of their prompt; fractions are of all prompts.

    The data's own split used the prompt's id; this one uses a hash of it, since all these prompts
    are in one part of that split. Each validation or held-out prompt keeps one pair, because the
    measurements count pairs as independent.
    """
    splits: dict[Split, list[TracePair]] = {split: [] for split in SPLITS}
    for pair in pairs:
        splits[split_of(digest(["reward_model", pair.id])[:16], validation, heldout)].append(pair)
    for split in ("validation", "heldout"):
        one: dict[str, TracePair] = {}
        for pair in sorted(splits[split], key=digest):
            one.setdefault(pair.id, pair)
        splits[split] = list(one.values())
    return splits


def pair_arrays(
    tokenizer: Tokenizer, pairs: Sequence[TracePair], prompt_length: int, response_length: int
) -> dict[str, np.ndarray]:
    """The training input of `tasks.losses.bradley_terry.bradley_terry_loss_fn`."""
    both = [pair.rows(tokenizer) for pair in pairs]
    arrays = {
        "prompt_ids": pad_left(
            [chosen.prompt for chosen, _ in both], prompt_length, tokenizer.pad_id
        )
    }
    for side, name in enumerate(("chosen", "rejected")):
        responses = [rows[side].response for rows in both]
        arrays[f"{name}_ids"], arrays[f"{name}_ends"] = response_arrays(
            responses, response_length, tokenizer.pad_id
        )
        labels = np.zeros((len(pairs), response_length), np.int8)
        for index, (pair, response) in enumerate(zip(pairs, responses, strict=True)):
            steps = response.ends[:-1]
            if pair.damaged_step is not None:
                right = steps if name == "chosen" else steps[: pair.damaged_step]
                labels[index, right] = 1
                if name == "rejected":
                    labels[index, steps[pair.damaged_step]] = -1
        arrays[f"{name}_labels"] = labels
    return arrays
