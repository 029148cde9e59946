"""The judging rewards: rubric_judge and llm_judge, with judges in this process."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from schemas.base import InputError, StageFailed
from schemas.examples import Domain, Prompt
from schemas.rubrics import Rubric
from tasks.contract.job import write_jsonl
from tasks.contract.reward import Resources, Response
from tasks.judging import judging_reward
from tasks.judging.rubric_value import weighed_again
from tasks.reinforcement.rewarding import Scorer
from tasks.rewards import llm_judge, rubric_judge
from tests.fakes.judges import FakeJudge, data_of, items_in, ruling
from tests.tasks.judging.test_calibration import WORTH, knowing
from tests.tasks.prompts import values

JUDGE = {"name": "endpoint", "provider": "test", "model": "m", "max_abstained": 1.0}
CRITERIA = [
    {"title": "a", "text": "Says apple.", "importance": "essential"},
    {"title": "b", "text": "Says pear.", "importance": "important"},
    {"title": "c", "text": "Says plum.", "importance": "optional"},
    {"title": "d", "text": "Does not say fig.", "importance": "pitfall"},
]
BASE = {"judge": JUDGE, "criteria": CRITERIA, "calibration": False}
EXPLICIT = {"aggregation": "explicit"}


def prompt(number: int = 0, domain: Domain = Domain.GENERAL, **changes) -> Prompt:
    fields = {"prompt": f"Name fruits, {number}?", "domain": domain, "check": "none"}
    return Prompt(id=f"p{number}", **fields | changes)


def trace(answer: str, reasoning: str = "I think of fruits.") -> Response:
    return Response(f"<reasoning>{reasoning}</reasoning>\n<answer>{answer}</answer>")


def says(question) -> str:
    """Satisfied if the response says the fruit, or does not say it."""
    answer = data_of(question)["answer"]
    found = []
    for item in items_in(question):
        *negated, fruit = re.fullmatch(r"(Does not say |Says )(\w+)\.", item).groups()
        found.append((fruit in answer) is (negated == ["Says "]))
    return ruling(question, *found)


@pytest.fixture
def scored(monkeypatch):
    """What a reward gives, with the judge that was asked."""

    def run(reward, table: dict, reply, *responses, prompts=None, inputs=None):
        judge = FakeJudge(reply)
        monkeypatch.setattr(judging_reward, "open_judge", lambda config, resources: judge)
        prepared = reward.prepare(reward.Config.parse(table), Resources(inputs or {}, answers=None))
        try:
            return reward.score(prepared, prompts or [prompt()] * len(responses), responses), judge
        finally:
            prepared.close()
            assert judge.closed

    return run


def test_explicit_aggregation_is_the_weighted_part_of_criteria_that_are_satisfied(scored):
    """Weights 1, .7, .3, .9, sum 2.9. Apple and no fig: 1.9 / 2.9. All: 1. Pear and fig: .7 / 2.9.
    New weights ask the same questions, and so need no new rulings."""
    table = BASE | EXPLICIT
    responses = [trace("an apple"), trace("apple, pear, plum"), trace("pear and fig")]
    found, judge = scored(rubric_judge, table, says, *responses)
    assert values(found) == pytest.approx([1.9 / 2.9, 1.0, 0.7 / 2.9])
    assert found[0].detail["grades"] == {"a": 1.0, "b": 0.0, "c": 0.0, "d": 1.0}
    other = table | {"weights": {"essential": 5.0, "pitfall": 0.0}}
    found, again = scored(rubric_judge, other, says, *responses)
    assert values(found) == pytest.approx([5 / 6, 1.0, 0.7 / 6])
    assert again.asked == judge.asked


def test_implicit_aggregation_is_one_rating_with_all_criteria_in_view(scored):
    found, judge = scored(rubric_judge, BASE, lambda one: ruling(one, 7), trace("an apple"))
    assert found[0].value == pytest.approx(6 / 9)
    shown = ("(essential) Says apple.", "(a pitfall to avoid) Does not say fig.", "1 (worst) to 10")
    assert [one for one in shown if one not in judge.asked[0].text] == []


def test_a_prompts_own_rubric_comes_before_its_domains_and_that_before_the_common_one(
    scored, tmp_path: Path
):
    write_jsonl(tmp_path / "rubrics.jsonl", [Rubric.parse({"id": "p0", "criteria": CRITERIA[:1]})])
    by_domain = {"criteria": CRITERIA[1:2], "domain_criteria": {"science": CRITERIA[2:3]}}
    table = BASE | EXPLICIT | by_domain
    asked = [prompt(0, Domain.SCIENCE), prompt(1, Domain.SCIENCE), prompt(2)]
    given = {"prompts": asked, "inputs": {"rubrics": tmp_path}}
    apples = [trace("an apple")] * 3
    found, judge = scored(rubric_judge, table, says, *apples, **given)
    asked = [items_in(one) for one in judge.asked]
    assert asked == [["Says apple."], ["Says plum."], ["Says pear."]]
    assert values(found) == [1.0, 0.0, 0.0]

    del table["criteria"]
    found, _ = scored(rubric_judge, table, says, *apples, **given)
    assert values(found) == [1.0, 0.0, None]  # without criteria it abstains
    bare = rubric_judge.Config.parse({"judge": JUDGE})
    with pytest.raises(InputError, match="no criteria"):
        rubric_judge.prepare(bare, Resources({}, answers=None))


def test_a_ledgers_ruling_is_weighed_again_or_abstains_without_weight():
    config = rubric_judge.Config.parse(BASE | EXPLICIT | {"weights": {"essential": 0.0}})
    judged = {"grades": {"a": 1.0, "b": 1.0, "c": 0.0}}
    for number, value in ((3, 0.7), (1, None)):
        assert weighed_again(config, config.criteria[:number], judged, 0.5) == value


ONLY_OPTIONAL = {"essential": 0.0, "important": 0.0, "pitfall": 0.0}


def test_configs_that_make_no_sense_are_refused():
    for table, message in (
        ({"criteria": [CRITERIA[0], CRITERIA[0]]}, "title of more than one"),
        (EXPLICIT | {"weights": {"essential": -1.0}}, "one is negative"),
        ({"weights": {"essential": 2.0}}, "only aggregation"),
        (EXPLICIT | {"criteria": CRITERIA[:1], "weights": {"essential": 0.0}}, "of a rubric have"),
        (EXPLICIT | {"weights": ONLY_OPTIONAL, "calibration": {}}, "of an anchor have weight 0"),
    ):
        with pytest.raises(ValidationError, match=message):
            rubric_judge.Config.parse(BASE | table)


GENERAL = {"judge": JUDGE, "calibration": False}
UNPUNISHED = GENERAL | {"hallucination_penalty": 0.0}


def rated(**aspects: int):
    def reply(question) -> str:
        names = [re.match(r"\w+", item)[0].lower() for item in items_in(question)]
        return ruling(question, *[aspects[name] for name in names])

    return reply


def test_the_general_judge_weighs_aspects_and_punishes_inventions(scored):
    """Ratings 10, 7, 4 are 1, 2/3, 1/3: .5 + .3 * 2/3 + .2 / 3 = .7667; less .5 when something is
    invented, and never below 0."""
    for nothing, expected in ((True, 0.5 + 0.2 + 0.2 / 3), (False, 0.2 + 0.2 / 3)):
        reply = rated(accuracy=10, logic=7, coherence=4, nothing=nothing)
        asked = [prompt(answer="apple")]
        found, judge = scored(llm_judge, GENERAL, reply, trace("an apple"), prompts=asked)
        assert found[0].value == pytest.approx(expected)
        assert [data_of(one)["reference_answer"] for one in judge.asked] == ["apple"]
    reply = rated(accuracy=1, logic=1, coherence=4, nothing=False)
    assert scored(llm_judge, GENERAL, reply, trace("x"))[0][0].value == 0.0
    creative = UNPUNISHED | {"aspects": {"creativity": 1.0}}
    found, judge = scored(llm_judge, creative, rated(creativity=10), trace("x"))
    assert found[0].value == 1.0
    assert "invented" not in judge.asked[0].text


def test_a_verifier_comes_before_the_judge(scored):
    """Of a verifiable answer the judge is asked for logic and coherence alone: .5 * right + .3 +
    .2."""
    sums = prompt(answer="4", check="numeric", prompt="What is 2 + 2?")
    reply = rated(accuracy=1, logic=10, coherence=10)
    right, wrong = trace("4", "2 and 2"), trace("5", "2 and 3")
    found, judge = scored(llm_judge, UNPUNISHED, reply, right, wrong, prompts=[sums] * 2)
    assert values(found) == [1.0, 0.5]
    assert [one.detail["verified"] for one in found] == [True, False]
    assert all("Accuracy" not in one.text for one in judge.asked)
    unverified = UNPUNISHED | {"verify": False}
    found, _ = scored(llm_judge, unverified, reply, right, prompts=[sums])
    assert found[0].value == 0.5
    accuracy = UNPUNISHED | {"aspects": {"accuracy": 2.0}}
    found, judge = scored(llm_judge, accuracy, reply, right, prompts=[sums])
    assert (found[0].value, judge.asked) == (1.0, [])  # nothing is left to ask
    # 0.1 + 0.2 + 0.3 is more than 0.3 + 0.1 + 0.2, in this arithmetic
    thirds = UNPUNISHED | {"aspects": {"accuracy": 0.3, "logic": 0.1, "coherence": 0.2}}
    assert scored(llm_judge, thirds, reply, right, prompts=[sums])[0][0].value == 1.0


def test_what_was_calibrated_is_in_the_ledger_and_a_lost_judge_ends_the_stage(monkeypatch):
    sevens = lambda one: ruling(one, *[7] * len(items_in(one)))  # noqa: E731
    known = lambda one: (knowing() if data_of(one)["answer"] in WORTH else sevens)(one)  # noqa: E731
    judge = FakeJudge(known)
    monkeypatch.setattr(judging_reward, "open_judge", lambda config, resources: judge)
    table = {"judge": JUDGE, "hallucination_penalty": 0.0, "calibration": {"every": 10**12}}
    scorer = Scorer([llm_judge.Config.parse(table)], Resources({}, answers=None))
    asked, responses = [prompt(0), prompt(1)], [trace("x"), trace("y")]
    first = scorer.score(asked, responses, 1).details["llm_judge"]
    assert first[0]["calibration"]["order"] == 1.0
    assert "calibration" not in first[1]
    assert scorer.values()["llm_judge"]["asked"] == 12 + 12 + 2
    later = scorer.score(asked, responses, 2).details["llm_judge"]
    assert "calibration" not in later[0]  # not the first update, and not its turn
    judge.reply = sevens
    with pytest.raises(StageFailed, match="cannot tell"):
        scorer.score([prompt(0)], [trace("z")], 1)
    scorer.close()
