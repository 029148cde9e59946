"""The programs of the stages that tests/tasks leaves out: what `lyceum plan` compiles is what
runs."""

from pathlib import Path

import pytest

from tests.tasks.stages.test_programs import (
    QUICK,
    STAGES,
    inputs,  # noqa: F401
    runs_what_plan_compiles,
)


@pytest.mark.parametrize("name", [name for name in STAGES if name not in QUICK])
def test_the_other_stages_run_the_programs_that_plan_compiles(
    name: str, inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs_what_plan_compiles(name, inputs, tmp_path, monkeypatch)
