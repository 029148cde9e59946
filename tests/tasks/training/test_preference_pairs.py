"""Preference pairs: chosen is verified, rejected is not, and every prompt without a pair is counted
with its reason."""

from operator import attrgetter
from types import SimpleNamespace

import pytest

from schemas.base import StageFailed
from schemas.examples import GROUNDED_REFUSAL, Constraint, Domain, Example, PreferencePair
from tasks.training.preference_pairs import check_samples, mine_pairs, require_pairs

EXAMPLE = Example(
    id="0" * 16,
    prompt="What is 2 + 2?",
    domain=Domain.MATH,
    answer="4",
    check="numeric",
    reasoning="2 plus 2 makes 4",
    difficulty=1,
)


FREE = EXAMPLE.model_copy(update={"check": "none"})
"""The same question, whose answer cannot be verified."""


def trace(answer: int, reasoning: str = "2 + 2") -> str:
    return f"<reasoning>{reasoning}</reasoning>\n<answer>{answer}</answer>"


def sample(text: str, terminated: bool = True) -> SimpleNamespace:
    return SimpleNamespace(text=text, terminated=terminated)


RIGHT, WRONG, MALFORMED = sample(trace(4)), sample(trace(5)), sample("<reasoning>2 + 2</reasoning>")
TRUNCATED = sample("<reasoning>2 + 2 + 2 + 2", terminated=False)


def mine(
    *samples, example=EXAMPLE, most=1, because=None, teacher=True, fits=lambda pair: True, **more
):
    return mine_pairs(
        [example],
        [samples],
        pairs_per_prompt=most,
        rejected_because=because,
        teacher_when_none_verified=teacher,
        fits=fits,
        **more,
    )


def reason_without_pairs(*samples: SimpleNamespace, **options) -> str:
    pairs, outcomes = mine(*samples, **options)
    assert pairs == []
    (reason,) = [name for name, count in outcomes.items() if count]
    return reason


def test_a_grounded_prompt_without_an_answer_rejects_what_is_given():
    about = {"grounding": "unanswerable", "context": "Rain.", "answer": GROUNDED_REFUSAL}
    asked = EXAMPLE.model_copy(update={**about, "check": "exact"})
    refusal = sample(f"<reasoning>r</reasoning><answer>{GROUNDED_REFUSAL}.</answer>")
    (checked,) = check_samples([asked], [[sample(trace(4)), refusal]])
    found = [(response.rejected_because, response.detail) for response in checked]
    assert found == [("wrong", "'4' is given where the context holds no answer"), (None, "")]


@pytest.mark.parametrize(
    ("bad", "because", "failed_check", "detail"),
    [
        (WRONG, "wrong", "numeric", "'5' is not '4'"),
        (MALFORMED, "malformed", None, "no well-formed trace"),
        (TRUNCATED, "truncated", None, "no terminator"),
        (sample(trace(4, "two and two"), terminated=False), "truncated", None, "no terminator"),
    ],
)
def test_a_verified_sample_is_paired_with_a_rejected_one(bad, because, failed_check, detail):
    ((pair,), outcomes) = mine(bad, RIGHT)
    assert pair == PreferencePair(
        id=EXAMPLE.id, prompt=EXAMPLE.prompt, domain=Domain.MATH, chosen=RIGHT.text,
        rejected=bad.text, chosen_from="policy", rejected_because=because, detail=detail,
        failed_check=failed_check, chosen_sample=1, rejected_sample=0,
    )  # fmt: skip
    others = "not_verifiable all_verified other_reasons none_verified too_long".split()  # noqa: SIM905
    assert outcomes == {"paired": 1} | dict.fromkeys(others, 0)


def test_distinct_samples_are_paired_in_the_order_they_were_sampled():
    """Right a, b and wrong 5, 6, 7 (5 twice): a-5 and b-6; 7 has no partner left."""
    right = [sample(trace(4, reasoning)) for reasoning in "ab"]
    wrong = [sample(trace(answer)) for answer in (5, 5, 6, 7)]
    pairs, _ = mine(wrong[0], right[0], right[0], *wrong[1:], right[1], most=4)
    texts = [(pair.chosen, pair.rejected) for pair in pairs]
    assert texts == [(trace(4, "a"), trace(5)), (trace(4, "b"), trace(6))]
    # sampled: 5 a a 5 6 7 b
    assert [(pair.chosen_sample, pair.rejected_sample) for pair in pairs] == [(1, 0), (6, 4)]
    assert len(mine(*wrong, *right, most=1)[0]) == 1


def test_the_teacher_stands_in_where_no_sample_is_right():
    pairs, _ = mine(WRONG, MALFORMED, most=4)
    told = attrgetter(
        "chosen", "chosen_from", "rejected_because", "chosen_sample", "rejected_sample"
    )
    assert list(map(told, pairs)) == [
        (EXAMPLE.response(), "teacher", "wrong", None, 0),
        (EXAMPLE.response(), "teacher", "malformed", None, 1),
    ]


def test_a_teachers_trace_that_fails_the_prompts_check_is_not_chosen():
    """Rows of a file are not verified where their check has no reference: of four words the teacher
    wrote five, as the policy does that learned from it."""
    about = {"check": "constraints", "constraints": (Constraint(name="max_words", value=4),)}
    wrong = EXAMPLE.model_copy(update={**about, "answer": "four and not one more"})
    assert reason_without_pairs(sample(wrong.response()), example=wrong) == "none_verified"
    right = wrong.model_copy(update={"answer": "four"})
    (pair,), _ = mine(sample(wrong.response()), example=right)
    assert (pair.chosen, pair.rejected) == (right.response(), wrong.response())


def test_where_nothing_can_be_verified_well_formed_samples_are_chosen_over_those_that_are_not():
    pairs, _ = mine(MALFORMED, WRONG, TRUNCATED, RIGHT, example=FREE, most=4)
    told = attrgetter("chosen", "rejected", "rejected_because", "failed_check")
    assert list(map(told, pairs)) == [
        (WRONG.text, MALFORMED.text, "malformed", None),
        (RIGHT.text, TRUNCATED.text, "truncated", None),
    ]
    pairs, _ = mine(MALFORMED, TRUNCATED, example=FREE)
    assert [(pair.chosen, pair.chosen_from) for pair in pairs] == [(EXAMPLE.response(), "teacher")]


def test_only_responses_rejected_for_the_reasons_asked_for_make_pairs_the_first_reason_first():
    (pair,), _ = mine(
        WRONG, RIGHT, MALFORMED, TRUNCATED, because=("truncated", "malformed", "wrong")
    )
    assert pair.rejected == TRUNCATED.text
    pairs, _ = mine(WRONG, RIGHT, MALFORMED, TRUNCATED, most=4, because=("truncated",))
    assert [(pair.chosen, pair.rejected) for pair in pairs] == [(RIGHT.text, TRUNCATED.text)]
    pairs, _ = mine(WRONG, MALFORMED, because=("malformed",))
    # what is wrong is not chosen
    assert [(pair.chosen_from, pair.rejected) for pair in pairs] == [("teacher", MALFORMED.text)]


def test_prompts_without_pairs_are_counted_with_their_reason():
    assert reason_without_pairs(RIGHT, RIGHT) == "all_verified"
    assert reason_without_pairs(WRONG, MALFORMED, teacher=False) == "none_verified"
    assert reason_without_pairs(WRONG, RIGHT, example=FREE) == "not_verifiable"
    assert reason_without_pairs(WRONG, RIGHT, because=("malformed", "truncated")) == "other_reasons"
    assert reason_without_pairs(WRONG, RIGHT, fits=lambda pair: False) == "too_long"


def test_too_few_pairs_fail_the_stage_with_what_to_change():
    for samples, teacher, least, message in (
        ([RIGHT], True, 2, "gave 0 .*fewer than min_pairs = 2 .*every sample was right: .*harder"),
        (
            [WRONG],
            False,
            1,
            "none_verified: 1.*no sample was right: train longer .*teacher_when_none_verified",
        ),
        ([WRONG, RIGHT], True, 16, "gave 1 .*min_pairs = 16 .*raise prompts or pairs_per_prompt"),
    ):
        pairs, outcomes = mine(*samples, teacher=teacher)
        require_pairs(pairs, outcomes, min_pairs=len(pairs))
        with pytest.raises(StageFailed, match=message):
            require_pairs(pairs, outcomes, min_pairs=least)
    with pytest.raises(StageFailed, match="gave 1 preference pairs and the data 2, fewer"):
        require_pairs(pairs * 3, outcomes, min_pairs=16, of_data=2)


SHORT, MIDDLE, LONG, LONGER = (
    sample(trace(4, "2 + 2 makes 4. " * times)) for times in (10, 14, 16, 30)
)
"""Right ones of 192, 252, 282 and 492 characters."""


def test_against_verbosity_the_shortest_right_response_is_chosen_and_much_longer_ones_rejected():
    """1.4 times 192 is 268.8, so 252 characters are not long; of two pairs the second has 252, and
    1.4 times that is 352.8."""

    def lengths(most: int) -> list[tuple[int, int, str]]:
        samples, because = (LONGER, MIDDLE, SHORT, LONG), ["wrong", "long"]
        pairs, _ = mine(*samples, most=most, because=because, long_factor=1.4)
        return [(len(one.chosen), len(one.rejected), one.rejected_because) for one in pairs]

    assert lengths(1) == [(192, 282, "long")]
    assert lengths(2) == [(192, 492, "long")]


def test_what_is_wrong_comes_before_what_is_long_and_length_alone_is_no_reason_unasked():
    (pair,), _ = mine(LONGER, SHORT, WRONG, because=("wrong", "long"))
    assert (len(pair.chosen), pair.rejected_because) == (192, "wrong")
    (pair,), _ = mine(LONGER, SHORT, because=("wrong", "long"))
    assert pair.detail == "492 characters, where 192 are enough"
    assert (pair.chosen_sample, pair.rejected_sample) == (1, 0)
    assert reason_without_pairs(LONGER, SHORT) == "all_verified"
    assert reason_without_pairs(LONGER, SHORT, because=("wrong",)) == "all_verified"
    # longer is not worse where nothing can be verified
    assert reason_without_pairs(LONGER, SHORT, example=FREE, because=("long",)) == "not_verifiable"
