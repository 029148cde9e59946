"""`lyceum serve` as people use it: runs start, fail, are retried, cancelled and killed; Ctrl-C leaves nothing behind."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows import tied
from flows.cli import main
from flows.prefect_api import answers
from tests.served import ROOT, SLOW, Served, until


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served")) as running:
        yield running


def jobs(served: Served) -> list[int]:
    """Process ids of workers that do a stage's job."""
    return [pid for pid, command in served.processes().items() if "tasks.worker" in command]


def flow_processes(served: Served) -> list[int]:
    return [pid for pid, command in served.processes().items() if "flows.engine" in command]


@pytest.mark.slow
def test_a_failed_run_says_why_in_one_message_and_retry_continues_it(served: Served, tiny_recipe: Path) -> None:
    whole = tiny_recipe.read_text(encoding="utf-8")
    tiny_recipe.write_text(whole.replace("summarization = { train", "science = { train"), encoding="utf-8")
    run = served.start(recipe=str(tiny_recipe))
    state = served.ended(run)
    assert state["type"] == "FAILED"
    assert "stage rebalance: the quotas ask for more rows than distill produced" in state["message"]
    assert served.stages(run) == {"distill": "Completed", "rebalance": "Bad input"}
    assert "rebalance" in served.artifacts(run)["tiny-plan"]
    assert "Traceback" not in served.logs(run)

    tiny_recipe.write_text(whole, encoding="utf-8")
    served.retry(run)
    until(lambda: served.state(run)["type"] == "COMPLETED")
    assert served.stages(run) == {"distill": "Cached", "rebalance": "Completed"}
    assert served.ask(f"/flow_runs/{run}")["name"] == served.records()[-1].run_id
    assert {"tiny-plan", "tiny-stages", "tiny-report"} <= set(served.artifacts(run))


@pytest.mark.slow
def test_bad_input_is_one_message_and_no_traceback(served: Served) -> None:
    run = served.start(recipe="quickstat")
    state = served.ended(run)
    assert (state["type"], state["message"].partition(".")[0]) == ("FAILED", "unknown recipe 'quickstat'")
    assert "Traceback" not in served.logs(run)


@pytest.mark.slow
def test_cancel_stops_the_job_and_is_recorded(served: Served, tiny_recipe: Path) -> None:
    run = served.start(recipe=str(tiny_recipe), overrides=[SLOW])
    until(lambda: jobs(served))
    served.cancel(run)
    until(lambda: not flow_processes(served), seconds=60)
    assert served.ended(run)["type"] == "CANCELLED"
    assert jobs(served) == []
    assert served.records()[-1].status == "cancelled"


@pytest.mark.slow
def test_a_killed_flow_is_crashed_and_retry_continues_it(served: Served, tiny_recipe: Path) -> None:
    run = served.start(recipe=str(tiny_recipe), overrides=["stages.rebalance.config.seed=1", SLOW])
    until(lambda: jobs(served))
    [flow] = flow_processes(served)
    os.kill(flow, signal.SIGKILL)
    assert served.ended(run)["type"] == "CRASHED"
    until(lambda: not jobs(served), seconds=60)

    served.retry(run)
    until(lambda: jobs(served))
    served.cancel(run)
    assert served.ended(run)["type"] == "CANCELLED"


@pytest.mark.slow
def test_a_night_that_begins_while_another_goes_on_is_skipped(served: Served, tiny_recipe: Path) -> None:
    first = served.start("nightly", recipe=str(tiny_recipe), overrides=["stages.rebalance.config.seed=2", SLOW])
    until(lambda: jobs(served))
    second = served.start("nightly", recipe=str(tiny_recipe))
    state = served.ended(second)
    assert (state["type"], state["message"]) == ("CANCELLED", "Deployment concurrency limit reached.")
    served.cancel(first)
    assert served.ended(first)["type"] == "CANCELLED"
    assert jobs(served) == []


@pytest.mark.slow
def test_there_is_one_serve_per_prefect_home(served: Served) -> None:
    second = subprocess.run(
        [*served.command()[:-1], str(served.port + 1)],
        cwd=ROOT,
        env=served.environment,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    assert second.returncode == 2
    assert "another `lyceum serve` works with" in second.stderr


@pytest.mark.slow
def test_ctrl_c_cancels_what_runs_and_leaves_nothing(tmp_path: Path, tiny_recipe: Path) -> None:
    with Served(tmp_path) as served:
        run = served.start(recipe=str(tiny_recipe), overrides=[SLOW])
        until(lambda: jobs(served))
        assert served.stop() < tied.STOP_SECONDS
        assert "Stopping" in served.said
    assert served.processes() == {}
    assert not answers(served.api)
    assert served.records()[-1].status == "cancelled"
    with Served(tmp_path) as again:
        assert again.state(run)["type"] == "CANCELLED"


@pytest.mark.slow
def test_what_ran_when_the_machine_went_down_is_crashed_and_can_be_retried(tmp_path: Path, tiny_recipe: Path) -> None:
    """A nightly run, because it holds its deployment's only slot."""
    with Served(tmp_path) as served:
        run = served.start("nightly", recipe=str(tiny_recipe), overrides=[SLOW])
        until(lambda: jobs(served))
        for pid in served.processes():
            os.kill(pid, signal.SIGKILL)
        served.process.wait()
    until(lambda: not served.processes(), seconds=60)
    with Served(tmp_path) as again:
        state = again.state(run)
        assert (state["type"], state["message"]) == ("CRASHED", "its process ended with `lyceum serve`; Retry continues it")
        again.retry(run)
        until(lambda: jobs(again))
        again.stop()
    assert again.processes() == {}


def test_a_port_that_something_else_listens_on_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from prefect.settings import PREFECT_HOME, temporary_settings

    with socket.socket() as other, temporary_settings({PREFECT_HOME: tmp_path}):
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
        assert f"--port {port} cannot be used" in capsys.readouterr().err
        assert main(["serve", "--port", "99999"]) == 2
        assert "is not a TCP port" in capsys.readouterr().err
