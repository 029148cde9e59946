"""The rehearsals that `tests/end_to_end/flows/test_rehearse.py` leaves out: a minute or two each on
two cores."""

import pytest

from flows.recipe.shipped import shipped_recipes
from tests.end_to_end.flows.test_rehearse import (
    REHEARSED_HERE,
    hub,  # noqa: F401
    passes_its_rehearsal,
)
from tests.end_to_end.tasks.records import needs_records


@needs_records
@pytest.mark.parametrize("name", sorted(set(shipped_recipes()) - set(REHEARSED_HERE)))
def test_a_shipped_recipe_passes_its_rehearsal(name, hub, tmp_path, prefect_api):
    passes_its_rehearsal(name, hub, tmp_path)
