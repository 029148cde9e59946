"""Rows for tests of cleaning: distinct texts, and copies of them that are exact, nearly so, or give
an evaluation item away."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from schemas.examples import Domain, Example, Prompt, prompt_id
from tasks.cleaning.clean import clean
from tasks.cleaning.cluster import clean_on_cluster
from tasks.cleaning.rules import Contamination, EvaluationItems, NearDuplicates, Rules

WORDS = [
    f"{start}{middle}{end}"
    for start in ("ba", "ke", "li", "mo", "su")
    for middle in ("ra", "ne", "ti")
    for end in ("x", "lo", "v")
]


def text(rng: random.Random, words: int = 40) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def row(prompt, *, solved=True, difficulty=1, source="a.jsonl", line=1, reasoning="so") -> Prompt:
    fields = {"id": prompt_id(prompt), "prompt": prompt, "domain": Domain.MATH, "family": "f"}
    fields |= {"difficulty": difficulty, "source": source, "line": line}
    return Example(**fields, answer="1", reasoning=reasoning) if solved else Prompt(**fields)


class TooLong:
    """A filter: prompts with more characters than this."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __call__(self, row: dict[str, Any]) -> tuple[str, str] | None:
        length = len(row["prompt"])
        return ("too_long", f"{length}\ncharacters") if length > self.most else None


def corpus(seed: int, distinct: int = 120) -> tuple[list[Prompt], list[tuple[str, str]]]:
    """Rows (distinct ones, exact copies in other case or with another trace, near copies, and leaks
    of items, shuffled), and the items."""
    rng = random.Random(seed)
    texts = [text(rng, rng.randint(12, 60)) for _ in range(distinct)]
    items = [(str(at), text(rng, rng.randint(4, 40))) for at in range(30)]
    rows = [row(one, difficulty=rng.randint(1, 5), line=at + 1) for at, one in enumerate(texts)]
    for one in rng.sample(texts, distinct // 5):
        copy = rng.choice([one.upper(), one])
        rows.append(row(copy, reasoning=text(rng, 3), solved=rng.random() < 0.5))
    for one in rng.choices(texts, k=distinct // 2):
        words = one.split()
        words[rng.randrange(len(words))] = rng.choice(WORDS)
        rows.append(row(" ".join(words)))
    for _, item in rng.sample(items, 10):
        rows.append(row(rng.choice([item, item.upper() + "!", f"please answer {item} thank you"])))
    rng.shuffle(rows)
    return rows, items


def write(rows: Sequence[Prompt], directory: Path, shards: int) -> list[Path]:
    """The rows in so many files, in turns."""
    directory.mkdir(parents=True)
    files = [directory / f"{shard}.jsonl" for shard in range(shards)]
    for shard, file in enumerate(files):
        file.write_text("".join(one.model_dump_json() + "\n" for one in rows[shard::shards]))
    return files


def cleaned(files, scratch, items=(), *, partitions=0, workers=1, progress=None, **changes):
    """`clean`, or with partitions what a cluster does; `changes`: rules of this test."""
    rules = replace(Rules(NearDuplicates(), Contamination(), 0.1, 0.2, 0, ()), **changes)
    asked = files, [EvaluationItems("items", items)] if items else [], rules
    if partitions:
        return clean_on_cluster(*asked, scratch=scratch, partitions=partitions)
    return clean(*asked, scratch=scratch, workers=workers, progress=progress or (lambda *_: None))
