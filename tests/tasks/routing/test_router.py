"""The task router: its floors on real labelled prompts that it has never read, and what it does
with the unusual ones."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from infra.store.answers import Answers
from infra.store.store import open_store
from schemas.examples import Domain
from tasks.contract.teacher import TEACHERS
from tasks.routing import classifier, router
from tasks.routing.asking import RoutingTeacher, asking
from tasks.routing.classifier import training_prompts
from tasks.routing.router import confusion, difficulty, route, rule
from tasks.teachers import dataset
from tasks.teaching.lesson import Lesson
from tests.effort import takes_at_most
from tests.fakes.chat_server import ChatServer
from tests.fakes.process import printed


def test_training_prompts_are_many_of_every_domain_and_the_same_in_another_process() -> None:
    counts = Counter(domain for _, domain in training_prompts())
    assert min(counts.values()) >= 100
    assert len({prompt for prompt, _ in training_prompts()}) == counts.total() > 1800
    code = (
        "from tasks.routing.classifier import training_prompts\n"
        "from schemas.base import digest\nprint(digest(training_prompts()))"
    )
    first, second = (printed(code, PYTHONHASHSEED=seed) for seed in ("1", "2"))
    assert first == second != ""


def test_a_domain_without_templates_is_never_routed_to(monkeypatch, tmp_path: Path) -> None:
    """As one that somebody has just added to `Domain`."""
    for file in classifier.HERE.glob("*.templates"):
        if file.stem != "creative":
            (tmp_path / file.name).symlink_to(file)
    monkeypatch.setattr(classifier, "HERE", tmp_path)
    monkeypatch.setattr(classifier, "_trained", classifier._trained.__wrapped__)
    (found,) = classifier.probabilities(["Write a poem about the sea."])
    said = dict(zip(Domain, found, strict=True))
    assert said[Domain.CREATIVE] == 0 < min(said[one] for one in Domain if one != "creative")
    assert sum(found) == pytest.approx(1)


def test_rules_are_few_and_hold_for_what_they_are_meant_for():
    for prompt, domain in (
        ("What does this do?\n```\nls -la\n```", Domain.CODING),
        ("def add(a, b):\n    return a - b", Domain.CODING),
        ("from typing import List\n\nfind the bug", Domain.CODING),
        ("TL;DR please: the cat sat.", Domain.SUMMARIZATION),
        ("The cat sat on the mat.\n\nSummarize.", Domain.SUMMARIZATION),
        ("Summarise what happened at the congress.", Domain.SUMMARIZATION),
        ("Give the SMILES of aspirin.", Domain.SCIENCE),
        ("She smiles at the class by default.", None),
        ("We import tea from India and sum up the year in May.", None),
        ("", None),
    ):
        assert rule(prompt) == domain


@pytest.mark.parametrize("text", ["def f(" + "):" * 50_000 + "x", "from x import a" + " " * 50_000])
def test_an_endless_line_takes_no_time_to_speak_of(text: str) -> None:
    assert takes_at_most(1, lambda: rule(f"{text}!"), tries=3)


def test_a_route_depends_on_its_prompt_alone_and_says_who_chose_it() -> None:
    prompts = [
        "Write a poem about rain.", "Tom has 3 apples and buys 4 more. How many has he?",
        "TL;DR: it rained.", "", "🙂" * 5000, "x " * 9000,
    ]  # fmt: skip
    together = route(prompts)
    assert together == [one for prompt in prompts for one in route([prompt])]
    assert together == route(prompts[::-1])[::-1]
    said = [(Domain.CREATIVE, "classifier"), (Domain.MATH, "classifier")]
    assert [(one.domain, one.by) for one in together[:3]] == [*said, (Domain.SUMMARIZATION, "rule")]
    assert all(0 < one.probability <= 1 and 1 <= one.difficulty <= 5 for one in together)
    assert route([]) == []


def test_difficulty_grows_with_quantities_length_and_terms() -> None:
    middle = (
        "A shop sells 12 pens at $3 and 7 books at $9, and gives 10% off. What do 4 of each cost?"
    )
    hard = (
        r"Derive the partition function of a quantum oscillator, and $\int C_V/T \, dT$ from 10 K."
    )
    levels = [difficulty(one) for one in ("Name a colour.", "What is 2 + 3?", middle, hard)]
    assert levels[0] == 1
    assert levels[0] <= levels[1] < levels[2] < levels[3] <= difficulty(hard * 50) == 5


def test_confusion_by_hand() -> None:
    """Two of three math prompts found, one taken for coding; the one coding prompt found: accuracy
    3/4, precision of coding 1/2."""
    math, coding = Domain.MATH, Domain.CODING
    found = confusion(Counter({(math, math): 2, (math, coding): 1, (coding, coding): 1}))
    assert (found["n"], found["accuracy"]) == (4, 0.75)
    unknown = dict.fromkeys([domain.value for domain in Domain])
    assert found["recall"] == unknown | {"math": 2 / 3, "coding": 1.0}
    assert found["precision"] == unknown | {"math": 1.0, "coding": 0.5}
    assert found["matrix"]["math"] == dict.fromkeys(unknown, 0) | {"math": 2, "coding": 1}
    assert json.loads(json.dumps(found)) == found


# Asking a teacher

UNSURE_PROMPT = "zq vv kx"


def teacher(monkeypatch: pytest.MonkeyPatch, server: ChatServer, **settings: Any) -> RoutingTeacher:
    """A teacher of whoever is less sure than 0.9."""
    monkeypatch.setattr(router, "UNSURE", 0.9)
    monkeypatch.setenv("TEST_BASE_URL", server.url)
    return RoutingTeacher(provider="test", model="m", **settings)


def lesson(tmp_path: Path) -> Lesson:
    return Lesson(seed=0, data=tmp_path, answers=Answers(open_store(tmp_path / "store")))


def test_a_teacher_is_asked_about_unsure_prompts_only_and_once(tmp_path, monkeypatch):
    prompts = [UNSURE_PROMPT, "```\nx = 1\n```", UNSURE_PROMPT + " and more"]
    given = lesson(tmp_path)
    thinks = {"temperature": 1.0, "limit_parameter": "max_completion_tokens"}
    with ChatServer(reply=lambda body: '```json\n{"domain": "creative"}\n```') as server:
        for _ in range(2):
            with asking(teacher(monkeypatch, server, **thinks), given) as ask:
                routes = route(prompts, ask)
        assert len(server.seen) == 2
        request = server.seen[0].body
    said = [("creative", "teacher"), ("coding", "rule"), ("creative", "teacher")]
    assert [(one.domain, one.by) for one in routes] == said
    assert (request["temperature"], request["max_completion_tokens"]) == (1.0, 512)
    assert "max_tokens" not in request
    strict = request["response_format"]["json_schema"]
    assert strict["strict"] is True
    assert strict["schema"]["properties"]["domain"]["enum"] == [domain.value for domain in Domain]
    assert f"<request>\n{UNSURE_PROMPT}" in request["messages"][0]["content"]
    assert given.tally["requests"] == 2


@pytest.mark.parametrize(
    "text",
    [
        *("math", '{"domain": "maths"}', '{"domain": "math", "why": "x"}', '{"domain": ["math"]}'),
        pytest.param("[" * 100_000, id="deep"),
    ],
)
def test_an_answer_outside_the_schema_leaves_the_classifiers_and_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"q": UNSURE_PROMPT}) + "\n")
    source = {"path": "a.jsonl", "prompt": "q", "domain": "router"}
    given = lesson(tmp_path)
    with ChatServer(reply=lambda body: text) as server:
        asked = teacher(monkeypatch, server).model_dump()
        table = {"name": "dataset", "sources": [source], "routing": asked}
        (prompt,) = dataset.prompts(TEACHERS.parse(table, "test"), given)  # type: ignore[arg-type]
    assert prompt.domain == route([UNSURE_PROMPT])[0].domain  # type: ignore[union-attr]
    assert given.tally["routed.teacher_failed"] == 1


def test_a_spent_budget_leaves_the_rest_to_the_classifier(tmp_path, monkeypatch):
    with ChatServer(reply=lambda body: '{"domain": "creative"}') as server:
        poor = teacher(monkeypatch, server, max_usd=1e-6, input_usd_per_million=1.0)
        with asking(poor, lesson(tmp_path)) as ask:
            (one,) = route([UNSURE_PROMPT], ask)
        assert (one.by, len(server.seen)) == ("classifier", 0)
