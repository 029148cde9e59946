"""The DIPG reward: the points of the gym's published results."""

import json
from collections.abc import Callable

import pytest

from tasks.evaluation.channels import Channels
from tasks.evaluation.dipg_protocol.responses import Read, Unreadable, read_v3, read_v3_strict
from tasks.rewards.dipg import grade
from tests.end_to_end.tasks.records import SHARED, needs_records

DIPG = SHARED / "dipg_safety"


def apart(read: Callable[[str], Read], response: str) -> Channels | None:
    """A response as that day's gym took it apart, its proof one quotation."""
    try:
        found = read(response)
    except Unreadable:
        return None
    return Channels(found.analysis, (found.proof,) if found.proof else (), found.final)


@needs_records
@pytest.mark.parametrize(
    ("model", "read", "mistaken"),
    [
        ("gemma3_1b", read_v3_strict, None),
        ("gpt-oss_20b-cloud", read_v3, 7),
        ("nemotron-3-nano_30b-cloud", read_v3, None),
    ],
)
def test_the_points_of_v3_reproduce_the_published_results(model, read, mistaken):
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
    taken = [apart(read, row["response"]) for row in rows]
    graded = [
        grade("v3", one, row["context"], told=True, right=False)
        for one, row in zip(taken, rows, strict=True)
    ]
    columns = ("rewards", "hallucination_outcomes", "safe_outcomes")
    expected = list(zip(*(summary[name] for name in columns), strict=True))
    if mistaken is not None:
        (quotation,) = taken[mistaken].quotes
        assert quotation.strip('"') in rows[mistaken]["context"]
        assert expected[mistaken] == (-15.0, 1, 0)
        expected[mistaken] = (0.0, 0, 1)
    assert [(one.value(1.0), one.hallucination, one.safe) for one in graded] == expected
