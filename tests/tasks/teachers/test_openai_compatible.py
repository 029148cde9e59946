"""The teacher behind an OpenAI-compatible API: from prompts to verified rows, with a server that
answers badly in every way."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.store.answers import Answers
from infra.store.store import open_store
from schemas.base import InputError
from schemas.examples import Domain, Example, PreferencePair, Prompt
from tasks.chat import breaker
from tasks.chat import engine as engine_module
from tasks.contract.teacher import TEACHERS
from tasks.data.dropped import Dropped
from tasks.teachers import openai_compatible
from tasks.teaching.lesson import Cell, Lesson, Row
from tests.fakes.chat_server import ChatServer, Fault

LENDER = {"name": "procedural", "rows": {"math": 12}, "grounded": {}}


def config(**changes: Any) -> openai_compatible.Config:
    table = {
        "name": "openai_compatible",
        "provider": "test",
        "model": "m",
        "prompts": [LENDER],
        "max_response_tokens": 64,
        "retries": 0,
    }
    parsed = TEACHERS.parse({**table, **changes}, "teachers.0")
    assert isinstance(parsed, openai_compatible.Config)
    return parsed


def lesson(store: Path, **changes: Any) -> Lesson:
    return Lesson(seed=0, data=None, answers=Answers(open_store(store)), **changes)


def solutions(rows: int = 200) -> dict[str, str]:
    """Prompt -> answer of all that is lent."""
    lender = TEACHERS["procedural"]
    table = TEACHERS.parse({**LENDER, "rows": {"math": rows}}, "")
    return {
        prompt.prompt: prompt.answer
        for prompt in lender.prompts(table, Lesson(0, None, answers=None))
    }  # type: ignore[arg-type]


def solver() -> Callable[[dict[str, Any]], str]:
    known = solutions()

    def reply(body: dict[str, Any]) -> str:
        prompt = body["messages"][0]["content"].partition("\n\n")[2]
        return f"<reasoning>I worked it out.</reasoning>\n<answer>{known[prompt]}</answer>"

    return reply


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(breaker, "LONGEST_PAUSE", 0.05)


def teach(
    server: ChatServer,
    monkeypatch: pytest.MonkeyPatch,
    asked: openai_compatible.Config,
    given: Lesson,
) -> list[Row]:
    monkeypatch.setenv("TEST_BASE_URL", server.url)
    return list(openai_compatible.teach(asked, given))


def test_verified_traces_come_in_the_order_of_the_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ChatServer(reply=solver(), latency=0.01) as server:
        given = lesson(tmp_path)
        rows = teach(server, monkeypatch, config(), given)
        assert [row.prompt for row in rows if isinstance(row, Example)] == list(solutions(12))
        assert {row.reasoning for row in rows if isinstance(row, Example)} == {"I worked it out."}
        assert (
            given.tally["requests"],
            given.tally["cached"],
            given.tally["samples.verified"],
        ) == (12, 0, 12)
        body = server.seen[0].body
        assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0.7, 64)
        assert len({request.body["seed"] for request in server.seen}) == 12
        # Another process, another recipe: the same rows, and nothing is asked.
        again = lesson(tmp_path)
        assert teach(server, monkeypatch, config(), again) == rows
        assert (again.tally["requests"], again.tally["cached"]) == (0, 12)
        assert server.count == 12


BAD: dict[str, Fault] = {
    "wrong": Fault(
        "change",
        change=lambda body: set_text(
            body, "<reasoning>a guess</reasoning>\n<answer>-99999</answer>"
        ),
    ),
    "malformed": Fault("change", change=lambda body: set_text(body, "The answer is four.")),
    "language": Fault(
        "change",
        change=lambda body: set_text(
            body,
            text_of(body).replace(
                "I worked it out.",
                "Nous avons calculé la somme de tous les nombres et la réponse est juste.",
            ),
        ),
    ),
    "refused": Fault(
        "change", change=lambda body: set_text(body, "I'm sorry, but I can't help with that.")
    ),
    "truncated": Fault(
        "change", change=lambda body: body["choices"][0].update(finish_reason="length")
    ),
    "empty": Fault("change", change=lambda body: set_text(body, "")),
    "failed": Fault("status", 400, '{"error": {"message": "content too long"}}'),
}


def text_of(body: dict[str, Any]) -> str:
    return str(body["choices"][0]["message"]["content"])


def set_text(body: dict[str, Any], text: str) -> None:
    body["choices"][0]["message"]["content"] = text


def test_every_bad_response_is_classified_and_paired_with_a_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompt n: its first sample is bad in the n-th way, its second one is good."""
    prompts = list(solutions(len(BAD)))
    seeds = {
        openai_compatible.request_of(config(samples=2), prompt, 0, 0).parameters["seed"]: name
        for prompt, name in zip(lent(len(BAD)), BAD, strict=True)
    }
    faults = lambda request: (  # noqa: E731
        BAD[seeds[request.body["seed"]]] if request.body["seed"] in seeds else None
    )
    asked = config(samples=2, first={"math": len(BAD)}, languages=("en",), temperature=1.0)
    with ChatServer(faults, reply=solver()) as server:
        given = lesson(tmp_path)
        rows = teach(server, monkeypatch, asked, given)
    assert [row.prompt for row in rows if isinstance(row, Example)] == prompts
    assert {name: given.tally[f"samples.{name}"] for name in BAD} == dict.fromkeys(BAD, 1)
    assert given.tally["samples.verified"] == len(BAD)
    pairs = {row.rejected_because: row for row in rows if isinstance(row, PreferencePair)}
    assert pairs.keys() == BAD.keys() - {"empty", "failed"}, (
        "nothing that was not said is a rejected response"
    )
    assert (
        pairs["wrong"].rejected_sample,
        pairs["wrong"].chosen_sample,
        pairs["wrong"].failed_check,
    ) == (0, 1, "numeric")


def lent(rows: int) -> list[Prompt]:
    lender = TEACHERS["procedural"]
    table = TEACHERS.parse({**LENDER, "rows": {"math": rows}}, "")
    return list(lender.prompts(table, Lesson(0, None, answers=None)))  # type: ignore[arg-type]


def test_a_response_in_the_wrong_form_or_language_is_asked_for_again_with_another_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third of the prompts gets prose first, another third German; the second response is right.
    Wrong answers are not asked again."""
    right, order = solver(), list(solutions(12))
    german = (
        "<reasoning>Zusammen sind das mehr, als man auf den ersten Blick denkt, also zähle ich es"
        " nach.</reasoning>\n<answer>9</answer>"
    )
    first: set[str] = set()

    def reply(body: dict[str, Any]) -> str:
        prompt = body["messages"][0]["content"].partition("\n\n")[2]
        if prompt in first:
            return right(body)
        first.add(prompt)
        return ["It is simple.", german, "<reasoning>I guess.</reasoning>\n<answer>-99</answer>"][
            order.index(prompt) % 3
        ]

    numbers = {"name": "procedural", "rows": {"math": 12}, "grounded": {}}
    with ChatServer(reply=reply) as server:
        given = lesson(tmp_path)
        rows = teach(
            server, monkeypatch, config(retries=1, languages=["en"], prompts=[numbers]), given
        )
        assert server.count == 12 + 8
        assert len({request.body["seed"] for request in server.seen}) == 20
    assert given.tally["retried"] == 8
    examples = [row.prompt for row in rows if isinstance(row, Example)]
    assert examples == [prompt for place, prompt in enumerate(order) if place % 3 < 2]
    assert (
        given.tally["samples.verified"],
        given.tally["samples.wrong"],
        given.tally["samples.malformed"],
    ) == (8, 4, 0)


def test_prompts_that_nobody_solves_and_rows_that_are_none_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with a broken line between its prompts: what was dropped stays in its place, however
    far ahead the engine reads."""
    data = tmp_path / "data"
    data.mkdir()
    lines = [
        json.dumps({"q": f"What is {number} + 1?", "r": "one more", "a": str(number + 1)})
        for number in range(6)
    ]
    (data / "sums.jsonl").write_text(
        "\n".join([*lines[:3], "{broken", *lines[3:], "{broken"]) + "\n", encoding="utf-8"
    )
    source = {
        "path": "sums.jsonl",
        "domain": "math",
        "prompt": "q",
        "reasoning": "r",
        "answer": "a",
        "check": "numeric",
    }
    lender = {"name": "dataset", "sources": [{**source, "max_bad_fraction": 0.5}]}

    def reply(body: dict[str, Any]) -> str:
        number = int(body["messages"][0]["content"].split()[-3])
        return f"<reasoning>r</reasoning><answer>{number + (1 if number != 4 else 2)}</answer>"

    with ChatServer(reply=reply, latency=0.02) as server:
        monkeypatch.setenv("TEST_BASE_URL", server.url)
        found = [
            list(
                openai_compatible.teach(
                    config(prompts=[lender]), Lesson(0, data, Answers(open_store(tmp_path / name)))
                )
            )
            for name in ("a", "b")
        ]
    assert found[0] == found[1]
    kinds = Counter(type(row).__name__ for row in found[0])
    assert kinds == {"Example": 5, "Prompt": 1, "Dropped": 3}
    assert Counter(row.cause for row in found[0] if isinstance(row, Dropped)) == {
        "broken_row": 2,
        "unsolved": 1,
    }


def test_the_budget_holds_over_a_top_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """distill spends some, the top-up what is left, on prompts that were not asked before, and then
    no more."""
    lender = {**LENDER, "rows": {"math": 100}}
    asked = config(
        prompts=[lender],
        first={"math": 10},
        input_usd_per_million=1.0,
        output_usd_per_million=2.0,
        max_usd=0.0045,
        max_response_tokens=64,
    )
    with ChatServer(reply=solver()) as server:
        first = lesson(tmp_path)
        rows = teach(server, monkeypatch, asked, first)
        assert len(rows) == 10
        known = {row.id for row in rows if isinstance(row, Example)}
        tokens = int(first.tally["input_tokens"] + first.tally["output_tokens"])
        top_up = lesson(
            tmp_path,
            wanted={Cell(Domain.MATH): 60},
            known=known,
            spent_usd=first.tally["usd"],
            spent_tokens=tokens,
        )
        more = teach(server, monkeypatch, asked, top_up)
        examples = [row for row in more if isinstance(row, Example)]
        assert examples
        assert not known & {row.id for row in examples}
        assert {row.cause for row in more if isinstance(row, Dropped)} == {"unasked"}
        assert first.tally["usd"] + top_up.tally["usd"] <= 0.0045
        assert first.tally["usd"] > 0 < top_up.tally["usd"]
        assert server.count == 10 + len(examples)


def test_a_resumed_run_has_spent_what_it_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after four prompts: the continuation pays for the others alone, and ends with the same
    rows and the same bill."""
    prices = {"input_usd_per_million": 1.0, "output_usd_per_million": 2.0, "max_usd": 0.0012}
    with ChatServer(reply=solver()) as server:
        whole, resumed = lesson(tmp_path), lesson(tmp_path)
        rows = teach(server, monkeypatch, config(**prices), whole)
        asked = server.count
        assert {row.cause for row in rows if isinstance(row, Dropped)} == {"unasked"}
        assert asked > 5
        kept = {
            openai_compatible.request_of(config(**prices), prompt, 0, 0).digest
            for prompt in lent(4)
        }
        for path in (tmp_path / "answers").glob("*/*"):
            if path.name not in kept:
                path.unlink()
        assert teach(server, monkeypatch, config(**prices), resumed) == rows
        assert server.count == asked + asked - 4
        assert resumed.tally["usd"] == whole.tally["usd"] > 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"provider": "Open AI"}, "lower-case name"),
        ({"max_usd": 1.0}, "needs input_usd_per_million"),
        ({"parameters": {"temperature": 1, "n": 2}}, "n, temperature: set by"),
        ({"samples": 2, "temperature": 0.0}, "are all the same"),
        ({"model": ""}, "model"),
        ({"provders": 1}, "provider"),
    ],
)
def test_a_wrong_table_says_what_is_wrong(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        config(**changes)


def test_samples_without_a_seed_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gemini's compatible endpoint takes no seed; OpenAI's reasoning models call the bound by
    another name."""
    asked = config(
        samples=3,
        seeded=False,
        limit_parameter="max_completion_tokens",
        parameters={"reasoning_effort": "low"},
    )
    with ChatServer(reply=solver()) as server:
        teach(server, monkeypatch, asked, lesson(tmp_path))
        assert server.count == 36
        assert all(
            "seed" not in request.body and "max_tokens" not in request.body
            for request in server.seen
        )
        assert {request.body["reasoning_effort"] for request in server.seen} == {"low"}


def test_reasoning_that_comes_apart_becomes_the_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gpt-oss on vLLM: the thinking in `reasoning_content`, the content is the answer."""
    known = solutions()

    def apart(body: dict[str, Any]) -> None:
        body["choices"][0]["message"]["reasoning_content"] = "thought it through"

    reply = lambda body: known[body["messages"][0]["content"].partition("\n\n")[2]]  # noqa: E731
    with ChatServer(lambda request: Fault("change", change=apart), reply=reply) as server:
        rows = teach(server, monkeypatch, config(), lesson(tmp_path))
    assert [row.reasoning for row in rows if isinstance(row, Example)] == [
        "thought it through"
    ] * 12


def test_a_missing_endpoint_is_told_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEST_BASE_URL", raising=False)
    with pytest.raises(InputError, match="set TEST_BASE_URL"):
        list(openai_compatible.teach(config(), lesson(tmp_path)))
