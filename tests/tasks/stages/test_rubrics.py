"""Rubrics: what a teacher writes for each prompt, turned so that satisfying a criterion is good,
within a budget, and resumable."""

import json
import logging
from pathlib import Path

import pytest
from pydantic import ValidationError

from schemas.base import InputError, StageFailed
from schemas.examples import Domain, Prompt
from schemas.rubrics import Rubric
from tasks.contract.job import read_jsonl, write_jsonl
from tasks.contract.kinds import stage_kind
from tasks.data.dropped import Dropped
from tasks.judging.rulings import Unreadable
from tasks.stages import rubrics
from tests.fakes.chat_server import ChatServer, Fault
from tests.tasks.jobs import job_at

TEACHER = {
    "name": "endpoint",
    "provider": "test",
    "model": "teacher",
    "max_response_tokens": 2048,
    "max_abstained": 0.5,
}
CONFIG = rubrics.Config.parse({"teacher": TEACHER})


def prompt(number: int, domain: Domain = Domain.GENERAL, **changes) -> Prompt:
    return Prompt(
        id=f"p{number}",
        prompt=f"Question {number}?",
        domain=domain,
        **{"answer": f"fact {number}", "check": "none"} | changes,
    )


def written(count: int = 7, **first) -> list[dict]:
    """Criteria as a teacher writes them; `first` changes the first."""
    criteria = [
        {
            "title": f"Point {number}",
            "text": f"States fact {number}.",
            "importance": "important",
            "satisfied_by": "good",
        }
        for number in range(count)
    ]
    criteria[0] |= {"importance": "essential"} | first
    return criteria


def reply(*criteria: dict, **more) -> str:
    return json.dumps({"criteria": list(criteria) or written()} | more)


def run(tmp_path, url, prompts, monkeypatch, key: str = "k", **config) -> tuple[dict, Path]:
    """Metrics and output of the stage. All calls share a store."""
    monkeypatch.setenv("TEST_BASE_URL", url)
    given = tmp_path / "in"
    given.mkdir(exist_ok=True)
    write_jsonl(given / "prompts.jsonl", prompts)
    parsed = rubrics.Config.parse({"teacher": TEACHER} | config)
    made = job_at(tmp_path, parsed, {"prompts": given}, key=key, log=logging.getLogger("test"))
    return rubrics.run(made), made.out


def asked_about(body: dict) -> str:
    """The task in a request."""
    lines = body["messages"][0]["content"].splitlines()
    return next(json.loads(line)["task"] for line in lines if line.startswith('{"task"'))


def test_every_prompt_has_a_rubric_in_the_order_of_the_prompts(tmp_path: Path, monkeypatch):
    with ChatServer(reply=lambda body: reply()) as server:
        metrics, out = run(tmp_path, server.url, [prompt(n) for n in range(5)], monkeypatch)
        asked = sorted(one.question for one in server.seen)
    assert [f'"reference_answer": "fact {n}"' in one for n, one in enumerate(asked)] == [True] * 5
    assert stage_kind("rubrics").at_home(CONFIG.model_dump(mode="json"), {})
    made = read_jsonl(out / "rubrics.jsonl", Rubric)
    assert [one.id for one in made] == [f"p{n}" for n in range(5)]
    assert made[0].criteria[0].importance == "essential"
    assert (metrics["rubrics"], metrics["criteria_mean"], metrics["dropped"]) == (5, 7.0, {})
    assert metrics["input_tokens"] > 0
    assert (out / "dropped.jsonl").read_text() == ""


def test_only_the_prompts_that_are_wanted_are_asked(tmp_path: Path, monkeypatch):
    prompts = [
        prompt(0, Domain.MATH, answer="4", check="numeric"),
        prompt(1, Domain.CREATIVE),
        prompt(2, Domain.CREATIVE),
        prompt(3, Domain.CREATIVE),
        prompt(4),
    ]
    with ChatServer(reply=lambda body: reply()) as server:
        metrics, out = run(
            tmp_path,
            server.url,
            prompts,
            monkeypatch,
            first={"creative": 2, "math": 5},
            verifiable=False,
        )
        assert server.count == 2
        with pytest.raises(InputError, match="no prompt is to have a rubric"):
            run(tmp_path, server.url, prompts, monkeypatch, key="none", first={"science": 2})
    assert [one.id for one in read_jsonl(out / "rubrics.jsonl", Rubric)] == ["p1", "p2"]
    assert metrics["domains"] == {"creative": 2}


def test_a_criterion_is_stored_so_that_a_good_response_satisfies_it():
    """Either polarity of either wording; the weight is positive in all cases."""
    for text, satisfied_by, stored in (
        ("Does not mention the dose.", "bad", "Does mention the dose."),
        ("Does not recommend aspirin.", "good", "Does not recommend aspirin."),
        ("Recommends aspirin.", "bad", "Does not do this: Recommends aspirin."),
        ("Recommends rest.", "good", "Recommends rest."),
        ("The response is not clear.", "bad", "The response is clear."),
        ("Fails to name the cause.", "bad", "Does not do this: Fails to name the cause."),
    ):
        pitfall = written(text=text, satisfied_by=satisfied_by)
        pitfall[1] |= {"importance": "essential"}
        pitfall[0] |= {"importance": "pitfall"}
        rubric, changed = rubrics.read_rubric(CONFIG, prompt(0), reply(*pitfall))
        assert (rubric.criteria[0].text, rubric.criteria[0].importance) == (stored, "pitfall")
        assert changed == (satisfied_by == "bad")


def test_a_reply_that_is_no_rubric_is_refused():
    for text, why in (
        ("Here are some criteria: ...", "not one JSON object"),
        (json.dumps(written()), "not one JSON object"),
        (reply(*written(), extra=1), "one key criteria"),
        (json.dumps({"criteria": "many"}), "one key criteria"),
        (reply(*written(3)), "3 criteria instead of 7 to 20"),
        (reply(*written(21)), "21 criteria instead of 7 to 20"),
        (reply(*written(importance="vital")), "importance is not valid"),
        (reply(*written(satisfied_by="everybody")), "satisfied_by is not valid"),
        (reply(*written(weight=-1)), "weight is not valid"),
        (reply(*written(text="")), "text is not valid"),
        (reply(*written(title="point 1 ")), "same title"),
        (reply(*written(importance="optional")), "no criterion was essential"),
    ):
        with pytest.raises(Unreadable, match=why):
            rubrics.read_rubric(CONFIG, prompt(0), text)


def test_a_reply_that_cannot_be_used_is_asked_for_once_more_and_then_dropped(tmp_path, monkeypatch):
    def answer(body: dict) -> str:
        few = "could not be used (it had 3 criteria instead of 7 to 20)"
        number, again = asked_about(body), few in body["messages"][0]["content"]
        good = number == "Question 0?" or (again and number == "Question 1?")
        return reply() if good else reply(*written(3))

    with ChatServer(reply=answer) as server:
        metrics, out = run(tmp_path, server.url, [prompt(n) for n in range(3)], monkeypatch)
        assert server.count == 3 + 2
    assert [one.id for one in read_jsonl(out / "rubrics.jsonl", Rubric)] == ["p0", "p1"]
    (dropped,) = read_jsonl(out / "dropped.jsonl", Dropped)
    assert (dropped.id, dropped.cause) == ("p2", "failed")
    assert dropped.detail == "it had 3 criteria instead of 7 to 20"
    assert metrics["dropped"] == {"failed": 1}


def test_too_few_rubrics_fail_the_stage_and_what_was_answered_is_not_paid_again(
    tmp_path, monkeypatch
):
    prompts, broken = [prompt(n) for n in range(4)], True
    bad = Fault("status", 400, '{"error": {"message": "no"}}')

    def faults(request):
        return bad if broken and "Question 0?" not in request.question else None

    with ChatServer(faults, reply=lambda body: reply()) as server:
        with pytest.raises((StageFailed, InputError)):
            run(tmp_path, server.url, prompts, monkeypatch)
        broken = False
        metrics, _ = run(tmp_path, server.url, prompts, monkeypatch, key="again")
        assert set(server.billed.values()) == {1}
    assert (metrics["rubrics"], metrics["cached"]) == (4, 1.0)


def test_the_budget_holds(tmp_path: Path, monkeypatch):
    """A request is billed at most about 2.5 k input and 2,048 output tokens: 0.0046 dollars at a
    dollar per million."""
    prices = {
        "input_usd_per_million": 1.0,
        "output_usd_per_million": 1.0,
        "max_usd": 0.012,
        "max_abstained": 1.0,
    }
    with ChatServer(reply=lambda body: reply()) as server:
        metrics, out = run(
            tmp_path,
            server.url,
            [prompt(n) for n in range(40)],
            monkeypatch,
            teacher=TEACHER | prices,
        )
    assert 0 < metrics["usd"] <= 0.012
    assert 0 < metrics["rubrics"] < 40
    assert metrics["dropped"] == {"unasked": 40 - metrics["rubrics"]}
    assert len(read_jsonl(out / "dropped.jsonl", Dropped)) == 40 - metrics["rubrics"]


def test_bounds_must_be_in_order():
    with pytest.raises(ValidationError, match="more than most"):
        rubrics.Config.parse({"teacher": TEACHER, "least": 9, "most": 8})
