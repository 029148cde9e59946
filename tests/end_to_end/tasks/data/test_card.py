"""The data card: the hub's own library loads the splits that it names."""

import pytest

from tests.tasks.data.test_card import made  # noqa: F401


def test_the_hubs_library_loads_the_splits_it_names(made, tmp_path):
    datasets = pytest.importorskip("datasets")
    loaded = datasets.load_dataset(str(made[0]), "default", cache_dir=str(tmp_path))
    assert {split: len(found) for split, found in loaded.items()} == {
        "train": 170,
        "validation": 4,
        "test": 8,
    }
