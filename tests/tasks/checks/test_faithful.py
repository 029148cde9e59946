"""Check `faithful`: summaries that say what their source says pass, others do not. Measured on
SciTLDR."""

import pytest

from schemas.examples import Domain, Prompt
from tasks.checks.faithful import agrees, fragments, unfaithful

SOURCE = (
    "The Amsel river rose by 3.5 metres in March 2021, and the bridge at Oberdorf was closed for"
    " two weeks. Engineers of the Swiss railway repaired its northern pillar with 1,200 tonnes of"
    " concrete. Long short term memory of older floods helped them. Nobody was hurt."
)


@pytest.mark.parametrize(
    "summary",
    [
        (
            "A flood of the Amsel closed the Oberdorf bridge for 2 weeks until engineers repaired a"
            " pillar."
        ),
        (
            "After the river rose 3.5 metres, Swiss engineers repaired the bridge's pillar with"
            " 1200 tonnes of concrete."
        ),
        "Engineers repaired the closed bridge; LSTM of floods helped them.",
    ],
)
def test_a_summary_in_other_words_passes(summary: str) -> None:
    assert unfaithful(summary, SOURCE) == ""


@pytest.mark.parametrize(
    ("summary", "problem"),
    [
        (
            "A flood of the Amsel closed the bridge for 3 weeks.",
            "the number 3 is not in the source",
        ),
        (
            "Engineers repaired the Unterdorf bridge over the river.",
            "the name 'Unterdorf' is not in the source",
        ),
        (
            "Engineers of the DB repaired the bridge with concrete.",
            "the name 'DB' is not in the source",
        ),
        (
            "A tunnel beneath mountains collapsed after years of neglect.",
            "of its content words are in the source",
        ),
        ("The bridge was closed.", "4 words, fewer than 5"),
        (SOURCE, "words, more than 50% of the source's"),
        (SOURCE.split(". ")[1] + ".", "copied: 1.00 of at most 0.8"),
    ],
)
def test_an_unfaithful_summary_is_rejected_for_its_reason(summary: str, problem: str) -> None:
    assert problem in unfaithful(summary, SOURCE)


def test_the_source_is_the_context_or_else_the_prompt() -> None:
    prompt = Prompt(
        id="p1",
        prompt=f"Summarise: {SOURCE}",
        domain=Domain.SUMMARIZATION,
        check="faithful",
        source="test",
    )
    summary = "Swiss engineers repaired the pillar of the closed bridge."
    assert agrees(prompt, summary).ok
    assert not agrees(
        prompt.model_copy(
            update={"context": "Something else entirely, about birds and bees in a meadow, sings."}
        ),
        summary,
    ).ok


def test_fragments_are_those_of_newsroom() -> None:
    """Greedy, longest first at each word: [a b] [c] of `a b x c` in `a b c a`, and nothing for
    x."""
    assert fragments(list("abxc"), list("abca")) == [2, 1]
    assert fragments(list("bcab"), list("abca")) == [3, 1]
