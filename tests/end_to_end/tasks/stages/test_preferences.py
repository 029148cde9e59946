"""ORPO mines pairs, trains on them, and the margin grows."""

from pathlib import Path

from tasks.stages import orpo
from tests.tasks.stages.test_preferences import job, mines_trains_and_grows  # noqa: F401


def test_orpo_mines_pairs_trains_on_them_and_the_margin_grows(job, tmp_path: Path):
    mines_trains_and_grows(orpo, job, tmp_path)
