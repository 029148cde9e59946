"""The judging rewards: rubric_judge and llm_judge, with judges in this process and behind a real
endpoint."""

import json
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from infra.store.answers import Answers
from infra.store.store import open_store
from schemas.base import InputError, StageFailed
from schemas.examples import Domain, Prompt
from schemas.rubrics import WEIGHTS, Rubric
from tasks.contract.job import write_jsonl
from tasks.contract.reward import Resources, Response
from tasks.judging import reward as judging_reward
from tasks.reinforcement.rewarding import Scorer, parse_rewards
from tasks.rewards import llm_judge, rubric_judge
from tests.fakes.chat_server import ChatServer, Fault
from tests.fakes.judges import QUESTION, FakeJudge, data_of, items_in, ruling, text_of

JUDGE = {"name": "endpoint", "provider": "test", "model": "m", "max_abstained": 1.0}
CRITERIA = [
    {"title": "a", "text": "Says apple.", "importance": "essential"},
    {"title": "b", "text": "Says pear.", "importance": "important"},
    {"title": "c", "text": "Says plum.", "importance": "optional"},
    {"title": "d", "text": "Does not say fig.", "importance": "pitfall"},
]
BASE = {"judge": JUDGE, "criteria": CRITERIA, "calibration": False}


def prompt(number: int = 0, domain: Domain = Domain.GENERAL, **changes) -> Prompt:
    return Prompt(
        **{
            "id": f"p{number}",
            "prompt": f"Name fruits, {number}?",
            "domain": domain,
            "check": "none",
        }
        | changes
    )


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


def scored(monkeypatch, reward, table: dict, reply, prompts, responses, inputs=None):
    """What a reward gives, and the judge that was asked."""
    judge = FakeJudge(reply)
    monkeypatch.setattr(judging_reward, "open_judge", lambda config, resources: judge)
    prepared = reward.prepare(reward.Config.parse(table), Resources(inputs or {}, answers=None))
    try:
        return reward.score(prepared, prompts, responses), judge
    finally:
        prepared.close()
        assert judge.closed


def test_explicit_aggregation_is_the_weighted_part_of_criteria_that_are_satisfied(monkeypatch):
    """Weights 1, .7, .3, .9, sum 2.9. Apple and no fig: 1.9 / 2.9. All: 1. Pear and fig: .7 /
    2.9."""
    table = BASE | {"aggregation": "explicit"}
    responses = [trace("an apple"), trace("apple, pear, plum"), trace("pear and fig")]
    found, _ = scored(monkeypatch, rubric_judge, table, says, [prompt()] * 3, responses)
    assert [one.value for one in found] == pytest.approx([1.9 / 2.9, 1.0, 0.7 / 2.9])
    assert found[0].detail["grades"] == {"a": 1.0, "b": 0.0, "c": 0.0, "d": 1.0}
    other, _ = scored(
        monkeypatch,
        rubric_judge,
        table | {"weights": {"essential": 5.0, "pitfall": 0.0}},
        says,
        [prompt()] * 3,
        responses,
    )
    assert [one.value for one in other] == pytest.approx([5 / 6, 1.0, 0.7 / 6])


def test_implicit_aggregation_is_one_rating_with_all_criteria_in_view(monkeypatch):
    found, judge = scored(
        monkeypatch, rubric_judge, BASE, lambda one: ruling(one, 7), [prompt()], [trace("an apple")]
    )
    assert found[0].value == pytest.approx(6 / 9)
    asked = text_of(judge.asked[0])
    assert all(
        text in asked
        for text in (
            "(essential) Says apple.",
            "(a pitfall to avoid) Does not say fig.",
            "from 1 (worst) to 10 (best)",
        )
    )


def test_a_judge_that_rates_by_tokens_gives_probable_criteria_and_expected_ratings(monkeypatch):
    table = BASE | {"judge": {"name": "gemma", "model": "gemma3-tiny", "prompt_length": 64}}
    explicit, judge = scored(
        monkeypatch,
        rubric_judge,
        table | {"aggregation": "explicit"},
        lambda one: (0.1, 0.3),
        [prompt()],
        [trace("an apple")],
    )
    assert explicit[0].value == pytest.approx(0.75)
    assert len(judge.asked) == 4
    implicit, _ = scored(
        monkeypatch,
        rubric_judge,
        table,
        lambda one: (0, 0, 0, 0, 0, 0, 0.5, 0, 0, 0),
        [prompt()],
        [trace("an apple")],
    )
    assert implicit[0].value == pytest.approx(6 / 9)


def test_a_prompts_own_rubric_comes_before_its_domains_and_that_before_the_common_one(
    monkeypatch, tmp_path: Path
):
    write_jsonl(tmp_path / "rubrics.jsonl", [Rubric.parse({"id": "p0", "criteria": CRITERIA[:1]})])
    table = BASE | {
        "aggregation": "explicit",
        "criteria": CRITERIA[1:2],
        "domain_criteria": {"science": CRITERIA[2:3]},
    }
    prompts = [prompt(0, Domain.SCIENCE), prompt(1, Domain.SCIENCE), prompt(2)]
    found, judge = scored(
        monkeypatch,
        rubric_judge,
        table,
        says,
        prompts,
        [trace("an apple")] * 3,
        {"rubrics": tmp_path},
    )
    assert [items_in(one) for one in judge.asked] == [
        ["Says apple."],
        ["Says plum."],
        ["Says pear."],
    ]
    assert [one.value for one in found] == [1.0, 0.0, 0.0]

    del table["criteria"]
    found, judge = scored(
        monkeypatch,
        rubric_judge,
        table,
        says,
        prompts,
        [trace("an apple")] * 3,
        {"rubrics": tmp_path},
    )
    assert [one.value for one in found] == [1.0, 0.0, None]  # without criteria it abstains
    with pytest.raises(InputError, match="no criteria"):
        rubric_judge.prepare(
            rubric_judge.Config.parse({"judge": JUDGE}), Resources({}, answers=None)
        )


def test_the_rating_is_the_question_whatever_the_weights(monkeypatch):
    """So that new weights need no new rulings."""
    asked = []
    for weights in (WEIGHTS, {"essential": 2.0}):
        _, judge = scored(
            monkeypatch,
            rubric_judge,
            BASE | {"aggregation": "explicit", "weights": weights},
            says,
            [prompt()],
            [trace("an apple")],
        )
        asked.append(judge.asked)
    assert asked[0] == asked[1]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"criteria": [CRITERIA[0], CRITERIA[0]]}, "title of more than one"),
        ({"aggregation": "explicit", "weights": {"essential": -1.0}}, "one is negative"),
        ({"weights": {"essential": 2.0}}, "only aggregation"),
        (
            {"aggregation": "explicit", "criteria": CRITERIA[:1], "weights": {"essential": 0.0}},
            "weight 0",
        ),
    ],
)
def test_configs_that_make_no_sense_are_refused(table, message):
    with pytest.raises(ValidationError, match=message):
        rubric_judge.Config.parse(BASE | table)


def rated(**aspects: int):
    def reply(question) -> str:
        names = [re.match(r"\w+", item)[0].lower() for item in items_in(question)]
        return ruling(question, *[aspects[name] for name in names])

    return reply


def test_the_general_judge_weighs_aspects_and_punishes_inventions(monkeypatch):
    """Ratings 10, 7, 4 are 1, 2/3, 1/3: .5 + .3 * 2/3 + .2 / 3 = .7667; less .5 when something is
    invented, and never below 0."""
    table = {"judge": JUDGE, "calibration": False}
    for nothing, expected in ((True, 0.5 + 0.2 + 0.2 / 3), (False, 0.2 + 0.2 / 3)):
        reply = rated(accuracy=10, logic=7, coherence=4, nothing=nothing)
        found, judge = scored(
            monkeypatch, llm_judge, table, reply, [prompt(answer="apple")], [trace("an apple")]
        )
        assert found[0].value == pytest.approx(expected)
        assert len(judge.asked) == 1
        assert data_of(judge.asked[0])["reference_answer"] == "apple"
    found, _ = scored(
        monkeypatch,
        llm_judge,
        table,
        rated(accuracy=1, logic=1, coherence=4, nothing=False),
        [prompt()],
        [trace("x")],
    )
    assert found[0].value == 0.0
    found, judge = scored(
        monkeypatch,
        llm_judge,
        table | {"hallucination_penalty": 0.0, "aspects": {"creativity": 1.0}},
        rated(creativity=10),
        [prompt()],
        [trace("x")],
    )
    assert found[0].value == 1.0
    assert "invented" not in text_of(judge.asked[0])


def test_a_verifier_comes_before_the_judge(monkeypatch):
    """Of a verifiable answer the judge is asked for logic and coherence alone: .5 * right + .3 +
    .2."""
    sums = prompt(answer="4", check="numeric", prompt="What is 2 + 2?")
    table = {"judge": JUDGE, "calibration": False, "hallucination_penalty": 0.0}
    reply = rated(accuracy=1, logic=10, coherence=10)
    found, judge = scored(
        monkeypatch,
        llm_judge,
        table,
        reply,
        [sums] * 2,
        [trace("4", "2 and 2"), trace("5", "2 and 3")],
    )
    assert [one.value for one in found] == [1.0, 0.5]
    assert [one.detail["verified"] for one in found] == [True, False]
    assert all("Accuracy" not in text_of(one) for one in judge.asked)
    found, judge = scored(
        monkeypatch, llm_judge, table | {"verify": False}, reply, [sums], [trace("4", "2 and 2")]
    )
    assert found[0].value == 0.5
    found, judge = scored(
        monkeypatch,
        llm_judge,
        table | {"aspects": {"accuracy": 2.0}},
        reply,
        [sums],
        [trace("4", "2 and 2")],
    )
    assert (found[0].value, judge.asked) == (1.0, [])  # nothing is left to ask


def test_what_was_calibrated_is_in_the_ledger_and_a_lost_judge_ends_the_stage(monkeypatch):
    from tests.tasks.judging.test_calibration import WORTH, knowing

    known = set(WORTH)
    reply = lambda one: (  # noqa: E731
        knowing()(one)
        if data_of(one)["answer"] in known
        else ruling(one, *[7 for _ in items_in(one)])
    )
    table = {"judge": JUDGE, "hallucination_penalty": 0.0, "calibration": {"every": 10**12}}
    judge = FakeJudge(reply)
    monkeypatch.setattr(judging_reward, "open_judge", lambda config, resources: judge)
    scorer = Scorer([llm_judge.Config.parse(table)], Resources({}, answers=None))
    first = scorer.score([prompt(0), prompt(1)], [trace("x"), trace("y")], 1)
    assert first.details["llm_judge"][0]["calibration"]["order"] == 1.0
    assert "calibration" not in first.details["llm_judge"][1]
    assert scorer.values()["llm_judge"]["asked"] == 12 + 12 + 2
    later = scorer.score(
        [prompt(0), prompt(1)], [trace("x"), trace("y")], 2
    )  # not the first, and not its turn
    assert "calibration" not in later.details["llm_judge"][0]
    judge.reply = lambda one: ruling(one, *[7 for _ in items_in(one)])
    with pytest.raises(StageFailed, match="does not know"):
        scorer.score([prompt(0)], [trace("z")], 1)
    scorer.close()


# Behind a real endpoint


def answering(body: dict) -> str:
    """An honest judge that only sees the request."""
    parts = QUESTION.fullmatch(body["messages"][0]["content"])
    items = re.findall(r"^\d+\. (.*)$", parts["after"], re.MULTILINE)
    good = "apple" in json.loads(parts["data"])["answer"]
    return json.dumps(
        {
            "mark": parts["mark"],
            "reason": "r",
            "grades": {str(n): good for n in range(1, len(items) + 1)},
        }
    )


def endpoint_scores(url: str, store: Path, monkeypatch, responses, **table):
    monkeypatch.setenv("TEST_BASE_URL", url)
    configs = parse_rewards(
        [{"name": "rubric_judge", "aggregation": "explicit", **BASE, **table}], "rewards"
    )
    scorer = Scorer(configs, Resources({}, Answers(open_store(store))))
    try:
        return (
            scorer.score([prompt()] * len(responses), responses, 1),
            scorer.values()["rubric_judge"],
        )
    finally:
        scorer.close()


def test_rulings_of_an_endpoint_are_kept_and_never_asked_twice(monkeypatch, tmp_path: Path):
    responses = [trace("an apple"), trace("a stone"), Response("no trace")]
    with ChatServer(reply=answering) as server:
        first, counted = endpoint_scores(server.url, tmp_path, monkeypatch, responses)
        assert first.total.tolist() == [1.0, 0.0, 0.0]
        assert (server.billed.total(), counted["asked"], counted["cached"]) == (2, 2, 0)
        sent = server.seen[0].body
        assert sent["temperature"] == 0.0
        assert sent["response_format"]["json_schema"]["strict"] is True
        again, counted = endpoint_scores(server.url, tmp_path, monkeypatch, responses)
        assert again.total.tolist() == first.total.tolist()
        assert again.details == first.details
        assert (server.billed.total(), counted["cached"]) == (2, 2)
        # Other weights ask the same questions.
        endpoint_scores(server.url, tmp_path, monkeypatch, responses, weights={"essential": 9.0})
        assert server.billed.total() == 2


def test_an_endpoint_that_fails_for_one_response_abstains_on_that_one(monkeypatch, tmp_path: Path):
    def faults(request):
        return (
            Fault("status", 400, '{"error": {"message": "no"}}')
            if "stone" in request.question
            else None
        )

    with ChatServer(faults, reply=answering) as server:
        found, _ = endpoint_scores(
            server.url,
            tmp_path,
            monkeypatch,
            [trace("an apple"), trace("a stone"), trace("apple pie")],
        )
    assert [None if value != value else value for value in found.total] == [1.0, None, 1.0]
    assert found.details["rubric_judge"][1]["problem"].startswith("failed")
