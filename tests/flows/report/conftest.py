"""Runs that several files look at."""

import pytest

from flows.report.page import Report, report_of
from flows.runs.results import RunResults, read_results
from infra.store.store import Store
from schemas.evaluation import HELDOUT
from schemas.reports import RunRecord
from tests.flows.runs.synthetic_run import write_run


@pytest.fixture(scope="package")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, RunRecord]:
    return write_run(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="package")
def run(written: tuple[Store, RunRecord]) -> RunResults:
    return read_results(*written)


@pytest.fixture(scope="package")
def report(run: RunResults) -> Report:
    return report_of(run)


@pytest.fixture(scope="package")
def wide(tmp_path_factory: pytest.TempPathFactory) -> RunResults:
    """Two suites, sampled answers, requests."""
    root = tmp_path_factory.mktemp("wide")
    return read_results(*write_run(root, suites=(HELDOUT, "gsm8k"), samples=2, requests=40))
