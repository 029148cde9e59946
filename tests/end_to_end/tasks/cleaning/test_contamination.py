"""Planted leaks and near-duplicates in GSM8K."""

from tests.end_to_end.tasks.cleaning.planted import EACH, LEAKS, plant
from tests.end_to_end.tasks.records import SHARED, needs_records


@needs_records
def test_planted_leaks_and_near_duplicates_in_gsm8k_are_found(tmp_path):
    """Floors below what was measured: docs/measurements.md."""
    outcome = plant(SHARED, tmp_path)
    floors = {
        "exact": 1.0,
        "respelled": 0.99,
        "embedded": 0.99,
        "words or numbers": 0.88,
        "reordered or half": 0.88,
    }
    assert set(floors) == set(LEAKS)
    missed = {name: found for name, found in outcome.leaks.items() if found < EACH * floors[name]}
    assert missed == {}
    assert sum(outcome.edits.values()) >= 465
    assert (outcome.wrong_leaks, outcome.wrong_duplicates) == (0, 0)
