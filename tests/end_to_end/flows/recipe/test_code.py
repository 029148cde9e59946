"""A chain whose GRPO stage is paid by a function of the recipe's author."""

import gzip

import pytest

from schemas.ledger import LedgerRow
from tests.flows.recipe.test_code import recipe  # noqa: F401

MINE = """
import re

def reward_fn(prompts, completions, answer, **columns):
    found = [re.search("<answer>(.*)</answer>", text, re.DOTALL) for text in completions]
    return [
        float(hit is not None and hit[1].strip() == wanted) + len(text) / 1e6
        for hit, wanted, text in zip(found, answer, completions)
    ]
"""


def test_the_policy_is_paid_by_the_function(prefect_api, recipe, tmp_path, lyceum):
    """The ledger has what the function says of each response; one that raises fails the stage with
    its line, and nothing before it runs again."""
    mine, store = recipe.parent / "mine.py", tmp_path / "store"
    mine.write_text(MINE.replace("return [", "return [0] and 1 / 0 * ["), encoding="utf-8")
    run = ["run", recipe, "--code", mine, "--store", store, "--json"]
    run += ["--set", "stages.grpo.config.audit.allow={ endless = 'a trifle', no_reasoning = 'so' }"]
    failed = lyceum(*run, code=1).json["stages"][-1]
    assert "mine.py:reward_fn: calling it raised ZeroDivisionError, line 6" in failed["error"]
    assert "\n" not in failed["error"]
    mine.write_text(MINE, encoding="utf-8")
    stages = lyceum(*run).json["stages"]
    assert [stage["status"] for stage in stages] == ["cached", "cached", "cached", "ran"]
    (ledger,) = store.rglob("ledger.jsonl.gz")
    lines = gzip.decompress(ledger.read_bytes()).splitlines()
    rows = [LedgerRow.model_validate_json(line) for line in lines]
    assert len(rows) == 16
    for row in rows:
        assert row.rewards["function"] % 1 == pytest.approx(len(row.completion) / 1e6, abs=1e-9)
