"""The same cleaning on Ray's local runner. Needs the extra `cluster`."""

import pytest

from tasks.cleaning import survey
from tasks.cleaning.rules import COLUMNS
from tasks.stages import rebalance
from tests.tasks.cleaning.cleaning_rows import TooLong, cleaned, corpus, write
from tests.tasks.stages.test_rebalance import distilled, job
from tests.tasks.stages.test_rebalance_cleaning import CLEANED, digests, exam, mixed  # noqa: F401

ray = pytest.importorskip(
    "ray", reason="the extra `cluster` is not installed: uv sync --extra cluster"
)
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(autouse=True)
def runner(monkeypatch):
    """Ray on this machine, and blocks of few rows."""
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.setattr(survey, "BLOCK_BYTES", 2**14)
    yield
    ray.shutdown()


def test_a_cluster_decides_what_one_machine_decides(tmp_path):
    rows, items = corpus(3)
    files, long = write(rows, tmp_path / "rows", 2), (TooLong(300),)
    here = cleaned(files, tmp_path / "here", items, filters=long)
    assert len(here.counts()) == 5
    assert set(here.hit) >= {0, 1, 2, 5}, "hits of the evaluation set and of the held-out split"
    there = cleaned(files, tmp_path / "there", items, filters=long, partitions=2)
    for name in COLUMNS:
        if name != "words":
            assert (getattr(there, name) == getattr(here, name)).all(), name
    assert list(there.dropped()) == list(here.dropped())
    assert there.digest() == here.digest()


def test_a_rebalance_stage_cleans_where_ray_is(tmp_path, exam, monkeypatch):
    examples, unsolved, pairs = mixed()
    source = distilled(tmp_path / "in", examples, unsolved=unsolved, pairs=pairs)
    there, here = (job(tmp_path, source, key=key, data=exam, **CLEANED) for key in ("a", "b"))
    metrics = rebalance.run(there)
    assert ray.is_initialized()
    monkeypatch.delenv("RAY_ADDRESS")
    assert rebalance.run(here) == metrics
    assert digests(there.out) == digests(here.out)
