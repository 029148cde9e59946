"""Suites of reasoning: the published files of ../shared/data, hand-made ones in their published forms, and rows that cannot be read."""

from pathlib import Path
from typing import Any

from tasks.evaluation.suite import suite_dependencies
from tests.tasks.suites.test_reasoning import ask


def test_a_suite_is_read_from_a_bucket_by_its_url(gcs_client: Any, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"question": "1+1?", "answer": "It is 2.\n#### 2"}]), tmp_path / "test.parquet")
    gcs_client.blob("gsm8k/test-00000.parquet").upload_from_filename(tmp_path / "test.parquet")
    table = {"name": "gsm8k", "path": f"gs://{gcs_client.name}/gsm8k/test-*.parquet"}
    (prompt,) = ask(tmp_path, **table)
    assert (prompt.id, prompt.answer) == ("gsm8k/0", "2")
    assert f"data/gs://{gcs_client.name}/gsm8k/test-00000.parquet" in suite_dependencies([table], "reasoning_eval", None)
