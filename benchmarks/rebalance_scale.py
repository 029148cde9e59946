"""Deduplication and decontamination of synthetic rows: ours beside datatrove, text-dedup, and
datasets with datasketch.

    python -m benchmarks.rebalance_scale SCRATCH [--rounds 2] [--rows 50000] [--big 1000000]

Rows are made in SCRATCH (deterministic; of each 100 five are exact copies and five have one word
replaced; of 1,000 two give one of 1,000 evaluation items away) and removed after. All tools get the
same rows, each as a process of its own that may use two more, in an empty directory; peers live in
environments below SCRATCH, made by the first call. Then ours once on `--big` rows.

rows/s      of the whole process: reading, deciding, writing what is kept
ratio       a tool's seconds to ours of the same round
CPU         processor seconds of the process and its children
memory      the highest resident size of the whole process tree
exact, near recall: of the planted copies those of which not both are kept; leaks: of those, what is
            dropped
precision   of what is dropped, what was a copy, had one, or was a leak
lost        rows dropped that nothing was done to
"""

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks import paired
from benchmarks.paired import ROOT, heading, ratios, row, spread
from schemas.examples import Domain, prompt_id

OURS = "Lyceum"
INSTALLS = {
    "datatrove": ("datatrove[processing,io]==0.10.1", "spacy==3.8.18", "numpy==2.4.6"),
    "text-dedup": ("text-dedup==0.4.0", "datasets==5.2.0", "numpy==2.4.6"),
    "datasketch": ("datasets==5.2.0", "datasketch==2.0.0", "xxhash==4.1.0", "numpy==2.4.6"),
}
NOT_EQUAL = """
Not equal: text-dedup has no decontamination, so it does less. datatrove's bands are 14 of 8 (its
defaults, a threshold of 0.72), the others have a threshold of 0.7, and its processes are forked,
for by default each would import spaCy anew; its decontamination drops any 13-gram in common,
datasketch's any 8-gram, ours what 8-grams cover and more (`tasks.data.cleaning`). Two workers each;
Lyceum's index and datasketch's are one process. The start of the processes is in the time (ours:
Numba and SciPy), and weighs less on more rows. text-dedup 0.4.1 needs Python 3.12; 0.4.0 is the
newest for 3.11."""
ITEMS = 1000
PLAIN, EXACT, NEAR, LEAK = range(4)
SHARDS = 4
ROW: dict[str, Any] = {
    **{"domain": Domain.MATH, "answer": "1", "check": "exact", "tolerance": None, "tests": None},
    **{"code_prefix": "", "constraints": [], "pass_rate": None, "family": "synthetic"},
    **{"source": "synthetic", "context": None, "grounding": None},
}
"""What all rows have."""


def make(directory: Path, rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Write `rows-*.jsonl` and `items.json`; returns each row's kind, and the row that a copy is
    of."""
    rng = random.Random(seed)
    draw = np.random.default_rng(seed)
    letters = list("abcdefghijklmnopqrstuvwxyz")
    spelled = {"".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(30_000)}
    vocabulary = np.array(sorted(spelled), object)
    weights = 1 / np.arange(10, len(vocabulary) + 10)
    weights /= weights.sum()

    def text(words: np.ndarray) -> str:
        words = words.copy()
        words[0] = words[0].capitalize()
        words[12::13] += "."
        return " ".join(words)

    def words(count: int) -> np.ndarray:
        return vocabulary[draw.choice(len(vocabulary), count, p=weights)]

    templates = [" ".join(words(9)) for _ in range(20)]
    items = [text(words(rng.randint(20, 60))) for _ in range(ITEMS)]
    (directory / "items.json").write_bytes(orjson.dumps(items))
    kinds, of = np.zeros(rows, np.uint8), np.full(rows, -1)
    recent: list[tuple[int, str]] = []
    files = [(directory / f"rows-{shard}.jsonl").open("wb") for shard in range(SHARDS)]
    pool = words(2_000_000)
    for line in range(rows):
        chance = rng.random()
        if chance < 0.10 and recent:
            kinds[line] = EXACT if chance < 0.05 else NEAR
            of[line], prompt = recent[rng.randrange(len(recent))]
            if kinds[line] == NEAR:
                parts = prompt.split()
                parts[rng.randrange(len(parts))] = "replaced"
                prompt = " ".join(parts)
        elif chance < 0.102:
            kinds[line] = LEAK
            item = rng.choice(items)
            prompt = rng.choice(
                [item, item.upper(), f"{rng.choice(templates)} {item} {rng.choice(templates)}"]
            )
        else:
            count = rng.randint(40, 120)
            body = text(pool[draw.integers(0, len(pool), count)])
            prompt = f"{rng.choice(templates)}: {body}" if rng.random() < 0.3 else body
            # Copies are of rows from all over the corpus.
            if len(recent) < 20_000:
                recent.append((line, prompt))
            else:
                recent[rng.randrange(20_000)] = (line, prompt)
        record = {**ROW, "id": prompt_id(prompt), "prompt": prompt, "line": line}
        record |= {"difficulty": 1 + line % 5, "reasoning": f"{line} {prompt[:200]}"}
        files[line % SHARDS].write(orjson.dumps(record) + b"\n")
    for file in files:
        file.close()
    return kinds, of


@dataclass(frozen=True)
class Measured:
    """A tool's process; recall of exact copies, near copies and leaks; precision; plain rows
    lost."""

    rows: int
    process: paired.Watched
    recall: tuple[float, float, float]
    precision: float
    lost: int


@contextmanager
def made(scratch: Path, rows: int) -> Iterator[tuple[Path, np.ndarray, np.ndarray]]:
    """A directory with rows, and what is known of them (`make`)."""
    with tempfile.TemporaryDirectory(dir=scratch) as temporary:
        directory = Path(temporary)
        kinds, of = make(directory, rows)
        size = sum(file.stat().st_size for file in directory.glob("rows-*.jsonl"))
        paired.tell(f"{rows:,} rows, {size / 1e6:,.0f} MB")
        yield directory, kinds, of


def measure(
    name: str, python: Path, directory: Path, kinds: np.ndarray, of: np.ndarray, _: int = 0
) -> Measured:
    """Run one tool and watch its process tree."""
    work = directory / "work"
    work.mkdir()
    own = {"PYTHONPATH": str(ROOT), "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(work / "hf")}
    command = [str(python), "-m", "benchmarks.rebalance_peers", name, str(directory), str(work)]
    process = paired.watch(command, work / "log", cwd=ROOT, env={**os.environ, **own})
    remaining = np.zeros(len(kinds), bool)
    remaining[np.load(work / "kept.npy")] = True
    shutil.rmtree(work)
    copies = (np.flatnonzero(kinds == kind) for kind in (EXACT, NEAR))
    exact, near = (float((~(remaining[rows] & remaining[of[rows]])).mean()) for rows in copies)
    touched = np.union1d(of[of >= 0], np.flatnonzero(kinds))
    dropped = int((~remaining).sum())
    lost = dropped - int((~remaining[touched]).sum())
    recall = (exact, near, float((~remaining[kinds == LEAK]).mean()))
    return Measured(len(kinds), process, recall, 1 - lost / max(1, dropped), lost)


def show(name: str, each: Sequence[Measured], ours: Sequence[Measured]) -> None:
    """Print a tool's line."""
    walls = [one.process.wall for one in each]
    row(
        name,
        f"{each[0].rows:,}",
        spread([one.rows / one.process.wall for one in each], ",.0f"),
        spread(ratios(walls, (one.process.wall for one in ours)), ".1f"),
        spread([one.process.cpu for one in each], ",.0f"),
        f"{max(one.process.peak for one in each) / 1e6:,.0f}",
        *(f"{min(one.recall[place] for one in each):.1%}" for place in range(3)),
        f"{min(one.precision for one in each):.2%}",
        max(one.lost for one in each),
    )


def main() -> None:
    options = paired.parser(__doc__, rounds=2, scratch=True)
    options.add_argument("--rows", type=int, default=50_000)
    options.add_argument("--big", type=int, default=1_000_000, help="for ours alone; 0: none")
    options.add_argument("--only", default=",".join(INSTALLS), help="peers, with commas between")
    asked = options.parse_args()
    names = [name for name in asked.only.split(",") if name]
    if unknown := {*names} - {*INSTALLS}:
        options.error(f"--only: there is no {', '.join(unknown)}; there are {', '.join(INSTALLS)}")
    asked.scratch.mkdir(parents=True, exist_ok=True)
    tools = {OURS: Path(sys.executable)}
    tools |= {name: paired.installed(asked.scratch, name, INSTALLS[name]) for name in names}
    packages = [one for name in names for one in INSTALLS[name]]
    print("; ".join([paired.machine("numpy", "numba", "scipy"), *packages]))
    with made(asked.scratch, asked.rows) as data:
        turns = {name: partial(measure, name, python, *data) for name, python in tools.items()}
        found = paired.take_turns(turns, asked.rounds)
    units = ("rows", "rows/s", "ratio", "CPU s", "memory MB")
    heading("", *units, "exact", "near", "leaks", "precision", "lost")
    for name, each in found.items():
        show(name, each, found[OURS])
    if asked.big:
        with made(asked.scratch, asked.big) as data:
            alone = [measure(OURS, tools[OURS], *data)]
        show(OURS, alone, alone)
    print(NOT_EQUAL)


if __name__ == "__main__":
    main()
