"""Each defect of rows that a rehearsal names, planted in rows that are sound without it."""

from collections import Counter
from typing import Any

import pytest

from schemas.evaluation import EvalPrompt
from schemas.examples import Constraint, Domain, Example
from tasks.rehearsal.row_findings import of_families, of_formats, of_leaks, of_quotas, of_references


def rows(count: int = 12, **changes: Any) -> list[Example]:
    found = []
    for i in range(1, count + 1):
        row: dict[str, Any] = {
            "id": f"{i:016x}",
            "prompt": f"A farmer has {i} hens and buys {i} more of them. How many has he then?",
            "domain": Domain.MATH,
            "answer": str(2 * i),
            "check": "numeric",
            "reasoning": f"He had {i} hens, and {i} and {i} make {2 * i}.",
            "family": "hens",
            "source": "hens.jsonl",
            "line": i,
        }
        found.append(Example.model_validate(row | {k: v(i) for k, v in changes.items()}))
    return found


def named(examples: list[Example]) -> list[str]:
    return [one.name for one in of_references(examples)[0]]


def test_sound_rows_have_no_finding() -> None:
    assert of_references(rows()) == ([], [])


SHORT = (Constraint(name="max_words", value=3),)
LIMITED = {"check": lambda i: "constraints", "constraints": lambda i: SHORT}
DEFECTS = {
    "refused:hens": LIMITED | {"answer": lambda i: "there are far too many hens"},
    "wordy:hens": {"check": lambda i: "exact", "answer": lambda i: "so many hens " * 6},
    "unworked:hens": {"reasoning": lambda i: str(2 * i)},
    "echo:hens": {
        "check": lambda i: "none",
        "answer": lambda i: rows()[i - 1].prompt + " That is the question.",
    },
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_named(name: str) -> None:
    assert named(rows(**DEFECTS[name])) == [name]


def test_one_row_that_its_check_refuses_is_shown_with_its_line() -> None:
    found, notes = of_references(
        rows(**LIMITED, answer=lambda i: "many more than ever before" if i == 7 else str(2 * i))
    )
    assert found == []
    assert len(notes) == 1
    assert notes[0].startswith("hens.jsonl:7: its own check refuses 'many more than ever before'")


def test_a_quota_of_a_domain_that_nobody_produces_is_named() -> None:
    """Of coding the router may find some later; of creative no source has any."""
    late = ["coding", "summarization"]
    found, notes = of_quotas(["math", *late, "creative"], {"math"}, late)
    assert [one.name for one in found] == ["quota:creative"]
    [note] = notes
    assert "rows of coding, summarization, and none is among the first ones" in note
    assert of_quotas(["math"], {"math"}, late) == ([], [])


GYM = "Write <think>...</think>, <proof>...</proof> and <answer>...</answer>. Why?"
OURS = "Write <reasoning>...</reasoning><answer>...</answer>. Why?"


@pytest.mark.parametrize(("taught", "other"), [("trace", "xml"), ("xml", "trace"), ("tags", "xml")])
def test_a_suite_or_a_stage_that_reads_another_format_than_is_taught_is_named(
    taught: Any, other: Any
) -> None:
    asked = {"dipg": [("Why?", other)] * 3, "grpo": [("Why?", other)] * 3}
    sound = {"gsm8k": [("Why?", taught)] * 3}
    found = of_formats([taught], asked | sound)
    assert [one.name for one in found] == ["format:dipg", "format:grpo"]
    assert f"channels = {other!r}" in found[0].text
    assert of_formats([taught, other], asked | sound) == []
    assert of_formats([], asked) == []


def test_a_suite_that_asks_for_other_tags_than_are_taught_is_named() -> None:
    html = "Close <div>...</div> and <b>x</b>."  # which asks for nothing
    asked: dict[str, Any] = {"gym": [GYM] * 3, "plain": ["Why?", html, html], "own": [OURS]}
    for taught, named, tags in (
        ("trace", "format:gym", "<think><proof><answer>"),
        ("xml", "format:own", "<reasoning><answer>"),
    ):
        read = {name: [(text, taught) for text in texts] for name, texts in asked.items()}
        found = of_formats([taught], read)  # type: ignore[list-item]
        assert [one.name for one in found] == [named]
        assert f"asks for {tags}, and SFT teaches" in found[0].text


def test_prompts_that_are_trained_on_are_named_with_both_places() -> None:
    trained = rows()
    heldout = [EvalPrompt.of(trained[2])]
    copied = EvalPrompt.of(trained[4]).model_copy(
        update={"suite": "exam", "prompt": trained[4].prompt.upper(), "source": "exam.jsonl"}
    )
    found = of_leaks(trained, [*heldout, copied, EvalPrompt.of(rows(20)[15])])
    assert [one.name for one in found] == ["leak:heldout", "leak:exam"]
    assert "hens.jsonl:3" in found[0].text
    assert "exam.jsonl:5" in found[1].text
    assert "hens.jsonl:5" in found[1].text


def test_a_family_of_which_nothing_is_left_to_train_on_is_named() -> None:
    """Of 20 haystacks all fall out; of 20 articles 3 do, which is how cleaning works; that of 3 odd
    rows none trains is chance; and what a split took was not lost."""
    given = Counter({"haystack": 20, "articles": 20, "odd": 3, "held out": 4})
    trained = Counter({"articles": 12})
    dropped = {
        "haystack": Counter({"contaminated": 14, "near_duplicate": 2}),
        "articles": Counter({"contaminated": 3}),
        "odd": Counter({"language": 3}),
    }
    (found,) = of_families(given, trained, dropped)
    assert found.name == "lost:haystack"
    assert "contaminated 14, near_duplicate 2" in found.text
