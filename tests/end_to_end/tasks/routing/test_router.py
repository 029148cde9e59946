"""The task router: its floors on real labelled prompts that it has never read."""

from collections import Counter
from functools import cache

import pytest

from schemas.examples import normalise_prompt
from tasks.routing.classifier import training_prompts
from tasks.routing.router import Route, confusion, route
from tests.end_to_end.tasks.records import needs_records
from tests.end_to_end.tasks.routing.router_sets import CLEAR, Labelled, real_sets

MOST = 250
"""Prompts of a set that are routed here, evenly spread."""


@cache
def routed() -> dict[str, tuple[list[Labelled], list[Route]]]:
    """The sets whose labels are domains, with their routes."""
    real = real_sets()
    sets = {name: real[name][:: -(-len(real[name]) // MOST)] for name in real if name in CLEAR}
    return {name: (rows, route([row.prompt for row in rows])) for name, rows in sets.items()}


@needs_records
def test_nine_of_ten_real_prompts_go_to_their_domain_and_four_of_five_of_every_domain() -> None:
    """Also when three textbooks of mathematics count as science, as SciBench's label has them."""
    for reading in ("domain", "second"):
        stated = [getattr(row, reading) for rows, _ in routed().values() for row in rows]
        said = [one.domain for _, routes in routed().values() for one in routes]
        found = confusion(Counter(zip(stated, said, strict=True)))
        assert found["n"] > 1500
        assert found["accuracy"] >= 0.9, found
        assert min(found["recall"].values()) >= 0.8, found["recall"]


FLOORS = dict.fromkeys(("gsm8k", "pubmedqa", "xstest"), 0.9)
FLOORS |= dict.fromkeys(("chemiq", "scitldr", "scitldr.bare"), 0.95) | {"humaneval": 0.99}


@needs_records
@pytest.mark.parametrize("name", FLOORS)
def test_a_set_of_one_domain_is_recognised(name: str) -> None:
    rows, routes = routed()[name]
    right = sum(row.domain == one.domain for row, one in zip(rows, routes, strict=True))
    assert right >= FLOORS[name] * len(rows), Counter(one.domain.value for one in routes)


@needs_records
def test_the_training_prompts_share_no_eight_words_and_no_whole_prompt_with_what_is_measured():
    def grams(prompt: str) -> set[tuple[str, ...]]:
        words = normalise_prompt(prompt).split()
        return {tuple(words[start : start + 8]) for start in range(len(words) - 7)}

    measured = [row.prompt for rows in real_sets().values() for row in rows]
    ours = [prompt for prompt, _ in training_prompts()]
    assert not {normalise_prompt(prompt) for prompt in ours} & {
        normalise_prompt(prompt) for prompt in measured
    }
    known = set().union(*map(grams, measured))
    assert len(known) > 100_000
    assert [prompt for prompt in ours if grams(prompt) & known] == []


@needs_records
def test_textbook_problems_look_harder_than_school_problems() -> None:
    """A mean over sets; of single prompts the formula says little."""
    mean = {
        name: sum(one.difficulty for one in routes) / len(routes)
        for name, (_, routes) in routed().items()
    }
    assert mean["scibench"] > mean["gsm8k"] > mean["xstest"] + 0.5
