"""The procedural teacher: how its families are mixed and topped up. Answers are recomputed in
tests/tasks/teaching/test_families.py."""

from collections import Counter
from collections.abc import Iterable
from functools import cache

import pytest

from schemas.base import InputError
from schemas.examples import Domain, Example, Prompt, parse_trace, prompt_id
from tasks.contract.teacher import TEACHERS
from tasks.teachers import procedural
from tasks.teaching.lesson import Cell, Lesson

PER_DOMAIN = 400
PER_GROUNDING = 300


def config(**values) -> procedural.Config:
    return TEACHERS.parse({"name": "procedural", **values}, "test")


@cache
def taught() -> tuple[Example, ...]:
    rows = dict.fromkeys(Domain, PER_DOMAIN)
    grounded = dict.fromkeys(procedural.GROUNDINGS, PER_GROUNDING)
    return tuple(procedural.rows(config(rows=rows, grounded=grounded), 7))


def test_no_two_prompts_are_the_same_and_ids_are_those_of_the_prompts():
    rows = taught()
    assert len({row.id for row in rows}) == len(rows) == 6 * PER_DOMAIN + 3 * PER_GROUNDING
    assert all(row.id == prompt_id(row.prompt) for row in rows)


def test_another_format_changes_how_rows_are_written_and_nothing_else():
    asked = {"rows": {"math": 20}, "grounded": dict.fromkeys(procedural.GROUNDINGS, 20)}
    own, gym = (
        list(procedural.rows(config(**asked, **form), 7)) for form in ({}, {"channels": "xml"})
    )
    changes = {"channels": "trace", "proof": ""}
    assert [row.model_copy(update=changes) for row in gym] == own
    for row in gym:
        assert parse_trace(row.response(), "xml") == row.trace()
        assert bool(row.proof) == (row.grounding == "answerable")
        assert row.proof.strip('"') in (row.context or "")


def test_families_and_difficulties_are_evenly_mixed():
    counts = Counter((row.family, row.difficulty) for row in taught() if row.grounding is None)
    assert set(counts.values()) == {PER_DOMAIN // 4 // 5}
    assert {difficulty for _, difficulty in counts} == {1, 2, 3, 4, 5}


def test_the_same_seed_gives_the_same_rows_and_another_seed_others():
    small = config(rows={"math": 40, "coding": 40}, grounded={"answerable": 20})
    rows = list(procedural.rows(small, 1))
    assert rows == list(procedural.rows(small, 1))
    others = {row.id for row in procedural.rows(small, 2)}
    assert len(others & {row.id for row in rows}) < len(rows) / 4


def test_asking_for_more_rows_keeps_those_there_were():
    few = list(procedural.rows(config(rows={"general": 30}, grounded={}), 3))
    many = list(procedural.rows(config(rows={"general": 90}, grounded={}), 3))
    assert many[:30] == few


def test_more_rows_than_a_family_has_is_an_error_that_names_it():
    said = r"20000 rows of math exceed what family math\.\w+ has: .* Ask for fewer rows"
    with pytest.raises(InputError, match=said):
        list(procedural.rows(config(rows={"math": 20000}, grounded={}), 0))


def test_an_unknown_domain_is_an_error_that_lists_the_domains():
    valid = "coding, creative, general, math, science, summarization"
    with pytest.raises(InputError, match=rf"'maths'.*mean 'math'\? Valid: {valid}\."):
        config(rows={"maths": 10})


def test_the_version_of_reasoning_gym_is_a_dependency():
    assert set(procedural.dependencies(config(), None)) == {"package.reasoning-gym"}


# Top-ups


def top_up(wanted: dict[Cell, int], known: Iterable[str], **values) -> list[Example]:
    lesson = Lesson(seed=7, data=None, answers=None, wanted=wanted, known=frozenset(known))
    return list(procedural.teach(config(**values), lesson))


def test_a_top_up_fills_exactly_the_missing_cells_with_prompts_that_nobody_knows():
    known = {row.id for row in taught()}
    wanted = {Cell(Domain.MATH, level): 20 for level in range(1, 6)}
    wanted |= {Cell(Domain.SCIENCE): 33, Cell("unanswerable", 5): 9}
    rows = top_up(wanted, known)
    assert not known & {row.id for row in rows}
    assert len({row.id for row in rows}) == len(rows)
    counts = Counter((row.grounding or row.domain, row.difficulty) for row in rows)
    science = [counts.pop((Domain.SCIENCE, level)) for level in range(1, 6)]
    assert sum(science) == 33
    assert counts == {**{("math", level): 20 for level in range(1, 6)}, ("unanswerable", 5): 9}
    assert rows == top_up(wanted, known)


def test_a_top_up_goes_on_where_the_known_rows_end():
    few, many = (
        list(procedural.rows(config(rows={"general": rows}, grounded={}), 7)) for rows in (40, 80)
    )
    known = (row.id for row in few)
    added = top_up({Cell(Domain.GENERAL): 40}, known, rows={"general": 40}, grounded={})
    assert {row.id for row in added} == {row.id for row in many} - {row.id for row in few}


def test_a_top_up_of_what_the_config_does_not_name_or_a_family_does_not_have_gives_less():
    assert top_up({Cell(Domain.MATH): 5}, (), rows={"coding": 5}, grounded={}) == []
    assert len(top_up({Cell(Domain.MATH): 5}, (), rows={"math": 0}, grounded={})) == 5


def test_prompts_are_those_of_the_rows():
    small = config(rows={"math": 10}, grounded={"answerable": 5})
    lesson = Lesson(seed=7, data=None, answers=None)
    lent, rows = list(procedural.prompts(small, lesson)), list(procedural.teach(small, lesson))
    assert {type(row) for row in lent} == {Prompt}
    without = [row.model_dump(exclude={"reasoning"}) for row in rows]
    assert [row.model_dump() for row in lent] == without
