"""What gives an evaluation item away, and what does not."""

import random

import pytest

from tasks.cleaning.contamination import COVERAGE, EXACT, RUN, TEMPLATE_ITEMS, index
from tasks.cleaning.rules import Contamination
from tasks.cleaning.shingles import words_of
from tests.tasks.cleaning.cleaning_rows import text


def judge(items: list[str], row: str) -> tuple[int, int, float]:
    hits, found, scores = index(*words_of(items), Contamination()).scan(*words_of([row]))
    return int(hits[0]), int(found[0]), round(float(scores[0]), 4)


def words(first: int, count: int) -> str:
    """Words that no other call with other numbers gives."""
    return " ".join(f"w{at}" for at in range(first, first + count))


def test_short_texts_are_compared_as_wholes_only():
    items = [words(0, 7), words(100, 20)]
    assert judge(items, words(0, 7).upper() + "?") == (EXACT, 0, 1.0)
    assert judge(items, words(0, 7) + " more") == (0, -1, 0.0)
    assert judge(items, words(0, 6)) == (0, -1, 0.0)
    assert judge(items, words(100, 7)) == (0, -1, 0.0)


def test_texts_without_words_are_nobodys():
    assert judge(["...", "", words(0, 9)], "!?") == (0, -1, 0.0)
    assert judge([], words(0, 9)) == (0, -1, 0.0)


def test_half_of_the_eight_grams_are_enough_and_less_are_not():
    """An item of 15 words has 8 8-grams. A row with its first 11 words has 4 of them, with its
    first 10 words 3; the rest is another's. A piece of a long item is a leak, too."""
    item = words(0, 15)
    assert judge([item], f"{words(0, 11)} {words(500, 40)}") == (COVERAGE, 0, 0.5)
    assert judge([item], f"{words(0, 10)} {words(500, 40)}") == (0, -1, 0.0)
    assert judge([words(0, 200)], words(60, 9)) == (COVERAGE, 0, 1.0)


def test_a_run_of_thirteen_words_is_enough_and_of_twelve_is_not():
    """Both texts have 100 words: 6 or 5 of 93 8-grams."""
    item = words(0, 100)
    found = judge([item], f"{words(500, 40)} {words(30, 13)} {words(600, 47)}")
    assert found == (RUN, 0, round(6 / 93, 4))
    assert judge([item], f"{words(500, 40)} {words(30, 12)} {words(600, 48)}") == (0, -1, 0.0)


def test_two_runs_of_different_items_are_no_run():
    row = f"{words(500, 40)} {words(30, 10)} {words(230, 10)} {words(600, 40)}"
    assert judge([words(0, 100), words(200, 100)], row) == (0, -1, 0.0)


def test_repeated_words_count_once():
    """Nine copies of the same nine words have no more distinct 8-grams than two."""
    item = words(0, 9)
    assert judge([item], " ".join([item] * 9)) == (COVERAGE, 0, 1.0)
    assert judge([words(0, 40)], " ".join([words(0, 8), words(300, 4)] * 9))[0] == 0


def test_the_item_with_the_highest_coverage_is_named_and_of_equal_ones_the_first():
    items = [f"{words(0, 12)} {words(700, 6)}", words(0, 14), words(0, 14) + "!"]
    assert judge(items, f"{words(0, 13)} {words(900, 9)}")[:2] == (COVERAGE, 1)
    assert judge(items, words(0, 14)) == (EXACT, 1, 1.0)


def test_templates_identify_no_item():
    """n-grams of more than ten items do not count; what is left of an item does."""
    template = words(0, 20)
    items = [f"{template} {words(1000 + 100 * at, 24)}" for at in range(TEMPLATE_ITEMS + 1)]
    assert judge(items, f"{template} {words(5000, 12)}") == (0, -1, 0.0)
    assert judge(items, f"{template} {words(1300, 24)}")[:2] == (EXACT, 3)
    assert judge(items, f"{template} {words(5000, 12)} {words(1300, 24)}")[:2] == (COVERAGE, 3)
    assert judge(items[:TEMPLATE_ITEMS], f"{template} {words(5000, 12)}")[:2] == (COVERAGE, 0)


def test_an_item_that_a_set_has_a_dozen_times_is_no_template():
    """As where each question stands with every model's answer to it."""
    items = [words(100, 20), *[words(0, 20)] * 12]
    assert judge(items, f"{words(0, 19)} {words(5000, 2)}") == (COVERAGE, 1, round(12 / 13, 4))
    assert judge(items, words(0, 20)) == (EXACT, 1, 1.0)


def test_an_index_finds_what_comparing_sets_finds():
    rng = random.Random(3)
    items = [text(rng, rng.randint(5, 50)) for _ in range(40)]
    rows = []
    for _ in range(200):
        kind, words_ = rng.random(), rng.choice(items).split()
        cut = rng.randrange(len(words_))
        if kind < 0.3:
            rows.append(text(rng, 30))
        else:
            rows.append(" ".join([text(rng, 10), *words_[cut : cut + rng.randint(5, 30)]]))

    def grams(value: str, size: int) -> set[tuple[str, ...]]:
        parts = value.split()
        return {tuple(parts[at : at + size]) for at in range(len(parts) - size + 1)}

    hits, found, scores = index(*words_of(items), Contamination()).scan(*words_of(rows))
    for row, hit, item, score in zip(rows, hits, found, scores, strict=True):
        leaks = {}
        for at, one in enumerate(items):
            mine, its = grams(row, 8), grams(one, 8)
            covered = len(mine & its) / min(len(mine), len(its)) if mine and its else 0.0
            if covered >= 0.5 or (covered and grams(row, 13) & grams(one, 13)):
                leaks[at] = covered
        if row in items:
            assert hit == EXACT
        elif leaks:
            assert score == pytest.approx(max(leaks.values()))
            assert leaks[int(item)] == pytest.approx(float(score))
        else:
            assert hit == 0
