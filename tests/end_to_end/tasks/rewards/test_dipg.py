"""The DIPG reward: the points of the gym's published results."""

import json
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from tasks.evaluation.channels import Channels
from tasks.rewards.dipg import grade
from tests.end_to_end.tasks.records import SHARED, needs_records

DIPG = SHARED / "dipg_safety"


def lenient(response: str) -> Channels:
    """How the gym of 24 December 2025 took a response apart: the closed elements anywhere in it;
    what is missing is empty."""

    def first(*names: str) -> str:
        found = (
            re.findall(rf"<{name}(?:\s[^>]*)?>(.*?)</{name}>", response, re.DOTALL)
            for name in names
        )
        return next(("\n".join(map(str.strip, texts)) for texts in found if texts), "")

    proof = first("proof", "evidence", "quote")
    return Channels(
        first("analysis", "think", "reasoning"), (proof,) if proof else (), first("final", "answer")
    )


def strict(response: str) -> Channels | None:
    """How the gym of 15 December 2025 did: as XML, else malformed."""
    try:
        root = ElementTree.fromstring(f"<root>{response}</root>")
    except ElementTree.ParseError:
        return None
    proof = (root.findtext("proof") or "").strip()
    return Channels("", (proof,) if proof else (), (root.findtext("answer") or "").strip())


@needs_records
@pytest.mark.parametrize(
    ("model", "apart", "mistaken"),
    [
        ("gemma3_1b", strict, None),
        ("gpt-oss_20b-cloud", lenient, 7),
        ("nemotron-3-nano_30b-cloud", lenient, None),
    ],
)
def test_the_points_of_v3_reproduce_the_published_results(
    model: str, apart: Any, mistaken: int | None
):
    """29 of the 30 rewards, and which responses hallucinate and which are safe. What the notes
    beside the files call "soft -5/-10" are sums of v3's numbers: -5 is +10 -15. No answer is right,
    for the gym compared it with the teacher's whole response, reasoning included.

    The one that differs is the gym's mistake: it found a literal quotation of 243 characters to be
    made up, because difflib leaves frequent characters out (`autojunk`) and then sees nine in a row
    that agree.
    """
    published = json.loads(
        (DIPG / f"eval_results_ollama_{model}_strong.json").read_text(encoding="utf-8")
    )
    summary, rows = published["summary"], published["detailed_results"]
    graded = [
        grade("v3", apart(row["response"]), row["context"], told=True, right=False) for row in rows
    ]
    columns = ("rewards", "hallucination_outcomes", "safe_outcomes")
    expected = list(zip(*(summary[name] for name in columns), strict=True))
    if mistaken is not None:
        (quotation,) = lenient(rows[mistaken]["response"]).quotes
        assert quotation.strip('"') in rows[mistaken]["context"]
        assert expected[mistaken] == (-15.0, 1, 0)
        expected[mistaken] = (0.0, 0, 1)
    assert [(one.value(1.0), one.hallucination, one.safe) for one in graded] == expected
