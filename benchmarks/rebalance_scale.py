"""Deduplication and decontamination of synthetic rows: ours beside datatrove, text-dedup, and datasets with datasketch.

    python -m benchmarks.rebalance_scale SCRATCH [--rounds 2] [--rows 50000] [--big 1000000] [--only NAME,...]

Rows are made in SCRATCH (deterministic; of each 100 five are exact copies and five have one word replaced; of 1,000 two give one of 1,000
evaluation items away) and removed after. All tools get the same rows and take turns within a round, each as a process of its own that may
use two more, in an empty directory; peers live in environments below SCRATCH, made by the first call. Then ours once on `--big` rows.

rows/s      of the whole process, from its start to its end: reading, deciding, writing what is kept
ratio       a tool's seconds to ours of the same round: above 1 ours is ahead
CPU         processor seconds of the process and its children
memory      the highest resident size of the whole process tree, pages that its processes share counted once for each
exact, near recall: of the planted copies those of which not both are kept; leaks: of those, what is dropped
precision   of what is dropped, what was a copy, had one, or was a leak; lost: rows dropped that nothing was done to

Medians over the rounds (lowest to highest).
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from benchmarks.side_by_side import installed, machine, resident, spread
from schemas.examples import Domain, prompt_id

ROOT = Path(__file__).resolve().parent.parent
INSTALLS = {
    "datatrove": ("datatrove[processing,io]==0.10.1", "spacy==3.8.18", "numpy==2.4.6"),
    "text-dedup": ("text-dedup==0.4.0", "datasets==5.2.0", "numpy==2.4.6"),
    "datasketch": ("datasets==5.2.0", "datasketch==2.0.0", "xxhash==4.1.0", "numpy==2.4.6"),
}
NOT_EQUAL = """\
Not equal: text-dedup has no decontamination, so it does less. datatrove's bands are 14 of 8 (its defaults, a threshold of 0.72), the others
have a threshold of 0.7, and its processes are forked, for by default each would import spaCy anew; its decontamination drops any 13-gram in
common, datasketch's any 8-gram, ours what 8-grams cover and more (`tasks.data.cleaning`). Two workers each; Lyceum's index and datasketch's
are one process. The start of the processes is in the time (ours: Numba and SciPy), and weighs less on more rows. text-dedup 0.4.1 needs
Python 3.12; 0.4.0 is the newest for 3.11."""
ITEMS = 1000
PLAIN, EXACT, NEAR, LEAK = range(4)
SHARDS = 4


def make(directory: Path, rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Write `rows-*.jsonl` and `items.json`; returns each row's kind, and the row that a copy is of."""
    rng = random.Random(seed)
    draw = np.random.default_rng(seed)
    letters = list("abcdefghijklmnopqrstuvwxyz")
    vocabulary = np.array(
        sorted({"".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(30_000)}), object
    )
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
        record: dict[str, object] = {
            **{
                "id": prompt_id(prompt),
                "prompt": prompt,
                "domain": Domain.MATH,
                "answer": "1",
                "check": "exact",
                "tolerance": None,
            },
            **{
                "tests": None,
                "code_prefix": "",
                "constraints": [],
                "difficulty": 1 + line % 5,
                "pass_rate": None,
                "family": "synthetic",
            },
            **{
                "source": "synthetic",
                "line": line,
                "context": None,
                "grounding": None,
                "reasoning": f"{line} {prompt[:200]}",
            },
        }
        files[line % SHARDS].write(orjson.dumps(record) + b"\n")
    for file in files:
        file.close()
    return kinds, of


@dataclass(frozen=True)
class Measured:
    """Seconds; of processors; bytes of the process tree at its largest; recall of exact copies, near copies and leaks; precision; plain
    rows lost."""

    rows: int
    seconds: float
    cpu: float
    peak: int
    recall: tuple[float, float, float]
    precision: float
    lost: int


def measure(
    name: str, python: Path, directory: Path, kinds: np.ndarray, of: np.ndarray
) -> Measured:
    """Run one tool and watch its process tree. Raises RuntimeError with the end of its output."""
    work = directory / "work"
    work.mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HF_DATASETS_OFFLINE": "1",
        "HF_HOME": str(work / "hf"),
    }
    began = time.perf_counter()
    log = work / "log"
    with log.open("wb") as out:
        command = [str(python), "-m", "benchmarks.rebalance_peers", name, str(directory), str(work)]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=out)
        peak, pid = 0, 0
        while not pid:
            peak = max(peak, resident(process.pid))
            time.sleep(0.1)
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(
            f"{name} exited with {process.returncode}: {log.read_text(encoding='utf-8')[-3000:]}"
        )
    kept = np.zeros(len(kinds), bool)
    kept[np.load(work / "kept.npy")] = True
    shutil.rmtree(work)
    copies = {kind: np.flatnonzero(kinds == kind) for kind in (EXACT, NEAR)}
    exact, near = (float((~(kept[rows] & kept[of[rows]])).mean()) for rows in copies.values())
    touched = np.union1d(of[of >= 0], np.flatnonzero(kinds))
    dropped = int((~kept).sum())
    lost = dropped - int((~kept[touched]).sum())
    recall = (exact, near, float((~kept[kinds == LEAK]).mean()))
    return Measured(
        len(kinds),
        seconds,
        usage.ru_utime + usage.ru_stime,
        peak,
        recall,
        1 - lost / max(1, dropped),
        lost,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--big", type=int, default=1_000_000, help="rows for ours alone; 0: none")
    parser.add_argument(
        "--only", default=",".join(INSTALLS), help="peers, with commas between them"
    )
    options = parser.parse_args()
    scratch: Path = options.scratch.absolute()
    peers = {name: installed(scratch, name, INSTALLS[name]) for name in options.only.split(",")}
    tools = {"Lyceum": Path(sys.executable), **peers}
    packages = ", ".join(one for name in peers for one in INSTALLS[name])
    print(
        machine("numpy", "numba", "scipy")
        + f"; load {os.getloadavg()[0]:.1f} before; {packages}\n",
        flush=True,
    )
    rows = options.rows
    measured: dict[str, list[Measured]] = {name: [] for name in tools}
    with made(scratch, rows) as (directory, kinds, of):
        for number in range(options.rounds):
            for name in list(tools)[:: 1 if number % 2 == 0 else -1]:
                measured[name].append(measure(name, tools[name], directory, kinds, of))
                sys.stderr.write(
                    f"round {number + 1}, {name}: {measured[name][-1].seconds:.1f} s\n"
                )
    print(
        "| | rows | rows/s | ratio | CPU s | memory MB | exact | near | leaks | precision | lost |"
    )
    print("|" + "---|" * 11)
    for name, each in measured.items():
        ratios = [
            one.seconds / ours.seconds for one, ours in zip(each, measured["Lyceum"], strict=True)
        ]
        print(
            f"| {name} | {line(each)[0]} | {line(each)[1]} | {spread(ratios, '.1f')} | {' | '.join(line(each)[2:])} |",
            flush=True,
        )
    if options.big:
        with made(scratch, options.big) as (directory, kinds, of):
            alone = line([measure("Lyceum", tools["Lyceum"], directory, kinds, of)])
        print(f"| Lyceum | {alone[0]} | {alone[1]} | | {' | '.join(alone[2:])} |")
    print(f"\n{NOT_EQUAL}")


def line(each: Sequence[Measured]) -> list[str]:
    """The cells of a tool but for its ratio."""
    worst = [min(one.recall[place] for one in each) for place in range(3)]
    return [
        f"{each[0].rows:,}",
        spread([one.rows / one.seconds for one in each], ",.0f"),
        spread([one.cpu for one in each], ",.0f"),
        f"{max(one.peak for one in each) / 1e6:,.0f}",
        *(f"{recall:.1%}" for recall in worst),
        f"{min(one.precision for one in each):.2%}",
        str(max(one.lost for one in each)),
    ]


@contextmanager
def made(scratch: Path, rows: int) -> Iterator[tuple[Path, np.ndarray, np.ndarray]]:
    """A directory with rows, and what is known of them (`make`)."""
    with tempfile.TemporaryDirectory(dir=scratch) as temporary:
        directory = Path(temporary)
        kinds, of = make(directory, rows)
        size = sum(file.stat().st_size for file in directory.glob("rows-*.jsonl"))
        sys.stderr.write(
            f"{rows:,} rows, {size / 1e6:,.0f} MB; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n"
        )
        yield directory, kinds, of


if __name__ == "__main__":
    main()
