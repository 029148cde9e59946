"""The published data sets: in a folder `shared` beside the repository, which a newcomer does not
have."""

import gzip
import json
from typing import Any

import pytest

from infra.process import ROOT

SHARED = ROOT.parent / "shared" / "data"
needs_records = pytest.mark.skipif(
    not SHARED.is_dir(), reason=f"the published records are not here: {SHARED}"
)


def humaneval() -> list[dict[str, Any]]:
    """The 164 tasks of HumanEval."""
    with gzip.open(SHARED / "humaneval" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]
