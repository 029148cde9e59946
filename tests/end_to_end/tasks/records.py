"""The published data sets: in a folder `shared` beside the repository, which a newcomer does not
have."""

from typing import Any

import pytest

from infra.process import ROOT
from tasks.data.readers import read_records

SHARED = ROOT.parent / "shared" / "data"
needs_records = pytest.mark.skipif(
    not SHARED.is_dir(), reason=f"the published records are not here: {SHARED}"
)


def rows(path: str) -> list[dict[str, Any]]:
    """The rows of a file there."""
    return [dict(record.row) for record in read_records(path, SHARED / path)]


def humaneval() -> list[dict[str, Any]]:
    """The 164 tasks of HumanEval."""
    return rows("humaneval/HumanEval.jsonl.gz")
