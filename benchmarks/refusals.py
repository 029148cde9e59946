"""How well refusals are recognised: agreement with human labels of completions on XSTest, beside string matching and GPT-4.

    python -m benchmarks.refusals [DIRECTORY ...]           default: ../shared/data/xstest

A directory holds CSV files as github.com/paul-rottger/exaggerated-safety has them in `evaluation/automated_evaluation_labels`: the columns
prompt, completion, final_label (human) and one `*_label` more, whose name says whose it is. Files that differ in their last part alone
(`_gpteval`, `_streval`) are one model's. A label that names no class, for GPT-4 said something else, agrees with none.

The rules' words were chosen on Llama 2 and GPT-4 of that repository, and on Llama 3, 3.1 and GPT-4o mini of
github.com/mdazizulaman/XSTest-Replication-and-Extension, which labels more denials of what a question presumes as compliance. No completion
of Mistral's models was read, with their guarding prompt or without it; the file in ../shared was measured four times on the way.

Agreement is shown in the three classes, and whether a response complies or not, each with its 95 % Wilson interval and Cohen's kappa.
"""

import argparse
import csv
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from schemas.evaluation import Refusal
from tasks.evaluation.refusals import classify_refusal
from tasks.statistics.intervals import wilson

SHARED = Path(__file__).resolve().parents[2] / "shared/data/xstest"
CLASSES: dict[str, Refusal] = {"1": "complied", "2": "refused", "3": "partial"}
OURS = "tasks.evaluation.refusals"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="*", type=Path, default=[SHARED])
    for directory in parser.parse_args().directories:
        for model, verdicts in read(directory).items():
            show(model, verdicts)


def read(directory: Path) -> dict[str, dict[str, list[Refusal | None]]]:
    """Of each model whose completions a directory holds: judge -> verdicts, `human` and ours among them, in file order."""
    found: dict[str, dict[str, list[Refusal | None]]] = {}
    for file in sorted(directory.glob("*.csv")):
        with file.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
        if not rows or not rows[0].keys() >= {"prompt", "completion", "final_label"}:
            continue
        verdicts = found.setdefault(file.stem.rpartition("_")[0], {})
        if not verdicts:
            verdicts["human"] = [CLASSES[row["final_label"][0]] for row in rows]
            started = time.perf_counter()
            verdicts[OURS] = [classify_refusal(row["prompt"], row["completion"]) for row in rows]
            print(f"{file.stem}: {len(rows)} responses in {time.perf_counter() - started:.2f} s")
        for column in rows[0].keys() - {"final_label"}:
            if column.endswith("_label"):
                verdicts[column.removesuffix("_label")] = [CLASSES.get(row[column].strip()[:1]) for row in rows]
    return found


def agreement(human: Sequence[Refusal | None], judged: Sequence[Refusal | None], *, binary: bool = False) -> tuple[float, float]:
    """The part of the verdicts that agree, and Cohen's kappa; `binary`: of complied or not (then partial refusals are refusals)."""
    pairs = [tuple("refused" if binary and one == "partial" else one for one in pair) for pair in zip(human, judged, strict=True)]
    observed = sum(one == other for one, other in pairs) / len(pairs)
    ours, theirs = Counter(one for one, _ in pairs), Counter(other for _, other in pairs)
    chance = sum(count * theirs[name] for name, count in ours.items()) / len(pairs) ** 2
    return observed, (observed - chance) / (1 - chance)


def show(model: str, verdicts: dict[str, list[Refusal | None]]) -> None:
    """Print the table of a model, and the confusion matrix of our verdicts."""
    human = verdicts["human"]
    print(f"{model}: n = {len(human)}")
    print(f"  {'':16}{'three classes':>30}{'complied or not':>32}")
    for name in (OURS, *sorted(verdicts.keys() - {OURS, "human"})):
        cells = []
        for binary in (False, True):
            rate, kappa = agreement(human, verdicts[name], binary=binary)
            interval = wilson(round(rate * len(human)), len(human))
            cells.append(f"{rate:.3f} [{interval.low:.3f}, {interval.high:.3f}] kappa {kappa:.2f}")
        print(f"  {name:16}{cells[0]:>32}{cells[1]:>32}")
    counts = Counter(zip(human, verdicts[OURS], strict=True))
    print(f"  {'human | ours':16}" + "".join(f"{name:>10}" for name in CLASSES.values()))
    for one in CLASSES.values():
        print(f"  {one:16}" + "".join(f"{counts[one, other]:10}" for other in CLASSES.values()))


if __name__ == "__main__":
    main()
