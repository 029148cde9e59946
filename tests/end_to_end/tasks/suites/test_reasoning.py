"""Suites of reasoning: the published files, and a suite in a bucket."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tasks.evaluation.suite_prompts import suite_dependencies
from tasks.verification.verify import agrees
from tests.end_to_end.tasks.records import SHARED, needs_records
from tests.tasks.suites.test_reasoning import ask, size


def test_a_suite_is_read_from_a_bucket_by_its_url(gcs_client: Any, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist([{"question": "1+1?", "answer": "It is 2.\n#### 2"}]),
        tmp_path / "test.parquet",
    )
    gcs_client.blob("gsm8k/test-00000.parquet").upload_from_filename(tmp_path / "test.parquet")
    table = {"name": "gsm8k", "path": f"gs://{gcs_client.name}/gsm8k/test-*.parquet"}
    (prompt,) = ask(tmp_path, **table)
    assert (prompt.id, prompt.answer) == ("gsm8k/0", "2")
    assert f"data/gs://{gcs_client.name}/gsm8k/test-00000.parquet" in suite_dependencies(
        [table], "reasoning_eval", None
    )


@needs_records
@pytest.mark.parametrize(
    ("name", "held", "published", "checks", "first_answer"),
    [
        ("gsm8k", 400, 1319, {"numeric"}, "18"),
        ("humaneval", 164, 164, {"tests"}, "for idx, elem in enumerate(numbers):"),
        ("scibench", 692, 692, {"quantity"}, "50.7 $\\mathrm{atm}$"),
        ("mt_bench", 80, 80, {"none"}, ""),
        ("scitldr", 350, 618, {"faithful"}, "FearNet is a memory efficient neural-network"),
        ("chemiq", 400, 816, {"numeric", "exact"}, "O=Nc1ccc(Br)cc1"),
    ],
)
def test_a_real_file_gives_a_prompt_for_every_row(name, held, published, checks, first_answer):
    prompts = ask(SHARED, name=name)
    assert len(prompts) == held
    assert size(name=name) == published
    assert {prompt.check for prompt in prompts} == checks
    assert prompts[0].answer.startswith(first_answer)
    assert [prompt.id for prompt in prompts] == [f"{name}/{number}" for number in range(held)]
    assert {prompt.suite for prompt in prompts} == {name}
    digests = suite_dependencies([{"name": name}], "reasoning_eval", SHARED)
    assert digests[f"suites.{name}"] == 1
    assert {prompt.source for prompt in prompts} == {
        key.removeprefix("data/") for key in digests if key.startswith("data/")
    }


@needs_records
def test_references_are_right_by_their_own_check() -> None:
    for name in ("gsm8k", "scibench", "chemiq"):
        asked = ask(SHARED, name=name)
        assert [one.id for one in asked if not agrees(one, one.answer).ok] == []
    assert agrees(ask(SHARED, name="humaneval", first=1)[0], "    return 1").ok is False
    solved = ask(SHARED, name="humaneval", first=3)[2]
    for answer in (
        "def truncate_number(number: float) -> float:\n    return number % 1.0",
        "    return number % 1.0\n",
        "return number % 1.0",
    ):
        assert agrees(solved, answer).ok, f"the prompt's function, or its body alone: {answer}"


@needs_records
def test_scibench_accepts_five_percent_and_another_unit_and_one_subject_is_a_path() -> None:
    pressure = ask(SHARED, name="scibench")[0]
    assert pressure.prompt.endswith("Answer in $\\mathrm{atm}$.")
    assert agrees(pressure, "52 atm").ok
    assert not agrees(pressure, "54 atm").ok
    assert agrees(pressure, "5.14 MPa").ok
    table = {"name": "scibench", "path": "scibench/thermo*.json"}
    assert len(ask(SHARED, **table)) == size(**table) == 83


@needs_records
def test_mt_bench_asks_first_turns_with_the_references_there_are() -> None:
    prompts = ask(SHARED, name="mt_bench")
    assert sum(bool(prompt.answer) for prompt in prompts) == 38
    assert Counter(prompt.domain.value for prompt in prompts) == {
        "creative": 20, "math": 10, "coding": 10, "science": 10, "summarization": 10, "general": 20
    }  # fmt: skip
