"""The flow that docs/python.md has a reader write, as it stands there: a process of its own, no
Prefect API that runs, two small recipes."""

import os
import re
from pathlib import Path

import pytest

from flows.recipe.parameters import form
from flows.runs.record import read_runs
from infra.process import ROOT
from infra.store.store import open_store
from tests.fakes.process import run_python

PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
RECIPE = (Path(__file__).parent / "crash" / "chain.toml").read_text(encoding="utf-8")
EVALUATION = """
[stages.sft_eval]
kind = "reasoning_eval"
inputs = { prompts = "rebalance", policy = "sft" }
config = { prompt_length = 60, response_length = 24, batch_size = 4, min_items = 8 }
"""


def test_two_recipes_in_one_flow(tmp_path: Path) -> None:
    [example] = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    (tmp_path / "contest.py").write_text(example, encoding="utf-8")
    small = RECIPE[: RECIPE.index("[stages.simpo]")] + EVALUATION
    (tmp_path / "a.toml").write_text(small.replace('"crash"', '"a"'), encoding="utf-8")
    other = small.replace('"crash"', '"b"').replace("steps = 8", "steps = 2")
    (tmp_path / "b.toml").write_text(other, encoding="utf-8")
    hidden = ("PREFECT_", "LYCEUM_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
    environment |= {"PYTHONPATH": str(ROOT), "PREFECT_HOME": str(tmp_path / "prefect")}
    ran = run_python("contest.py", "a.toml", "b.toml", cwd=tmp_path, env=environment)
    assert ran.returncode == 0, ran.stderr[-4000:]

    first, second = read_runs(open_store(str(tmp_path / ".lyceum")))
    assert (first.recipe.name, second.recipe.name) == ("a", "b")
    assert {one.name: one.status for one in second.stages} == {
        "distill": "cached",
        "rebalance": "cached",
        "sft": "ran",
        "sft_eval": "ran",
    }
    rates = {run.run_id: run.stages[-1].metrics["exact_answer"] for run in (first, second)}
    [best] = re.findall(r"^best: (\S+)$", ran.stdout, re.M)
    assert rates[best] == max(rates.values())


@pytest.mark.parametrize("module", ["post_train", "nightly"])
def test_the_page_names_every_parameter(module: str) -> None:
    flow = getattr(__import__(f"flows.{module}", fromlist=[module]), module)
    table = PAGE.split("## The flow's parameters")[1].split("\n## ")[0]
    named = re.findall(r"^\| `(\w+)` \|", table, re.M)
    assert named == list(form(flow, "", [])["properties"])
