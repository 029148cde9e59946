"""`lyceum serve` as people use it: runs start, fail, are retried, cancelled and killed; Ctrl-C
leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.server import process_tree
from flows.server.key import as_header
from flows.server.prefect_api import answers
from flows.server.serve import POOL, template
from tests.flows.lab import SLOW
from tests.flows.server.served import ROOT, Served, until
from tests.flows.server.test_serve import CHOSEN


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served")) as running:
        yield running


def jobs(served: Served) -> list[int]:
    """Process ids of workers that do a stage's job."""
    return [pid for pid, command in served.processes().items() if "tasks.worker" in command]


def flow_processes(served: Served) -> list[int]:
    return [
        pid for pid, command in served.processes().items() if "flows.server.flow_process" in command
    ]


def test_a_failed_run_says_why_in_one_message_and_retry_continues_it(served, tiny_recipe):
    whole = tiny_recipe.read_text(encoding="utf-8")
    tiny_recipe.write_text(
        whole.replace("summarization = { train", "science = { train"), encoding="utf-8"
    )
    run = served.start(recipe=str(tiny_recipe))
    state = served.ended(run)
    assert state["type"] == "FAILED"
    assert "stage rebalance: the quotas ask for more rows than distill produced" in state["message"]
    until(lambda: served.stages(run) == {"distill": "Completed", "rebalance": "Bad input"})
    assert "rebalance" in served.artifacts(run)["tiny-plan"]
    assert "Traceback" not in served.logs(run)

    tiny_recipe.write_text(whole, encoding="utf-8")
    served.retry(run)
    until(lambda: served.state(run)["type"] == "COMPLETED")
    until(lambda: served.stages(run) == {"distill": "Cached", "rebalance": "Completed"})
    assert served.ask(f"/flow_runs/{run}")["name"] == served.records()[-1].run_id
    made = {"distill-made", "rebalance-made"}
    assert {"tiny-plan", "tiny-stages", "tiny-report"} | made <= set(served.artifacts(run))


def test_bad_input_is_one_message_and_no_traceback(served: Served) -> None:
    run = served.start(recipe="quickstat")
    state = served.ended(run)
    assert (state["type"], state["message"].partition(".")[0]) == (
        "FAILED",
        "unknown recipe 'quickstat'",
    )
    assert "Traceback" not in served.logs(run)


def test_cancel_stops_the_job_and_is_recorded(served: Served, tiny_recipe: Path) -> None:
    run = served.start(recipe=str(tiny_recipe), overrides=[SLOW])
    until(lambda: jobs(served))
    served.cancel(run)
    until(lambda: not flow_processes(served), seconds=60)
    assert served.ended(run)["type"] == "CANCELLED"
    assert jobs(served) == []
    assert served.records()[-1].status == "cancelled"


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


def test_a_night_that_begins_while_another_goes_on_is_skipped(served, tiny_recipe):
    first = served.start(
        "nightly", recipe=str(tiny_recipe), overrides=["stages.rebalance.config.seed=2", SLOW]
    )
    until(lambda: jobs(served))
    second = served.start("nightly", recipe=str(tiny_recipe))
    state = served.ended(second)
    assert (state["type"], state["message"]) == (
        "CANCELLED",
        "Deployment concurrency limit reached.",
    )
    served.cancel(first)
    assert served.ended(first)["type"] == "CANCELLED"
    assert jobs(served) == []


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
    assert f"A new link into it: {served.ui}/lyceum/enter#" in second.stderr


@pytest.mark.parametrize("name", list(CHOSEN))
def test_the_server_refuses_a_run_that_chooses_how_it_is_started(served: Served, name: str) -> None:
    """With the key; without it nobody gets that far (test_guard.py)."""
    deployment = served.ask("/deployments/name/post-train/post-train")
    body = {"job_variables": {name: CHOSEN[name]}, "state": {"type": "SCHEDULED"}}
    with pytest.raises(urllib.error.HTTPError) as refused:
        served.ask(f"/deployments/{deployment['id']}/create_flow_run", body)
    assert refused.value.code == 422
    assert deployment["job_variables"] == {}


def test_a_run_beside_it_finds_it_and_the_key_is_nowhere_else(served, tiny_recipe):
    """`lyceum run` proves the server and uses it, without and with PREFECT_API_URL. Command lines,
    jobs, logs and files hold no key."""
    key = served.reach.key or ""
    command = [sys.executable, "-m", "flows.cli.main", "run", str(tiny_recipe), "--json"]
    for environment in (
        served.environment,
        {**served.environment, "PREFECT_API_URL": f"http://localhost:{served.port}/api"},
    ):
        done = subprocess.run(
            command,
            cwd=served.work,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        assert f"Prefect API: {served.api}" in done.stderr
        name = json.loads(done.stdout)["run_id"]
        assert (
            served.ask("/flow_runs/filter", {"flow_runs": {"name": {"any_": [name]}}})[0]["state"][
                "type"
            ]
            == "COMPLETED"
        )
        assert key not in done.stderr

    run = served.start(recipe=str(tiny_recipe), overrides=["stages.rebalance.config.seed=5", SLOW])
    until(lambda: jobs(served))
    for pid in jobs(served):
        assert b"PREFECT_" not in Path(f"/proc/{pid}/environ").read_bytes(), "a job has no key"
    [flow] = flow_processes(served)
    assert key.encode() in Path(f"/proc/{flow}/environ").read_bytes(), "the control: its flow has"
    assert not [
        command
        for command in served.processes().values()
        if key in command or as_header(key) in command
    ]
    served.cancel(run)
    served.ended(run)
    for path in [
        path
        for path in served.root.rglob("*")
        if path.is_file() and path.name != "lyceum-serve.env"
    ]:
        data = path.read_bytes()
        assert key.encode() not in data, path
        assert as_header(key).encode() not in data, path


def test_a_pool_of_an_earlier_version_is_closed_when_it_starts(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        key = served.reach.key
        opened = {
            "base_job_template": {
                "job_configuration": {"command": "{{ command }}"},
                "variables": {"properties": {"command": {}}},
            }
        }
        served.ask(f"/work_pools/{POOL}", opened, "PATCH")
        deployment = served.ask("/deployments/name/nightly/nightly")["id"]
        served.ask(f"/deployments/{deployment}", {"job_variables": {"command": "true"}}, "PATCH")
    with Served(tmp_path) as again:
        assert again.ask(f"/work_pools/{POOL}")["base_job_template"] == {
            **template(),
            "job_configuration": closed(again),
        }
        assert again.ask("/deployments/name/nightly/nightly")["job_variables"] == {}
        assert again.reach.key != key, "a key lives as long as its server"


def closed(served: Served) -> dict[str, object]:
    """What is fixed in the template of a `lyceum serve` that works in another directory than this
    process."""
    return {**template()["job_configuration"], "working_dir": str(served.work)}


def test_ctrl_c_cancels_what_runs_and_leaves_nothing(tmp_path: Path, tiny_recipe: Path) -> None:
    with Served(tmp_path) as served:
        run = served.start(recipe=str(tiny_recipe), overrides=[SLOW])
        until(lambda: jobs(served))
        assert served.stop() < process_tree.STOP_SECONDS
        assert "Stopping" in served.said
    assert served.processes() == {}
    assert not answers(served.api)
    assert served.records()[-1].status == "cancelled"
    with Served(tmp_path) as again:
        assert again.state(run)["type"] == "CANCELLED"


def test_what_ran_when_the_machine_went_down_is_crashed_and_can_be_retried(tmp_path, tiny_recipe):
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
        assert (state["type"], state["message"]) == (
            "CRASHED",
            "its process ended with `lyceum serve`; Retry continues it",
        )
        within = {"flow_runs": {"parent_flow_run_id": {"any_": [run]}}}
        [inner] = again.ask("/flow_runs/filter", within)
        assert inner["state"]["type"] in ("CRASHED", "CANCELLED"), "it does not run for ever either"
        again.retry(run)
        until(lambda: jobs(again))
        again.stop()
    assert again.processes() == {}


def test_behind_tls_it_answers_to_the_name_of_the_proxy(tmp_path: Path) -> None:
    """What a proxy passes on: the browser's Host and Origin. Our own processes use the address."""
    with Served(
        tmp_path, "--host", "0.0.0.0", "--behind-tls", "https://lyceum.example.org"
    ) as served:
        assert served.link.startswith("https://lyceum.example.org/lyceum/enter#")
        for host, origin, code in (
            ("lyceum.example.org", "https://lyceum.example.org", 200),
            ("lyceum.example.org", "http://lyceum.example.org", 403),
            ("0.0.0.0.example", "https://lyceum.example.org", 421),
        ):
            request = urllib.request.Request(
                f"{served.ui}/ui-settings", headers={"Host": host, "Origin": origin}
            )
            try:
                answer = urllib.request.urlopen(request, timeout=60).status
            except urllib.error.HTTPError as error:
                answer = error.code
            assert answer == code, (host, origin)
        assert served.ask("/deployments/name/nightly/nightly")["name"] == "nightly"
