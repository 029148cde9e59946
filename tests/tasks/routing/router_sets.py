"""The labelled real prompts that the router is measured on (`../shared/data`, nothing of which it
has read).

A set's domain is what its SOURCE.txt says it is for; MT-bench's and Vicuna's categories have a
table. Two sets have a second reading beside that label: three of SciBench's textbooks are of
mathematics (calculus, differential equations, statistics), and self-instruct's labels in the recipe
open_data (classification tasks general, all other seed tasks creative, every user's instruction
general) name a use, no domain: its second reading goes by the app that an instruction was written
for.
"""

import csv
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.examples import Domain

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"

MTBENCH = {
    **dict.fromkeys(("writing", "roleplay"), "creative"),
    **dict.fromkeys(("math",), "math"),
    **dict.fromkeys(("coding",), "coding"),
    **dict.fromkeys(("stem",), "science"),
    **dict.fromkeys(("extraction",), "summarization"),
    **dict.fromkeys(("reasoning", "humanities"), "general"),
}
"""As in flows/recipes/open_data.toml."""

VICUNA = {
    **dict.fromkeys(("writing", "roleplay"), "creative"),
    **dict.fromkeys(("math", "fermi"), "math"),
    **dict.fromkeys(("coding",), "coding"),
    **dict.fromkeys(("generic", "knowledge", "common-sense", "counterfactual"), "general"),
}

APPS = {
    **dict.fromkeys(
        (
            "StackOverflow",
            "Leetcode",
            "GeeksforGeeks",
            "w3schools",
            "Github",
            "Markdown",
            "MS Excel",
        ),
        "coding",
    ),
    **dict.fromkeys(("Google Sheet", "Google Sheets"), "coding"),
    **dict.fromkeys(("Wolfram alpha", "(Wolfram alpha)?", "Overleaf"), "math"),
    **dict.fromkeys(("Semantic Scholar", "Explainpaper", "Google Meet"), "summarization"),
    **dict.fromkeys(
        ("Gmail", "Twitter", "Blogger", "Instagram", "Facebook", "you.com (YouWrite)", "LinkedIn"),
        "creative",
    ),
    **dict.fromkeys(("National Geographic",), "science"),
}
"""Domain by the app that a user-oriented instruction was written for; apps that are not named are
general. Decided from the names alone."""


@dataclass(frozen=True)
class Labelled:
    """A real prompt with its label, and with its other reading where it has one."""

    prompt: str
    domain: Domain
    second: Domain


CLEAR = (
    "gsm8k",
    "humaneval",
    "scibench",
    "chemiq",
    "pubmedqa",
    "pubmedqa.question",
    "scitldr",
    "scitldr.bare",
    "mtbench",
    "vicuna",
    "xstest",
)
"""Sets whose label is a domain."""

NOISY = ("self_instruct", "user_oriented")


def real_sets(data: Path = SHARED) -> dict[str, list[Labelled]]:
    """Every labelled prompt by the name of its set."""
    return {name: list(_SETS[name](data)) for name in (*CLEAR, *NOISY)}


def _rows(file: Path) -> list[dict[str, Any]]:
    raw = file.read_bytes()
    return [
        json.loads(line)
        for line in (gzip.decompress(raw) if file.suffix == ".gz" else raw).splitlines()
    ]


def _labelled(prompt: str, domain: str, second: str | None = None) -> Labelled:
    return Labelled(prompt, Domain(domain), Domain(second or domain))


def _gsm8k(data: Path) -> Iterator[Labelled]:
    for name in ("train_first1000.jsonl", "test.jsonl"):
        yield from (_labelled(row["question"], "math") for row in _rows(data / "gsm8k" / name))


def _humaneval(data: Path) -> Iterator[Labelled]:
    yield from (
        _labelled(row["prompt"], "coding") for row in _rows(data / "humaneval/HumanEval.jsonl.gz")
    )


def _scibench(data: Path) -> Iterator[Labelled]:
    for file in sorted((data / "scibench").glob("*.json")):
        second = "math" if file.stem.removesuffix("_sol") in ("calculus", "diff", "stat") else None
        for row in json.loads(file.read_text(encoding="utf-8")):
            unit = f" Answer in {row['unit'].strip()}." if row["unit"].strip() else ""
            yield _labelled(row["problem_text"] + unit, "science", second)


def _chemiq(data: Path) -> Iterator[Labelled]:
    yield from (_labelled(row["prompt"], "science") for row in _rows(data / "chemiq/chemiq.jsonl"))


def _pubmedqa(data: Path) -> Iterator[Labelled]:
    for row in json.loads((data / "pubmedqa/ori_pqal.json").read_text(encoding="utf-8")).values():
        yield _labelled(
            f"Context: {' '.join(row['CONTEXTS'])}\nQuestion: {row['QUESTION']}", "science"
        )


def _pubmedqa_question(data: Path) -> Iterator[Labelled]:
    for row in json.loads((data / "pubmedqa/ori_pqal.json").read_text(encoding="utf-8")).values():
        yield _labelled(row["QUESTION"], "science")


def _scitldr(data: Path) -> Iterator[Labelled]:
    for row in _rows(data / "scitldr/SciTLDR-A_test.jsonl"):
        yield _labelled(f"Summarize in one sentence: {' '.join(row['source'])}", "summarization")


def _scitldr_bare(data: Path) -> Iterator[Labelled]:
    for row in _rows(data / "scitldr/SciTLDR-A_test.jsonl"):
        yield _labelled(f"{' '.join(row['source'])}\n\nSummarize", "summarization")


def _mtbench(data: Path) -> Iterator[Labelled]:
    yield from (
        _labelled(row["turns"][0], MTBENCH[row["category"]])
        for row in _rows(data / "mtbench/question.jsonl")
    )


def _vicuna(data: Path) -> Iterator[Labelled]:
    yield from (
        _labelled(row["turns"][0], VICUNA[row["category"]])
        for row in _rows(data / "mtbench/vicuna_question.jsonl")
    )


def _xstest(data: Path) -> Iterator[Labelled]:
    with (data / "xstest/xstest_prompts.csv").open(encoding="utf-8", newline="") as rows:
        yield from (_labelled(row["prompt"], "general") for row in csv.DictReader(rows))


def _with_input(row: dict[str, Any]) -> str:
    text = row["instances"][0]["input"].strip()
    return f"{row['instruction']}\n\n{text}" if text else row["instruction"]


def _self_instruct(data: Path) -> Iterator[Labelled]:
    for row in _rows(data / "self_instruct/seed_tasks.jsonl"):
        yield _labelled(_with_input(row), "general" if row["is_classification"] else "creative")


def _user_oriented(data: Path) -> Iterator[Labelled]:
    for row in _rows(data / "self_instruct/user_oriented_instructions.jsonl"):
        yield _labelled(_with_input(row), "general", APPS.get(row["motivation_app"], "general"))


_SETS = {
    "gsm8k": _gsm8k,
    "humaneval": _humaneval,
    "scibench": _scibench,
    "chemiq": _chemiq,
    "pubmedqa": _pubmedqa,
    "pubmedqa.question": _pubmedqa_question,
    "scitldr": _scitldr,
    "scitldr.bare": _scitldr_bare,
    "mtbench": _mtbench,
    "vicuna": _vicuna,
    "xstest": _xstest,
    "self_instruct": _self_instruct,
    "user_oriented": _user_oriented,
}
