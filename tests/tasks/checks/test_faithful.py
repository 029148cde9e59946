"""Check `faithful`: summaries that say what their source says pass, others do not. Measured on
SciTLDR."""

from tasks.checks.faithful import agrees, fragments, unfaithful
from tests.tasks.prompts import prompt

SOURCE = (
    "The Amsel river rose by 3.5 metres in March 2021, and the bridge at Oberdorf was closed for"
    " two weeks. Engineers of the Swiss railway repaired its northern pillar with 1,200 tonnes of"
    " concrete. Long short term memory of older floods helped them. Nobody was hurt."
)


FAITHFUL = (
    "A flood of the Amsel closed the Oberdorf bridge for 2 weeks; engineers repaired a pillar.",
    "The river rose 3.5 metres; engineers repaired the bridge with 1200 tonnes of concrete.",
    "Engineers repaired the closed bridge; LSTM of floods helped them.",
)
UNFAITHFUL = {
    "A flood of the Amsel closed the bridge for 3 weeks.": "the number 3 is not in the source",
    "Engineers repaired the Unterdorf bridge over the river.": "the name 'Unterdorf' is not in",
    "Engineers of the DB repaired the bridge with concrete.": "the name 'DB' is not in the source",
    "A tunnel beneath mountains collapsed after years of neglect.": "of its content words are in",
    "The bridge was closed.": "4 words, fewer than 5",
    SOURCE: "words, more than 50% of the source's",
    SOURCE.split(". ")[1] + ".": "copied: 1.00 of at most 0.8",
}


def test_a_summary_in_other_words_passes_and_an_unfaithful_one_fails_for_its_reason() -> None:
    assert [unfaithful(summary, SOURCE) for summary in FAITHFUL] == [""] * 3
    for summary, problem in UNFAITHFUL.items():
        assert problem in unfaithful(summary, SOURCE)


def test_the_source_is_the_context_or_else_the_prompt() -> None:
    asked = prompt("", "faithful", prompt=f"Summarise: {SOURCE}")
    summary = "Swiss engineers repaired the pillar of the closed bridge."
    assert agrees(asked, summary).ok
    other = {"context": "Something else entirely, about birds and bees in a meadow, sings."}
    assert not agrees(asked.model_copy(update=other), summary).ok


def test_fragments_are_those_of_newsroom() -> None:
    """Greedy, longest first at each word: [a b] [c] of `a b x c` in `a b c a`, and nothing for
    x."""
    assert fragments(list("abxc"), list("abca")) == [2, 1]
    assert fragments(list("bcab"), list("abca")) == [3, 1]
