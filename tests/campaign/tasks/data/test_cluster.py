"""The same cleaning on Ray's local runner. Needs the extra `cluster`."""

import json
import os

import numpy as np
import pytest

from infra.process import ROOT
from tasks.data import survey
from tasks.data.cleaning import decision_digest
from tasks.data.cleaning_rules import DECIDED, Contamination, Evaluation, NearDuplicates
from tests.tasks.data.cleaning_rows import TooLong, cleaned, corpus, write

ray = pytest.importorskip(
    "ray", reason="the extra `cluster` is not installed: uv sync --extra cluster"
)
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def runner():
    """Ray on this machine; its processes find our modules and data."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    found = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=found)
    yield
    ray.shutdown()


def test_a_cluster_decides_what_one_machine_decides(runner, tmp_path, monkeypatch):
    from tasks.data.cluster import clean_on_cluster, kept_lines

    rows, items = corpus(3)
    files = write(rows, tmp_path / "rows", 2)
    here = cleaned(files, tmp_path / "state", items, filters=(TooLong(300),))
    dropped = {"duplicate_prompt", "near_duplicate", "contaminated", "too_long"}
    assert set(here.counts()) == {"kept"} | dropped
    assert set(here.hit) >= {0, 1, 2, 5}, "hits of the evaluation set and of the held-out split"
    monkeypatch.setattr(survey, "BLOCK_BYTES", 2**14)
    there = clean_on_cluster(
        *(files, [Evaluation("items", items)]),
        near_duplicates=NearDuplicates(),
        contamination=Contamination(),
        validation_fraction=0.1,
        heldout_fraction=0.2,
        seed=0,
        filters=(TooLong(300),),
        partitions=2,
    )
    batches = list(there.iter_batches(batch_format="numpy"))
    names = (*DECIDED, "detail")
    columns = {name: np.concatenate([batch[name] for batch in batches]) for name in names}
    assert decision_digest(columns) == here.digest()
    too_long = sorted(record.detail for record in here.dropped() if record.cause == "too_long")
    assert sorted(" ".join(detail.split()) for detail in columns["detail"] if detail) == too_long
    lines = [json.loads(one["line"]) for one in kept_lines(there, files).take_all()]
    kept = sorted(map(json.dumps, here.rows(here.remaining)))
    assert sorted(map(json.dumps, lines)) == kept
