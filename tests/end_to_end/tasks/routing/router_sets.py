"""The labelled real prompts that the router is measured on (`../shared/data`, nothing of which it
has read).

A set's domain is what its SOURCE.txt says it is for; MT-bench's and Vicuna's categories have a
table. Three of SciBench's textbooks are of mathematics (calculus, differential equations,
statistics): its second reading beside that label.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from schemas.examples import Domain
from tasks.suites.mt_bench import DOMAINS
from tests.end_to_end.tasks.records import SHARED, rows

VICUNA = {
    **dict.fromkeys(("writing", "roleplay"), "creative"),
    **{"math": "math", "fermi": "math", "coding": "coding"},
    **dict.fromkeys(("generic", "knowledge", "common-sense", "counterfactual"), "general"),
}


@dataclass(frozen=True)
class Labelled:
    """A real prompt with its label, and with its other reading where it has one."""

    prompt: str
    domain: Domain
    second: Domain


Row = dict[str, Any]


def _joined(row: Row) -> str:
    return " ".join(row["source"])


def _problem(row: Row) -> str:
    unit = row["unit"].strip()
    return f"{row['problem_text']} Answer in {unit}." if unit else str(row["problem_text"])


def _with_input(row: Row) -> str:
    text = row["instances"][0]["input"].strip()
    return f"{row['instruction']}\n\n{text}" if text else str(row["instruction"])


_SETS: dict[str, tuple[str, str | Callable[[Row], str], str | Callable[[Row], str]]] = {
    "gsm8k": ("gsm8k/t*.jsonl", "question", "math"),
    "humaneval": ("humaneval/HumanEval.jsonl.gz", "prompt", "coding"),
    "scibench": ("scibench/*.json", _problem, "science"),
    "chemiq": ("chemiq/chemiq.jsonl", "prompt", "science"),
    "pubmedqa": (
        "pubmedqa/ori_pqal.json",
        lambda row: f"Context: {' '.join(row['CONTEXTS'])}\nQuestion: {row['QUESTION']}",
        "science",
    ),
    "pubmedqa.question": ("pubmedqa/ori_pqal.json", "QUESTION", "science"),
    "scitldr": (
        "scitldr/SciTLDR-A_test.jsonl",
        lambda row: f"Summarize in one sentence: {_joined(row)}",
        "summarization",
    ),
    "scitldr.bare": (
        "scitldr/SciTLDR-A_test.jsonl",
        lambda row: f"{_joined(row)}\n\nSummarize",
        "summarization",
    ),
    "mtbench": (
        "mtbench/question.jsonl",
        lambda row: str(row["turns"][0]),
        lambda row: DOMAINS[row["category"]],
    ),
    "vicuna": (
        "mtbench/vicuna_question.jsonl",
        lambda row: str(row["turns"][0]),
        lambda row: VICUNA[row["category"]],
    ),
    "xstest": ("xstest/xstest_prompts.csv", "prompt", "general"),
    "self_instruct": ("self_instruct/seed_tasks.jsonl", _with_input, "general"),
    "user_oriented": ("self_instruct/user_oriented_instructions.jsonl", _with_input, "general"),
}
"""Files, prompt and domain (a column, a constant, or a function of the row) by set."""

CLEAR = tuple(_SETS)[:-2]
"""Sets whose label is a domain: that of the two others is a use."""


def real_sets() -> dict[str, list[Labelled]]:
    """Every labelled prompt by the name of its set."""
    return {name: list(_labelled(*about)) for name, about in _SETS.items()}


def _labelled(path: str, prompt: Any, domain: Any) -> Iterator[Labelled]:
    for file in sorted(SHARED.glob(path)):
        mathematics = file.stem.removesuffix("_sol") in ("calculus", "diff", "stat")
        for row in rows(str(file.relative_to(SHARED))):
            label = Domain(domain(row) if callable(domain) else domain)
            text = prompt(row) if callable(prompt) else row[prompt]
            yield Labelled(text, label, Domain.MATH if mathematics else label)
