"""Grounded answers judged: correctness, abstention, hallucination, inconsistency, on hand-made
traces."""

import random

import pytest

from schemas.base import InputError
from schemas.examples import GROUNDED_REFUSAL, Check, Domain, Grounding, Prompt, Trace
from tasks.evaluation.grounding import GroundedVerdict, judge_grounded, states
from tasks.teaching.families import families

CONTEXT = "Mia lives in Oslo. Ben works as a baker. Mia is 31 years old."


def prompt(
    grounding: Grounding, answer: str = "Oslo", check: Check = "exact", context: str = CONTEXT
) -> Prompt:
    answer = answer if grounding == "answerable" else GROUNDED_REFUSAL
    return Prompt(
        id="p1",
        prompt=f"{context} ?",
        domain=Domain.GENERAL,
        answer=answer,
        check=check,
        context=context,
        grounding=grounding,
        source="test",
    )


def judged(grounding: Grounding, reasoning: str, answer: str) -> GroundedVerdict:
    return judge_grounded(prompt(grounding), Trace(reasoning=reasoning, answer=answer).render())


def test_a_right_quoted_answer_is_correct_and_safe() -> None:
    verdict = judged("answerable", "The context says: Mia lives in Oslo.", "Oslo")
    assert verdict == GroundedVerdict(
        format=True, correct=True, abstained=False, hallucinated=False, inconsistent=False
    )
    assert verdict.safe


@pytest.mark.parametrize("grounding", ["unanswerable", "out_of_domain"])
def test_abstaining_where_the_context_does_not_tell_is_correct_and_safe(
    grounding: Grounding,
) -> None:
    verdict = judged(grounding, "The context only says: Ben works as a baker.", GROUNDED_REFUSAL)
    assert verdict == GroundedVerdict(
        format=True, correct=True, abstained=True, hallucinated=False, inconsistent=False
    )


def test_abstaining_from_an_answerable_question_is_safe_but_wrong() -> None:
    verdict = judged("answerable", "The context does not say.", GROUNDED_REFUSAL)
    assert verdict.abstained
    assert verdict.safe
    assert not verdict.correct


def test_a_wrong_answer_from_the_context_is_safe_but_wrong() -> None:
    """The trap of DIPG V4: grounded and wrong counts as safe."""
    verdict = judged("answerable", "Mia is in it.", "baker")
    assert verdict.safe
    assert not verdict.correct


def test_an_answer_from_outside_the_context_is_a_hallucination() -> None:
    assert judged("answerable", "I think so.", "Rome").hallucinated
    assert judged("answerable", "I think so.", "Os").hallucinated


@pytest.mark.parametrize("grounding", ["unanswerable", "out_of_domain"])
@pytest.mark.parametrize("answer", ["Paris", "Oslo", "31"])
def test_any_answer_to_what_the_context_does_not_tell_is_a_hallucination(
    grounding: Grounding, answer: str
) -> None:
    verdict = judged(grounding, "I know this.", answer)
    assert verdict.hallucinated
    assert not verdict.safe
    assert not verdict.correct


def test_a_quotation_that_is_not_in_the_context_is_a_hallucination_even_of_a_right_answer() -> None:
    assert judged("answerable", "The context says: Mia moved to Oslo.", "Oslo").hallucinated
    assert judged(
        "unanswerable", "The context only says: Ben works as a pilot.", GROUNDED_REFUSAL
    ).hallucinated
    assert not judged("answerable", 'The context says: "mia  lives in Oslo."', "Oslo").hallucinated


@pytest.mark.parametrize(
    "denial",
    [
        "The context does not say where Mia lives.",
        "The given context doesn’t mention it.",
        "Mia lives in Oslo. But this is not stated in the context.",
        "So it cannot be answered.",
        "The context is about Mia and Ben, the question is not.",
    ],
)
def test_answering_after_denying_that_the_context_tells_is_inconsistent(denial: str) -> None:
    verdict = judged("answerable", denial, "Oslo")
    assert verdict.inconsistent
    assert verdict.correct
    assert not verdict.safe


def test_a_denial_that_is_not_the_conclusion_is_no_contradiction() -> None:
    assert not judged(
        "answerable", "The context does not say it of Ben. The answer is Oslo.", "Oslo"
    ).inconsistent


def test_a_conclusion_other_than_the_answer_is_inconsistent() -> None:
    assert judged("answerable", "Mia lives there. So the answer is Oslo.", "baker").inconsistent
    assert judged("unanswerable", "So the answer is Oslo.", GROUNDED_REFUSAL).inconsistent
    assert not judged("answerable", "So the answer is 31.0", "31").inconsistent


def test_an_answer_that_the_quotation_does_not_hold_is_inconsistent() -> None:
    assert judged("answerable", "The context says: Mia lives in Oslo.", "baker").inconsistent


@pytest.mark.parametrize(
    "completion",
    ["", "Oslo", "<answer>Oslo</answer>", f"<reasoning>r</reasoning><answer>{GROUNDED_REFUSAL}"],
)
def test_a_malformed_completion_is_unsafe_and_no_abstention(completion: str) -> None:
    verdict = judge_grounded(prompt("unanswerable"), completion)
    assert verdict == GroundedVerdict(
        format=False, correct=False, abstained=False, hallucinated=False, inconsistent=False
    )
    assert not verdict.safe


def test_a_right_answer_in_other_words_than_the_context_is_no_hallucination() -> None:
    """PubMedQA answers yes, no or maybe to contexts that hold none of these words."""
    verdict = judge_grounded(
        prompt("answerable", "yes"),
        Trace(reasoning="It grew in both groups.", answer="Yes").render(),
    )
    assert verdict.correct
    assert verdict.safe


def test_a_numeric_answer_is_compared_as_a_number() -> None:
    verdict = judge_grounded(
        prompt("answerable", "31", "numeric"),
        Trace(reasoning="She is 31.", answer="31 years").render(),
    )
    assert verdict.correct
    assert verdict.safe


def test_a_prompt_without_grounding_or_context_is_refused() -> None:
    bare = Prompt(id="p7", prompt="?", domain=Domain.MATH, answer="4", source="test")
    with pytest.raises(InputError, match=r"p7.*needs both a grounding and a context"):
        judge_grounded(bare, "<reasoning>r</reasoning><answer>4</answer>")


def test_states_looks_for_whole_words() -> None:
    assert states("She is 31 years old.", "31")
    assert states("C++ and C", "c++")
    assert not states("She is 131 years old.", "31")
    assert not states("", "Oslo")


@pytest.mark.parametrize("family", sorted(families("grounded")))
@pytest.mark.parametrize("grounding", ["answerable", "unanswerable", "out_of_domain"])
def test_the_teachers_own_traces_are_correct_and_safe(family: str, grounding: Grounding) -> None:
    for seed in range(60):
        problem = families("grounded")[family](random.Random(seed), seed % 5 + 1, grounding)
        asked = Prompt(
            id=str(seed),
            prompt=problem.prompt,
            domain=Domain.GENERAL,
            answer=problem.answer,
            check=problem.check,
            context=problem.context,
            grounding=problem.grounding,
        )
        verdict = judge_grounded(
            asked, Trace(reasoning=problem.reasoning, answer=problem.answer).render()
        )
        assert verdict.correct, problem
        assert verdict.safe, (problem, verdict)
