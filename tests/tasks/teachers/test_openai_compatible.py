"""The teacher behind an OpenAI-compatible API: from prompts to verified rows, with a server that
answers badly in every way."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.store.answers import Answers
from infra.store.store import open_store
from schemas.base import InputError
from schemas.examples import Domain, Example, PreferencePair, Prompt
from tasks.contract.teacher import TEACHERS
from tasks.data.dropped import Dropped
from tasks.teachers import openai_compatible
from tasks.teaching.lesson import Cell, Lesson, Row
from tests.fakes.chat_fixtures import choice
from tests.fakes.chat_fixtures import message as said
from tests.fakes.chat_server import ChatServer, Fault

pytestmark = pytest.mark.usefixtures("no_long_waits")
LENDER = {"name": "procedural", "rows": {"math": 12}, "grounded": {}}


def config(**changes: Any) -> openai_compatible.Config:
    table: dict[str, Any] = {"name": "openai_compatible", "provider": "test", "model": "m"}
    table |= {"prompts": [LENDER], "max_response_tokens": 64, "retries": 0}
    parsed = TEACHERS.parse({**table, **changes}, "teachers.0")
    assert isinstance(parsed, openai_compatible.Config)
    return parsed


def lesson(store: Path, **changes: Any) -> Lesson:
    return Lesson(seed=0, data=None, answers=Answers(open_store(store)), **changes)


def solutions(rows: int = 200) -> dict[str, str]:
    """Prompt -> answer of all that is lent."""
    return {prompt.prompt: prompt.answer for prompt in lent(rows)}


def lent(rows: int) -> list[Prompt]:
    lender = TEACHERS["procedural"]
    table = TEACHERS.parse({**LENDER, "rows": {"math": rows}}, "")
    return list(lender.prompts(table, Lesson(0, None, answers=None)))  # type: ignore[arg-type]


def solver() -> Callable[[dict[str, Any]], str]:
    known = solutions()

    def reply(body: dict[str, Any]) -> str:
        prompt = body["messages"][0]["content"].partition("\n\n")[2]
        return f"<reasoning>I worked it out.</reasoning>\n<answer>{known[prompt]}</answer>"

    return reply


Teach = Callable[[ChatServer, openai_compatible.Config, Lesson], list[Row]]


@pytest.fixture
def teach(monkeypatch: pytest.MonkeyPatch) -> Teach:
    """What the teacher gives, behind a server."""

    def rows(server: ChatServer, asked: openai_compatible.Config, given: Lesson) -> list[Row]:
        monkeypatch.setenv("TEST_BASE_URL", server.url)
        return list(openai_compatible.teach(asked, given))

    return rows


def examples(rows: list[Row]) -> list[Example]:
    return [row for row in rows if isinstance(row, Example)]


def causes(rows: list[Row]) -> Counter[str]:
    return Counter(row.cause for row in rows if isinstance(row, Dropped))


def test_verified_traces_come_in_the_order_of_the_prompts(tmp_path: Path, teach: Teach) -> None:
    with ChatServer(reply=solver(), latency=0.01) as server:
        given = lesson(tmp_path)
        rows = teach(server, config(), given)
        assert [row.prompt for row in examples(rows)] == list(solutions(12))
        assert {row.reasoning for row in examples(rows)} == {"I worked it out."}
        counted = [given.tally[name] for name in ("requests", "cached", "samples.verified")]
        assert counted == [12, 0, 12]
        body = server.seen[0].body
        assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0.7, 64)
        assert len({request.body["seed"] for request in server.seen}) == 12
        # Another process, another recipe: the same rows, and nothing is asked.
        again = lesson(tmp_path)
        assert teach(server, config(), again) == rows
        assert (again.tally["requests"], again.tally["cached"]) == (0, 12)
        assert server.count == 12


def in_french(body: dict[str, Any]) -> None:
    french = "Nous avons calculé la somme de tous les nombres et la réponse est juste."
    answer = body["choices"][0]["message"]
    answer["content"] = answer["content"].replace("I worked it out.", french)


PRICES = {"input_usd_per_million": 1.0, "output_usd_per_million": 2.0}
BAD: dict[str, Fault] = {
    "wrong": said(content="<reasoning>a guess</reasoning>\n<answer>-99999</answer>"),
    "malformed": said(content="The answer is four."),
    "language": Fault("change", change=in_french),
    "refused": said(content="I'm sorry, but I can't help with that."),
    "truncated": choice(finish_reason="length"),
    "empty": said(content=""),
    "failed": Fault("status", 400, '{"error": {"message": "content too long"}}'),
}


def test_every_bad_response_is_classified_and_paired_with_a_good_one(tmp_path, teach):
    """Prompt n: its first sample is bad in the n-th way, its second one is good."""
    prompts = list(solutions(len(BAD)))
    first = [openai_compatible.request_of(config(), one, 0, 0) for one in lent(len(BAD))]
    faults = {one.parameters["seed"]: BAD[name] for one, name in zip(first, BAD, strict=True)}
    asked = config(samples=2, first={"math": len(BAD)}, languages=("en",), temperature=1.0)
    with ChatServer(lambda request: faults.get(request.body["seed"]), reply=solver()) as server:
        given = lesson(tmp_path)
        rows = teach(server, asked, given)
    assert [row.prompt for row in examples(rows)] == prompts
    assert {name: given.tally[f"samples.{name}"] for name in BAD} == dict.fromkeys(BAD, 1)
    assert given.tally["samples.verified"] == len(BAD)
    pairs = {row.rejected_because: row for row in rows if isinstance(row, PreferencePair)}
    assert pairs.keys() == BAD.keys() - {"empty", "failed"}, "what was not said is not rejected"
    wrong = pairs["wrong"]
    assert (wrong.rejected_sample, wrong.chosen_sample, wrong.failed_check) == (0, 1, "numeric")


def test_a_response_in_the_wrong_form_or_language_is_asked_for_again_with_another_seed(
    tmp_path, teach
):
    """A third of the prompts gets prose first, another third German; the second response is right.
    Wrong answers are not asked again."""
    right, order = solver(), list(solutions(12))
    german = "Zusammen sind das mehr, als man auf den ersten Blick denkt, also zähle ich es nach."
    bad = [f"<reasoning>{text}</reasoning><answer>-99</answer>" for text in (german, "I guess.")]
    first: set[str] = set()

    def reply(body: dict[str, Any]) -> str:
        prompt = body["messages"][0]["content"].partition("\n\n")[2]
        if prompt in first:
            return right(body)
        first.add(prompt)
        return ["It is simple.", *bad][order.index(prompt) % 3]

    with ChatServer(reply=reply) as server:
        given = lesson(tmp_path)
        rows = teach(server, config(retries=1, languages=["en"]), given)
        assert server.count == 12 + 8
        assert len({request.body["seed"] for request in server.seen}) == 20
    assert given.tally["retried"] == 8
    right_ones = [prompt for place, prompt in enumerate(order) if place % 3 < 2]
    assert [row.prompt for row in examples(rows)] == right_ones
    counted = [given.tally[f"samples.{name}"] for name in ("verified", "wrong", "malformed")]
    assert counted == [8, 4, 0]


def test_prompts_that_nobody_solves_and_rows_that_are_none_are_told(tmp_path, teach):
    """A file with a broken line between its prompts: what was dropped stays in its place, however
    far ahead the engine reads."""
    data = tmp_path / "data"
    data.mkdir()
    lines = [json.dumps({"q": f"What is {n} + 1?", "r": "r", "a": str(n + 1)}) for n in range(6)]
    (data / "sums.jsonl").write_text("\n".join([*lines[:3], "{broken", *lines[3:], "{broken"]))
    columns = {"prompt": "q", "reasoning": "r", "answer": "a", "check": "numeric"}
    source = {"path": "sums.jsonl", "domain": "math", **columns, "max_bad_fraction": 0.5}
    asked = config(prompts=[{"name": "dataset", "sources": [source]}])

    def reply(body: dict[str, Any]) -> str:
        number = int(body["messages"][0]["content"].split()[-3])
        return f"<reasoning>r</reasoning><answer>{number + (1 if number != 4 else 2)}</answer>"

    with ChatServer(reply=reply, latency=0.02) as server:
        lessons = [replace(lesson(tmp_path / name), data=data) for name in ("a", "b")]
        rows, again = (teach(server, asked, given) for given in lessons)
    assert rows == again
    kinds = Counter(type(row).__name__ for row in rows)
    assert kinds == {"Example": 5, "Prompt": 1, "Dropped": 3}
    assert causes(rows) == {"broken_row": 2, "unsolved": 1}


def test_the_budget_holds_over_a_top_up(tmp_path: Path, teach: Teach) -> None:
    """distill spends some, the top-up what is left, on prompts that were not asked before, and then
    no more."""
    lender = {**LENDER, "rows": {"math": 100}}
    asked = config(prompts=[lender], first={"math": 10}, **PRICES, max_usd=0.0045)
    with ChatServer(reply=solver()) as server:
        first = lesson(tmp_path)
        rows = teach(server, asked, first)
        assert len(rows) == 10
        known = {row.id for row in examples(rows)}
        tokens = int(first.tally["input_tokens"] + first.tally["output_tokens"])
        spent = {"spent_usd": first.tally["usd"], "spent_tokens": tokens}
        top_up = lesson(tmp_path, wanted={Cell(Domain.MATH): 60}, known=known, **spent)
        more = teach(server, asked, top_up)
        new = {row.id for row in examples(more)}
        assert new
        assert not known & new
        assert causes(more).keys() == {"unasked"}
        assert first.tally["usd"] + top_up.tally["usd"] <= 0.0045
        assert first.tally["usd"] > 0 < top_up.tally["usd"]
        assert server.count == 10 + len(new)


def test_a_resumed_run_has_spent_what_it_spent(tmp_path: Path, teach: Teach) -> None:
    """Killed after four prompts: the continuation pays for the others alone, and ends with the same
    rows and the same bill."""
    priced = config(**PRICES, max_usd=0.0012)
    with ChatServer(reply=solver()) as server:
        whole, resumed = lesson(tmp_path), lesson(tmp_path)
        rows = teach(server, priced, whole)
        asked = server.count
        assert causes(rows).keys() == {"unasked"}
        assert asked > 5
        kept = {openai_compatible.request_of(priced, one, 0, 0).digest for one in lent(4)}
        for path in (tmp_path / "answers").glob("*/*"):
            if path.name not in kept:
                path.unlink()
        assert teach(server, priced, resumed) == rows
        assert server.count == asked + asked - 4
        assert resumed.tally["usd"] == whole.tally["usd"] > 0


def test_a_wrong_table_says_what_is_wrong() -> None:
    for changes, words in (
        ({"provider": "Open AI"}, "lower-case name"),
        ({"max_usd": 1.0}, "needs input_usd_per_million"),
        ({"parameters": {"temperature": 1, "n": 2}}, "n, temperature: set by"),
        ({"samples": 2, "temperature": 0.0}, "are all the same"),
        ({"model": ""}, "model"),
        ({"provders": 1}, "provider"),
    ):
        with pytest.raises(InputError, match=words):
            config(**changes)


def test_samples_without_a_seed_are_told_apart(tmp_path: Path, teach: Teach) -> None:
    """Gemini's compatible endpoint takes no seed; OpenAI's reasoning models call the bound by
    another name."""
    others = {"limit_parameter": "max_completion_tokens", "parameters": {"reasoning_effort": "low"}}
    asked = config(samples=3, seeded=False, **others)
    with ChatServer(reply=solver()) as server:
        teach(server, asked, lesson(tmp_path))
        assert server.count == 36
        assert not any({"seed", "max_tokens"} & request.body.keys() for request in server.seen)
        assert {request.body["reasoning_effort"] for request in server.seen} == {"low"}


def test_reasoning_that_comes_apart_becomes_the_trace(tmp_path: Path, teach: Teach) -> None:
    """gpt-oss on vLLM: the thinking in `reasoning_content`, the content is the answer."""
    known, apart = solutions(), said(reasoning_content="thought it through")
    reply = lambda body: known[body["messages"][0]["content"].partition("\n\n")[2]]  # noqa: E731
    with ChatServer(lambda request: apart, reply=reply) as server:
        rows = teach(server, config(), lesson(tmp_path))
    assert [row.reasoning for row in examples(rows)] == ["thought it through"] * 12
