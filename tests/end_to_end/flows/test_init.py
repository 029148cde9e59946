"""A recipe that `lyceum init` writes is rehearsed as it is, with no question and no fault."""

import csv
import random


def test_a_recipe_of_ones_own_rows_is_rehearsed_and_nothing_is_found(tmp_path, lyceum, prefect_api):
    data = tmp_path / "mine.csv"
    draw = random.Random(1)
    with data.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["question", "why", "answer"])
        for _ in range(60):
            a, b = draw.randrange(1000), draw.randrange(1000)
            writer.writerow([f"How much is {a} plus {b}?", f"{a} and {b} make {a + b}.", a + b])
    where = ["--data", data, "--store", tmp_path / "s", "--json"]
    said = lyceum("init", tmp_path / "mine.toml", *where).json
    rehearsal = said["rehearsal"]
    assert (rehearsal["status"], rehearsal["findings"]) == ("succeeded", []), rehearsal
    assert said["source"]["check"] == "numeric"
    assert [one["status"] for one in rehearsal["stages"]] == ["ran"] * 5
