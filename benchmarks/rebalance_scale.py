"""Deduplication and decontamination of a million synthetic rows (1 GB): ours beside datatrove, text-dedup, and datasets with datasketch.

    python -m benchmarks.rebalance_scale SCRATCH [--rows 1000000] [--peer-rows 50000] [--python datatrove=VENV/bin/python ...]

Rows are made in SCRATCH (deterministic; of each 100 five are exact copies and five have one word replaced; of 1,000 two give one of 1,000
evaluation items away) and removed after. Ours runs on all of them; then each tool that a Python was named for, and ours again, on the first
`--peer-rows` of the same kind. datasketch runs in this Python unless another is named. Each is a process of its own and may use two more.

`peak` is the highest resident size of the whole process tree, pages that its processes share counted once for each. Recall: of the planted
exact and near copies those of which not both are kept, of the leaks those that are dropped; `lost` are rows dropped that nothing was done
to. text-dedup has no decontamination, so its rate is for less work.

                  rows    rows/s   ratio  peak MB   exact    near   leaks  lost
ours           200,000    20,116     6.2      682  100.0%   99.9%  100.0%     0
datasketch     200,000     3,233     1.0    1,495  100.0%   99.8%  100.0%     0
ours         1,000,000    41,030    12.7      691  100.0%   99.9%  100.0%     0

Two quiet cores, load 1 before; datasketch 2.0.0, datasets 5.2. Some 5 s of ours is the start of three processes (Numba, SciPy). On cores
busy with four to six other processes, the slower peers beside us (datatrove 0.10.1, text-dedup 0.4.0):

ours            30,000     1,781     1.5      674  100.0%   99.8%  100.0%     0
datasketch      30,000     1,158     1.0      988  100.0%   99.7%  100.0%     0
datatrove       30,000       130     0.1      545  100.0%   99.9%  100.0%     0
text-dedup      30,000       384     0.3    1,419  100.0%  100.0%    1.5%     0
ours         1,000,000    23,415    20.2      681  100.0%   99.9%  100.0%     0
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
import psutil

from schemas.examples import Domain, prompt_id

ROOT = Path(__file__).resolve().parent.parent
ITEMS = 1000
PLAIN, EXACT, NEAR, LEAK = range(4)
KINDS = ("plain", "exact", "near", "leak")
SHARDS = 4


def make(directory: Path, rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Write `rows-*.jsonl` and `items.json`; returns each row's kind, and the row that a copy is of."""
    rng = random.Random(seed)
    draw = np.random.default_rng(seed)
    letters = list("abcdefghijklmnopqrstuvwxyz")
    vocabulary = np.array(sorted({"".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(30_000)}), object)
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
            prompt = rng.choice([item, item.upper(), f"{rng.choice(templates)} {item} {rng.choice(templates)}"])
        else:
            count = rng.randint(40, 120)
            body = text(pool[draw.integers(0, len(pool), count)])
            prompt = f"{rng.choice(templates)}: {body}" if rng.random() < 0.3 else body
            # Copies are of rows from all over the corpus.
            if len(recent) < 20_000:
                recent.append((line, prompt))
            else:
                recent[rng.randrange(20_000)] = (line, prompt)
        record = {
            **{"id": prompt_id(prompt), "prompt": prompt, "domain": Domain.MATH, "answer": "1", "check": "exact", "tolerance": None},
            **{"tests": None, "code_prefix": "", "constraints": [], "difficulty": 1 + line % 5, "pass_rate": None, "family": "synthetic"},
            **{"source": "synthetic", "line": line, "context": None, "grounding": None, "reasoning": f"{line} {prompt[:200]}"},
        }
        files[line % SHARDS].write(orjson.dumps(record) + b"\n")
    for file in files:
        file.close()
    return kinds, of


@dataclass(frozen=True)
class Measured:
    """Seconds; bytes of the process tree at its largest; recall of exact copies, near copies and leaks; plain rows lost."""

    rows: int
    seconds: float
    peak: int
    recall: tuple[float, float, float]
    lost: int


def measure(name: str, python: str, directory: Path, kinds: np.ndarray, of: np.ndarray) -> Measured:
    """Run one way and watch its process tree. Raises RuntimeError with the end of its output."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(directory / "hf")}
    began = time.perf_counter()
    log = directory / f"{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [python, "-m", "benchmarks.rebalance_peers", name, str(directory)], cwd=ROOT, env=environment, stdout=out, stderr=out
        )
        peak = 0
        while process.poll() is None:
            peak = max(peak, _resident(process.pid))
            time.sleep(0.1)
    seconds = time.perf_counter() - began
    if process.returncode:
        raise RuntimeError(f"{name} exited with {process.returncode}: {log.read_text(encoding='utf-8')[-3000:]}")
    kept = np.zeros(len(kinds), bool)
    kept[np.load(directory / f"kept-{name}.npy")] = True
    copies = {kind: np.flatnonzero(kinds == kind) for kind in (EXACT, NEAR)}
    found = tuple(float((~(kept[rows] & kept[of[rows]])).mean()) for rows in copies.values())
    touched = np.union1d(of[of >= 0], np.flatnonzero(kinds))
    lost = int((~kept).sum() - (~kept[touched]).sum())
    return Measured(len(kinds), seconds, peak, (*found, float((~kept[kinds == LEAK]).mean())), lost)


def _resident(pid: int) -> int:
    total = 0
    try:
        tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in tree:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--peer-rows", type=int, default=50_000)
    parser.add_argument("--python", action="append", default=[], metavar="NAME=PYTHON", help="a tool's own Python")
    options = parser.parse_args()
    pythons = {"datasketch": sys.executable, **dict(given.split("=", 1) for given in options.python)}
    results: list[tuple[str, Measured]] = []
    for rows, names in ((options.peer_rows, ["ours", *pythons]), (options.rows, ["ours"])):
        directory = options.scratch / f"rows-{rows}"
        directory.mkdir(parents=True)
        try:
            kinds, of = make(directory, rows)
            size = sum(file.stat().st_size for file in directory.glob("rows-*.jsonl"))
            print(f"{rows:,} rows, {size / 1e6:,.0f} MB; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
            for name in names:
                measured = measure(name, pythons.get(name, sys.executable), directory, kinds, of)
                results.append((name, measured))
                print(f"  {name}: {measured.seconds:.1f} s", flush=True)
        finally:
            shutil.rmtree(directory)
    best = max(measured.rows / measured.seconds for name, measured in results if name != "ours")
    print(f"\n{'':<12}{'rows':>10}{'rows/s':>10}{'ratio':>8}{'peak MB':>9}{'exact':>8}{'near':>8}{'leaks':>8}{'lost':>6}")
    for name, measured in results:
        rate = measured.rows / measured.seconds
        recall = "".join(f"{each:>8.1%}" for each in measured.recall)
        print(f"{name:<12}{measured.rows:>10,}{rate:>10,.0f}{rate / best:>8.1f}{measured.peak / 1e6:>9,.0f}{recall}{measured.lost:>6}")


if __name__ == "__main__":
    main()
