"""The recipes that `tests/end_to_end/test_recipes.py` leaves out: two to five minutes each on two
cores."""

from pathlib import Path

import pytest

from tests.end_to_end.test_recipes import RECIPES, RUN_HERE, runs_on_a_laptop


@pytest.fixture(scope="session")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store: what recipes have in common runs once."""
    return tmp_path_factory.mktemp("recipes")


@pytest.mark.parametrize("name", sorted({*RECIPES} - {RUN_HERE}))
def test_a_recipe_runs_on_a_laptop(name, shared_store, prefect_api, capsys, monkeypatch):
    runs_on_a_laptop(name, shared_store, capsys, monkeypatch)
