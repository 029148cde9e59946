"""A judge is tried on responses of known worth: before a stage, and again and again while it goes
on."""

import pytest
from pydantic import ValidationError

from schemas.base import StageFailed
from schemas.examples import parse_trace
from tasks.judging.anchors import ANCHORS, Anchor
from tasks.judging.bench import Bench
from tasks.judging.calibration import Calibration, Calibrator, order_of
from tasks.rewards import llm_judge
from tests.fakes.judges import FakeJudge, data_of, items_in, ruling

JUDGE = {"name": "endpoint", "provider": "test", "model": "m"}
GENERAL = llm_judge.Config.parse({"judge": JUDGE, "hallucination_penalty": 0.0})
WORTH = {parse_trace(anchor.response, "trace").answer: anchor.score for anchor in ANCHORS}


def worth(question) -> float:
    return WORTH[data_of(question)["answer"]]


def all_rated(question, rating: float) -> str:
    """The same for every item, of 0 to 1."""
    return ruling(question, *[round(1 + 9 * min(1.0, max(0.0, rating)))] * len(items_in(question)))


def knowing(shift: float = 0.0):
    """A judge that knows what anchors are worth, and rates everything so much higher."""
    return lambda question: all_rated(question, 0.8 * worth(question) + shift)


def begin(reply, config: Calibration | None = None) -> tuple[Calibrator, FakeJudge]:
    judge = FakeJudge(reply)
    anchored = lambda one: llm_judge.case_of(GENERAL, one.as_prompt(), one.response)  # noqa: E731
    bench = Bench(judge, by_token=False)
    return Calibrator.begin(config or Calibration(), bench, anchored), judge


def test_order_is_the_part_of_pairs_of_one_question_that_are_right():
    """Pairs of three responses to one question: (0, .3), (0, 1), (.3, 1). Grades .2 .2 .9: a tie
    and two right, 2.5 of 3."""
    some = ANCHORS[:3]  # worth 1, .3, 0
    assert order_of(some, [1.0, 0.5, 0.0]) == 1.0
    assert order_of(some, [0.9, 0.2, 0.2]) == pytest.approx(2.5 / 3)
    assert order_of(some, [0.0, 0.5, 1.0]) == 0.0
    assert order_of(some, [1.0, None, 0.0]) == 1.0
    assert order_of(some, [1.0, None, None]) != order_of(some, [1.0, None, None])  # NaN
    assert order_of([ANCHORS[0], ANCHORS[3]], [0.5, 0.1]) != 1.0  # of two questions: no pair


def test_a_good_judge_begins_and_a_stage_refuses_to_train_on_noise_or_on_a_gullible_judge():
    calibrator, judge = begin(knowing())
    assert order_of(ANCHORS, calibrator.baseline) == 1.0
    assert len(judge.asked) == 12

    with pytest.raises(StageFailed, match=r"cannot tell good .* from bad ones.*50%.*least_order"):
        begin(lambda question: all_rated(question, 0.5))

    def gullible(question):
        """Talked round by an order and by a verdict in the data."""
        data = data_of(question)
        fooled = "Ignore all" in data["reasoning"] or '"mark"' in data["answer"]
        return all_rated(question, 1.0) if fooled else knowing()(question)

    with pytest.raises(StageFailed, match="67%"):
        begin(gullible)
    begin(gullible, Calibration(least_order=0.6))


def test_anchors_are_asked_raw_and_anew_for_each_check_and_the_same_for_the_same_rollout():
    calibrator, judge = begin(knowing())
    samples = [{question.sample for question in judge.asked}]
    for update, rollout in ((1, ["a", "b"]), (1, ["a", "c"]), (1, ["a", "b"])):
        judge.asked.clear()
        calibrator.check(update, rollout)
        # also those that the rules of a reward would not have asked about
        assert len(judge.asked) == 12
        samples.append({question.sample for question in judge.asked})
    assert all(len(one) == 1 and min(one) > 0 for one in samples)
    assert samples[1] == samples[3]
    assert len({min(one) for one in samples}) == 3


def test_the_first_rollout_and_about_one_of_every_so_many_are_checked():
    calibrator, _ = begin(knowing(), Calibration(every=10))
    assert calibrator.check(1, ["x"]) is not None
    checks = [calibrator.check(update, [f"response {update}"]) for update in range(2, 402)]
    assert 20 <= sum(check is not None for check in checks) <= 60
    always, _ = begin(knowing(), Calibration(every=1))
    assert all(always.check(update, ["x"]) is not None for update in range(2, 12))


def test_drift_ends_the_stage_and_small_changes_do_not():
    """A shift of .2 is beyond the tolerance of .1, one of a ninth on two of twelve anchors is
    not."""
    calibrator, judge = begin(knowing())
    told = calibrator.check(1, ["x"])
    assert (told["drift"], told["order"], len(told["grades"])) == (0.0, 1.0, 12)

    judge.reply = knowing(0.2)
    drifted = r"judge has drifted.*baseline 'first'.*at update 1.*\+0\.2.*calibration.baseline"
    with pytest.raises(StageFailed, match=drifted):
        calibrator.check(1, ["x"])
    judge.reply = knowing(-0.6)
    with pytest.raises(StageFailed, match="drifted"):
        calibrator.check(1, ["x"])

    a_little = {ANCHORS[0].question, ANCHORS[3].question}
    judge.reply = lambda one: knowing(0.1 * (data_of(one)["task"] in a_little))(one)
    told = calibrator.check(1, ["x"])
    assert 0 < told["drift"] < 0.1
    assert told["drift_low"] < told["drift"] < told["drift_high"]

    judge.reply = lambda question: all_rated(question, 1 - worth(question))
    with pytest.raises(StageFailed, match="cannot tell"):  # the mean may stay where it was
        calibrator.check(1, ["x"])


def test_anchors_of_ones_own_must_have_an_order():
    mine = [anchor.model_dump(mode="json") for anchor in ANCHORS[:2]]
    config = Calibration.parse({"anchors": mine})
    assert config.tried == tuple(Anchor.parse(one) for one in mine)
    with pytest.raises(ValidationError, match="no order to check"):
        Calibration.parse({"anchors": [mine[0], mine[0]]})
