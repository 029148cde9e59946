"""What a rehearsal's jobs are given; rehearsals themselves are in
tests/end_to_end/flows/test_rehearse.py."""

import os
from pathlib import Path

import pytest

from flows.cli.rehearse import jobs_environment
from infra.context import context

VARIABLE = "LYCEUM_PARALLEL_JOBS"


@pytest.mark.parametrize(
    ("own", "tiny", "jobs"), [(None, True, 4), ("1", True, 1), (None, False, 2)]
)
def test_as_many_jobs_of_the_tiny_model_as_cores_run_side_by_side_unless_the_user_says(
    own: str | None, tiny: bool, jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LYCEUM_STORE", str(tmp_path))  # settings of this test alone, read now
    monkeypatch.delenv(VARIABLE, raising=False)
    if own is not None:
        monkeypatch.setenv(VARIABLE, own)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(4))
    with jobs_environment("http://127.0.0.1:1", tiny=tiny):
        assert context().settings.parallel_jobs == jobs
    assert os.environ.get(VARIABLE) == own
