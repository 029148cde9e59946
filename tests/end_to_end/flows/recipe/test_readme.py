"""The recipe that README has a reader write, on rows of the form it names, to its end."""

import csv
import random
from pathlib import Path

import pytest

from flows.cli.main import main
from flows.runs.record import read_runs
from infra.store.store import open_store
from tests.flows.cli.test_documents import block


@pytest.mark.usefixtures("prefect_api")
def test_the_recipe_of_readme_runs(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(block("toml"), encoding="utf-8")
    draw = random.Random(1)
    with (tmp_path / "mine.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["question", "why", "answer"])
        for _ in range(400):
            red, blue = draw.randint(1, 99), draw.randint(1, 99)
            question = f"A bag holds {red} red and {blue} blue beads. How many?"
            rows.writerow([question, f"{red} + {blue} = {red + blue}", red + blue])
    store = str(tmp_path / "store")
    given = ["--data", str(tmp_path), "--store", store, "--tiny"]
    assert main(["run", str(tmp_path / "mine.toml"), *given]) == 0
    (record,) = read_runs(open_store(store))
    trained = {stage.name: stage.metrics for stage in record.stages}
    assert trained["sft"]["loss_last"] < trained["sft"]["loss_first"] / 2
    assert trained["sft_eval"]["format_rate"] > 0.9
