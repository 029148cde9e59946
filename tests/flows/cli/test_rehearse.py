"""What a rehearsal's jobs are given; rehearsals themselves are in
tests/end_to_end/flows/test_rehearse.py."""

import os

import pytest

from flows.cli.rehearse import jobs_environment
from infra.context import context

VARIABLE = "LYCEUM_PARALLEL_JOBS"


@pytest.mark.parametrize(("own", "jobs"), [(None, 3), ("1", 1)])
def test_as_many_jobs_as_cores_run_side_by_side_unless_the_user_says_how_many(
    own: str | None, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if own is not None:
        monkeypatch.setenv(VARIABLE, own)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    with jobs_environment("http://127.0.0.1:1"):
        assert context().settings.parallel_jobs == jobs
    assert os.environ.get(VARIABLE) == own
