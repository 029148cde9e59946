"""The recipes that `tests/end_to_end/test_recipes.py` leaves out: two to five minutes each on two
cores."""

from pathlib import Path

import pytest

from tests.end_to_end.test_recipes import (
    RECIPES,
    RUN_HERE,
    runs_on_a_laptop,
    shared_store,  # noqa: F401
)


@pytest.mark.parametrize("name", sorted(set(RECIPES) - set(RUN_HERE)))
def test_a_recipe_runs_on_a_laptop(name: str, shared_store: Path, prefect_api: str) -> None:
    runs_on_a_laptop(name, shared_store)
