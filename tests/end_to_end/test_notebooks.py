"""The committed notebooks, executed cell by cell.

That of Kaggle clones and installs Lyceum, plans, runs until its session ends, and finishes in the
next one. Only its parameters differ, by the variables that it documents; what time it is, the test
says. The tutorials run as they stand, in this environment.
"""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="needs the group ci: uv sync --group ci")
from nbclient import NotebookClient  # noqa: E402

from infra.process import ROOT  # noqa: E402
from tasks.rehearsal.environment import XLA_FLAGS  # noqa: E402
from tests.processes import marked  # noqa: E402

HERE = Path(__file__).parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_no_output_is_committed(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    nbformat.validate(notebook)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code
    assert [cell["id"] for cell in code if cell["outputs"] or cell["execution_count"]] == []


def session(path: Path, directory: Path) -> dict[str, str]:
    """Run all cells in a directory; what each code cell printed, by the cell's id."""
    notebook: Any = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(directory)}}
    waits = {"timeout": 7200, "startup_timeout": 7200}  # a busy machine takes its time for a kernel
    NotebookClient(notebook, **waits, kernel_name="python3", resources=resources).execute()
    return {
        cell["id"]: "".join(
            output["text"]
            for output in cell["outputs"]
            if (output["output_type"], output.get("name")) == ("stream", "stdout")
        )
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    }


def test_a_session_ends_in_time_and_the_next_one_finishes(tmp_path, monkeypatch):
    recipe = (HERE / "crash" / "chain.toml").read_text(encoding="utf-8")
    (tmp_path / "small.toml").write_text(recipe[: recipe.index("[stages.simpo]")], encoding="utf-8")
    monkeypatch.delenv("UV_PROJECT_ENVIRONMENT", raising=False)
    monkeypatch.setenv("NOTEBOOK_SOURCE", str(ROOT))
    monkeypatch.setenv("NOTEBOOK_RECIPE", str(tmp_path / "small.toml"))
    monkeypatch.setenv("NOTEBOOK_STORE", str(tmp_path / "store"))
    [path] = [one for one in NOTEBOOKS if one.stem == "kaggle"]

    with monkeypatch.context() as clock:
        path_of_clock = [str(HERE / "clock"), *filter(None, [os.environ.get("PYTHONPATH")])]
        clock.setenv("PYTHONPATH", os.pathsep.join(path_of_clock))
        clock.setenv("LYCEUM_DEADLINE_STORE", str(tmp_path / "store"))
        first = session(path, tmp_path)
    assert "ok accelerator - JAX_PLATFORMS=cpu: jobs run on the CPU" in first["doctor"]
    assert "sessions of 9 h: not known yet" in first["plan"]
    assert "paused at its checkpoint after step 1 of 8" in first["run"]
    assert first["next"] == "left for the next session: sft\n"

    second = session(path, tmp_path)
    assert second["plan"].splitlines()[0].split()[:2] == ["distill", "cached"]
    assert second["run"].splitlines()[-1].endswith(" succeeded")
    [log] = tmp_path.glob("store/work/*/2/log.txt")
    assert "resuming at step 1 of 8" in log.read_text(encoding="utf-8")
    report = second["next"].removeprefix("report: ").strip()
    assert Path(report).read_text(encoding="utf-8").lower().startswith("<!doctype html>")


@pytest.fixture
def tutorial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], dict[str, str]]]:
    """Execute a tutorial, by its name, in the directory of this test. A server that it started ends
    with the test, also where a cell failed before the one that stops it."""
    monkeypatch.setenv("TUTORIAL_TEST", str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XLA_FLAGS", XLA_FLAGS)
    for name in ("LYCEUM_STORE", "PREFECT_API_URL"):
        monkeypatch.delenv(name, raising=False)
    yield lambda name: session(ROOT / "docs" / "notebooks" / f"{name}.ipynb", tmp_path)
    while left := marked(f"TUTORIAL_TEST={tmp_path}"):
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


def test_a_tutorial_leads_from_a_table_to_a_report(tutorial, prefect_api, monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", prefect_api)
    said = tutorial("own_data")
    first, formatted, _, report = said["read"].splitlines()
    before, after = map(float, first.removeprefix("loss: ").split(" -> "))
    assert after < before / 2
    assert float(formatted.split()[1]) > 0.9
    assert Path(report.removeprefix("report: ")).exists()
    assert said["answers"].count("A bag holds") == 3
    assert "optimizer.learning_rate" in said["again"]


def earned(said: list[str]) -> dict[str, float]:
    """Response -> what the audit's table, whose last line are the findings, says that it earns."""
    return {name: float(mean) for name, mean, *_ in map(str.split, said[:-1])}


def test_tutorials_lead_from_a_broken_reward_to_a_champion(
    tutorial, tmp_path, prefect_api, monkeypatch
):
    """Three in one directory, as a reader would: what the first has trained, the others reuse. The
    last one starts a server of its own."""
    monkeypatch.setenv("PREFECT_API_URL", prefect_api)
    said = tutorial("reward")
    *audited, reward, first, second = said["trained"].splitlines()
    broken, mended = earned(said["findings"].splitlines()), earned(audited)
    assert broken["empty"] == max(broken.values()) > broken["reference"]
    assert "grpo/control:empty: empty earns" in said["rehearse"]
    assert "control:empty" in said["findings"].splitlines()[-1]
    assert mended["reference"] == 1 > max(mended[name] for name in mended if name != "reference")
    assert audited[-1] == "findings: none"
    assert re.fullmatch(r"reward: \d\.\d+ -> \d\.\d+", reward)

    read = tutorial("report")
    assert read["runs"].count("brief") >= 2, "a rehearsal and a run"
    assert [line.split()[0] for line in read["record"].splitlines()[1:]] == [
        *("distill", "rebalance", "sft", "sft_eval", "grpo", "grpo_eval")
    ]
    shown = [float(rate.split()[2]) for rate in (first, second)]
    counted = [re.search(r"(\d+) of (\d+) right", one) for one in read["rates"].splitlines()]
    assert [round(int(one[1]) / int(one[2]), 3) for one in counted if one] == shown
    assert "grpo since sft: exact answer " in read["effects"]
    assert "grpo since sft: exact answer" in read["effects"].splitlines()[-1]
    assert read["page"].strip().endswith("report.html")
    assert re.findall("= ([a-z_]+) +cached", read["second"])[-1] == "sft_eval"
    assert "grpo.config.optimizer.learning_rate" in read["compare"]

    monkeypatch.delenv("PREFECT_API_URL")
    watched = tutorial("prefect")
    names = [line.partition(":")[0] for line in watched["deployments"].splitlines()]
    assert sorted(names) == ["nightly", "post-train"]
    assert "0 2 * * *, active: False" in watched["deployments"]
    assert "quotas.math asks for 888 rows" in watched["trigger"]
    states = dict(line.split() for line in watched["retry"].splitlines()[:-1])
    assert set(states.values()) == {"Cached"}, "the first tutorial has made them all"
    assert watched["retry"].splitlines()[-1].startswith("Completed: run sums-")
    assert "Promoted: run sums-" in watched["night"]
    assert watched["gate"].startswith("champion 1: sums-")
    assert "Not passed: nothing new" in watched["gate"]
    assert "Unchanged: nothing is new" in watched["unchanged"]
    assert watched["stop"] == "ended with exit code 0\n"
    assert not (tmp_path / "prefect" / "lyceum-serve.env").exists()
