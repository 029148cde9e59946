"""Topping up: quotas that cleaning left short are met by asking the teachers again, within budgets,
and nothing is asked twice."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from schemas.base import InputError
from schemas.examples import Domain, Example, PreferencePair, Prompt
from tasks.cleaning.quotas import Shortfall
from tasks.contract.job import read_jsonl, write_jsonl
from tasks.data.dropped import Dropped
from tasks.stages import rebalance
from tasks.teachers import procedural
from tasks.teaching import topping_up
from tasks.teaching.lesson import Cell, Lesson, Row
from tasks.teaching.topping_up import KnownIds, unsolved_ids, wanted
from tests.tasks.stages.test_rebalance import PROCEDURAL, distilled, example, job, prose
from tests.tasks.stages.test_rebalance_cleaning import digests

NEAR = {"contamination": False, "near_duplicates": False}
MATH = {"quotas": {"math": {"train": 60, "heldout": 5}}}
ALIKE = {**MATH, "contamination": False}
FEW = {**MATH, **NEAR}


class Rehearsed:
    """A teacher that gives prose, counts what it is asked, and may have an end or break."""

    def __init__(
        self, has: int = 10**6, breaks_after: int | None = None, twice: bool = False
    ) -> None:
        self.lessons: list[Lesson] = []
        self._has, self._breaks_after, self._twice = has, breaks_after, twice

    def teach(self, config: object, lesson: Lesson) -> Iterator[Row]:
        self.lessons.append(lesson)
        assert lesson.wanted is not None
        if self._breaks_after is not None and len(self.lessons) > self._breaks_after:
            raise KeyboardInterrupt
        number = 0
        for cell, count in lesson.wanted.items():
            for _ in range(count):
                while (row := self._row(number, cell)).id in lesson.known:
                    number += 1
                number += 1
                if number > self._has:
                    return
                lesson.tally["usd"] += 0.5
                lesson.tally["output_tokens"] += 10
                yield row
                about = {"id": row.id, "prompt": row.prompt, "domain": row.domain}
                about |= {"chosen": "a", "rejected": "b", "chosen_from": "teacher"}
                yield PreferencePair(**about, rejected_because="wrong")

    def _row(self, number: int, cell: Cell) -> Example:
        text = prose(number // 10) + f" {number % 10}" if self._twice else prose(number)
        return example(text, difficulty=cell.difficulty or 1 + number % 5, family="rehearsed")


def rehearse(monkeypatch: pytest.MonkeyPatch, *teachers: Rehearsed) -> None:
    found = [(SimpleNamespace(teach=one.teach), None) for one in teachers]
    monkeypatch.setattr(topping_up, "teachers_of", lambda tables: found)


def few() -> list[Example]:
    return [example(prose(n), difficulty=1 + n % 5) for n in range(30)]


def test_the_procedural_teacher_fills_what_is_missing_and_gives_no_prompt_again(tmp_path):
    table = {**PROCEDURAL, "rows": {"math": 40}}
    rows = list(procedural.rows(procedural.Config.parse(table), 0))
    quotas = {"math": {"train": {"1": 30, "2": 5}, "validation": 2, "heldout": 12}}
    source = distilled(tmp_path / "in", rows, teachers=[table])
    made = job(tmp_path, source, quotas=quotas, **NEAR)
    metrics = rebalance.run(made)
    assert metrics["rows"] == {"train": 35, "validation": 2, "heldout": 12}
    assert metrics["domains"]["math"]["train"]["difficulty"] == {"1": 30, "2": 5}
    assert [one["given"] > 20 for one in metrics["top_ups"]][:1] == [True]
    assert metrics["dropped"] == {}, "a known prompt was given again"
    assert metrics["read"] == 40 + sum(one["given"] for one in metrics["top_ups"])


def test_what_is_asked_is_likely_to_be_enough():
    fractions = {"train": 0.8, "validation": 0.05, "heldout": 0.15}
    short = [
        Shortfall("quotas", "math", "heldout", None, 50, 20),
        Shortfall("quotas", "math", "train", None, 90, 80),
    ]
    (cell, count), *more = wanted(short, fractions, {"math": 60}, {"math": 120}).items()
    assert (cell, more) == (Cell(Domain.MATH), [])
    landed = np.random.default_rng(0).binomial(count, 0.15 * 0.5, 1000)
    assert 0.9 < (landed >= 30).mean() < 1.0
    count = wanted(short[1:], fractions, {}, {"math": 10**6})[Cell(Domain.MATH)]
    assert count <= (10 + 2 * 10**0.5) / 0.8 / 0.05 + 1
    one = Shortfall("grounding_quotas", "answerable", "train", 3, 1, 0)
    assert wanted([one], fractions, {}, {}) == {Cell("answerable", 3): 8}


def test_a_top_up_is_cleaned_with_the_rest_until_the_quotas_are_met(tmp_path, monkeypatch):
    """Nine of ten new rows are near duplicates of one another: the second round asks for
    accordingly more."""
    teacher = Rehearsed(twice=True)
    rehearse(monkeypatch, teacher)
    made = job(tmp_path, distilled(tmp_path / "in", few()), **ALIKE)
    metrics = rebalance.run(made)
    assert metrics["rows"] == {"train": 60, "validation": 0, "heldout": 5}
    assert 1 < len(metrics["top_ups"]) == len(teacher.lessons)
    assert metrics["dropped"]["near_duplicate"] > 100
    assert sum(teacher.lessons[1].wanted.values()) > sum(teacher.lessons[0].wanted.values())
    pairs = {pair.id for pair in read_jsonl(made.out / "pairs.jsonl", PreferencePair)}
    assert pairs, "pairs of a top-up are kept too"
    assert pairs <= {row.id for row in read_jsonl(made.out / "prompts.jsonl", Prompt)}


def test_each_round_knows_what_the_rounds_before_gave_and_spent(tmp_path, monkeypatch):
    teacher = Rehearsed(twice=True)
    rehearse(monkeypatch, teacher)
    source = distilled(tmp_path / "in", few(), spent=[{"usd": 3.0, "tokens": 100}])
    rebalance.run(job(tmp_path, source, **ALIKE))
    first, second = teacher.lessons[:2]
    given = sum(first.wanted.values())
    assert (first.spent_usd, first.spent_tokens) == (3.0, 100)
    assert (second.spent_usd, second.spent_tokens) == (3.0 + 0.5 * given, 100 + 10 * given)
    assert set(first.known) == {row.id for row in few()}
    assert len(second.known) == 30 + given


def test_a_stage_that_is_killed_asks_nothing_twice_and_ends_with_the_same_bytes(
    tmp_path, monkeypatch
):
    source, config = distilled(tmp_path / "in", few()), ALIKE
    rehearse(monkeypatch, whole := Rehearsed(twice=True))
    made = job(tmp_path, source, key="whole", **config)
    metrics = rebalance.run(made)
    assert len(whole.lessons) >= 2

    rehearse(monkeypatch, broken := Rehearsed(twice=True, breaks_after=1))
    with pytest.raises(KeyboardInterrupt):
        rebalance.run(job(tmp_path, source, key="killed", **config))
    rehearse(monkeypatch, again := Rehearsed(twice=True))
    resumed = job(tmp_path, source, key="killed", **config)
    assert rebalance.run(resumed) == metrics
    assert len(broken.lessons) == 2
    assert len(again.lessons) == len(whole.lessons) - 1, (
        "the round that was finished is not asked for again"
    )
    assert digests(resumed.out) == digests(made.out)


def test_what_one_teacher_does_not_give_the_next_is_asked_for(tmp_path, monkeypatch):
    silent, first, second = Rehearsed(has=0), Rehearsed(has=70), Rehearsed()
    rehearse(monkeypatch, silent, first, second)
    source = distilled(tmp_path / "in", few(), teachers=[PROCEDURAL] * 3)
    metrics = rebalance.run(job(tmp_path, source, **FEW))
    ((_, _, asked),) = metrics["top_ups"][0]["wanted"]
    given = 70 - len(few())
    wanted = [sum(one.lessons[0].wanted.values()) for one in (silent, first, second)]
    assert wanted == [asked, asked, asked - given]
    assert metrics["rows"]["train"] == 60


def test_teachers_that_have_no_more_are_named_in_the_table(tmp_path, monkeypatch):
    rehearse(monkeypatch, teacher := Rehearsed(has=34))
    source = distilled(tmp_path / "in", few())
    with pytest.raises(InputError) as error:
        rebalance.run(job(tmp_path, source, quotas={"math": {"train": 60}}, top_up=5, **NEAR))
    asked = sum(teacher.lessons[0].wanted.values())
    message = str(error.value)
    assert f"Top-up 1: the teachers were asked for {asked} rows and gave 4, for 2.00 US" in message
    assert "Top-up 2: " in message
    assert "Top-up 3: " not in message, "a round that gave nothing is the last"
    assert "math: 34 examples and 0 unsolved prompts were read; dropped: none; 34 exa" in message


def test_known_ids_are_a_set_of_strings():
    ids = ["00000000000000ff", "ffffffffffffffff", "0000000000000000"]
    known = KnownIds(np.array([int(one, 16) for one in [*ids, ids[0]]], np.uint64))
    assert (len(known), sorted(known)) == (3, sorted(ids))
    assert all(one in known for one in ids)
    assert "00000000000000fe" not in known
    assert "fffffffffffffffe" not in known


def test_prompts_that_nobody_solved_and_nobody_can_are_known(tmp_path: Path):
    rows: list[Any] = [
        Dropped(source="a", file="f", line=1, cause="unsolved", detail="", id="00000000000000aa"),
        Dropped(source="a", file="f", line=2, cause="unasked", detail="", id="00000000000000bb"),
        Dropped(source="a", file="f", line=3, cause="broken_row", detail=""),
    ]
    write_jsonl(tmp_path / "dropped.jsonl", rows)
    assert unsolved_ids([tmp_path]).tolist() == [0xAA]


def test_without_top_ups_nobody_is_asked_and_what_a_round_gave_is_in_the_metrics_as_json(
    tmp_path, monkeypatch
):
    rehearse(monkeypatch, teacher := Rehearsed())
    source = distilled(tmp_path / "in", few())
    with pytest.raises(InputError, match=r"quotas.math.train +60 "):
        rebalance.run(job(tmp_path, source, top_up=0, **FEW))
    assert teacher.lessons == []
    metrics = rebalance.run(job(tmp_path, source, **FEW))
    one, *_ = json.loads(json.dumps(metrics["top_ups"]))
    assert one["wanted"] == [["math", None, one["given"]]]
    spent = {"output_tokens": 10.0 * one["given"], "usd": 0.5 * one["given"]}
    assert one["teachers"] == [{"name": "procedural", **spent}]
