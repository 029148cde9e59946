"""The counts of a data card, in one pass over the files of rows."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tasks.cleaning.filters import language_of, response_of
from tasks.cleaning.rules import GROUPS
from tasks.contract.job import read_rows
from tasks.data.data_files import matches
from tasks.data.tokens import Tokenizer, prompt_tokens, response_tokens

SAMPLES = 20
LOOKED_AT = 2000
"""Rows of the first file whose tokens are counted and whose language is looked at."""

OWN_LICENCE = "apache-2.0"
"""The licence of rows that this program makes (teacher `procedural`): its own."""


class RowCounts:
    """Counts of the rows in one pass.

    Attributes:
        rows: by split; `languages`: by code.
        sources: by (family, file, licence); `cells`: by (group, difficulty).
        lengths: name, e.g. "prompt, characters" -> rows by exact length.
        samples: the first rows of each group.
    """

    def __init__(self) -> None:
        self.rows, self.languages = Counter[str](), Counter[str]()
        self.sources = Counter[tuple[str, str, str]]()
        self.cells = Counter[tuple[str, int]]()
        self.lengths: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self.samples: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)

    def groups(self) -> list[str]:
        """The groups that have rows, in their order."""
        return [group for group in GROUPS if any(other == group for other, _ in self.cells)]

    def by_licence(self) -> dict[str, int]:
        """The rows of each licence."""
        found = Counter[str]()
        for (_, _, licence), count in self.sources.items():
            found[licence] += count
        return dict(sorted(found.items()))


def count_rows(
    splits: Mapping[str, Path], teachers: Sequence[Mapping[str, Any]], tokenizer: Tokenizer | None
) -> RowCounts:
    """One pass over the files; tokens and languages are counted for the first rows only."""
    counts, licence = RowCounts(), licences(teachers)
    looked_at = next(iter(splits))
    for split, path in splits.items():
        counts.rows[split] = 0
        for number, row in enumerate(read_rows(path)):
            group = row["grounding"] or row["domain"]
            counts.rows[split] += 1
            place = row["family"], row["source"]
            counts.sources[*place, licence(*place)] += 1
            counts.cells[group, row["difficulty"]] += 1
            texts = {"prompt": row["prompt"], "response": response_of(row) or ""}
            for part, text in texts.items():
                counts.lengths[f"{part}, characters"][len(text)] += 1
            if split != looked_at:
                continue
            if len(counts.samples[group]) < SAMPLES:
                counts.samples[group].append(row)
            if number >= LOOKED_AT:
                continue
            counts.languages[language_of(row["prompt"]) or ""] += 1
            if tokenizer is not None:
                for part, tokens in (("prompt", prompt_tokens), ("response", response_tokens)):
                    counts.lengths[f"{part}, tokens"][len(tokens(tokenizer, texts[part]))] += 1
    return counts


def licences(teachers: Sequence[Mapping[str, Any]]) -> Callable[[str, str], str]:
    """A function from (family, file) to the licence of their source in the dataset teacher's
    tables, at any depth; `not stated` where the recipe has none."""
    sources = [source for source in _dataset_sources(teachers) if source.get("licence")]

    @cache
    def licence(family: str, file: str) -> str:
        if file == "procedural":
            return OWN_LICENCE
        for source in sources:
            if matches(source["path"], file) and source.get("family") in ("", None, family):
                return str(source["licence"])
        return "not stated"

    return licence


def _dataset_sources(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        yield from value.get("sources", ())
        value = [inner for key, inner in value.items() if key != "sources"]
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _dataset_sources(inner)


def quantile(lengths: Counter[int], share: float) -> int:
    """The smallest length that at least `share` of all do not exceed."""
    seen, least = 0, max(1, math.ceil(share * lengths.total()))
    for length in sorted(lengths):
        seen += lengths[length]
        if seen >= least:
            return length
    return 0
