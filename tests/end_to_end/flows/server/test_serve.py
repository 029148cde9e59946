"""`lyceum serve` as people use it: runs start, fail, are retried, cancelled and killed; Ctrl-C
leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from flows.server import process_tree
from flows.server.key import as_header
from flows.server.prefect_api import answers
from flows.server.serve import POOL, template
from tests.flows.lab import SLOW
from tests.flows.server.served import ROOT, Served, until
from tests.flows.server.test_serve import CHOSEN


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
    run = served.start(recipe=str(tiny_recipe), overrides=["stages.distill.config.seed=4"])
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


def test_a_killed_flow_is_crashed_retry_continues_it_and_cancel_stops_its_job(served, tiny_recipe):
    run = served.start(recipe=str(tiny_recipe), overrides=["stages.rebalance.config.seed=1", SLOW])
    until(lambda: jobs(served))
    [flow] = flow_processes(served)
    os.kill(flow, signal.SIGKILL)
    assert served.ended(run)["type"] == "CRASHED"
    until(lambda: not jobs(served), seconds=60)
    # the last that Prefect's worker says of it, which may report it once more and undo a Retry
    until(lambda: "memory allocation" in served.logs(run))

    served.retry(run)
    until(lambda: jobs(served))
    served.cancel(run)
    until(lambda: not flow_processes(served), seconds=60)
    assert served.ended(run)["type"] == "CANCELLED"
    assert jobs(served) == []
    assert served.records()[-1].status == "cancelled"


def test_pause_stops_the_job_and_resume_goes_on(served: Served, tiny_recipe: Path) -> None:
    run = served.start(recipe=str(tiny_recipe), overrides=["stages.rebalance.config.seed=5", SLOW])
    until(lambda: jobs(served))
    details = {"pause_timeout": "2100-01-01T00:00:00Z", "pause_reschedule": True}
    state = {"type": "PAUSED", "name": "Suspended", "state_details": details}
    served.ask(f"/flow_runs/{run}/set_state", {"state": state, "force": True})
    until(lambda: not flow_processes(served))
    assert jobs(served) == []
    assert served.state(run)["name"] == "Suspended"
    assert served.records()[-1].status == "paused"

    served.ask(f"/flow_runs/{run}/resume", {})
    until(lambda: jobs(served))
    served.cancel(run)
    assert served.ended(run)["type"] == "CANCELLED"


def test_a_night_that_begins_while_another_goes_on_is_skipped_and_a_job_has_no_key(
    served: Served, tiny_recipe: Path
) -> None:
    first = served.start(
        "nightly", recipe=str(tiny_recipe), overrides=["stages.rebalance.config.seed=2", SLOW]
    )
    until(lambda: jobs(served))
    for pid in jobs(served):
        assert b"PREFECT_" not in Path(f"/proc/{pid}/environ").read_bytes(), "a job has no key"
    key = served.reach.key or ""
    [flow] = flow_processes(served)
    assert key.encode() in Path(f"/proc/{flow}/environ").read_bytes(), "the control: its flow has"
    shown = [*served.processes().values()]
    assert not [command for command in shown if key in command or as_header(key) in command]

    second = served.start("nightly", recipe=str(tiny_recipe))
    state = served.ended(second)
    assert (state["type"], state["message"]) == (
        "CANCELLED",
        "Deployment concurrency limit reached.",
    )
    served.cancel(first)
    assert served.ended(first)["type"] == "CANCELLED"
    assert jobs(served) == []
    no_file_has_the_key(served)


def no_file_has_the_key(served: Served) -> None:
    """But the one that it is kept in."""
    key = served.reach.key or ""
    files = [path for path in served.root.rglob("*") if path.is_file()]
    for path in [one for one in files if one.name != "lyceum-serve.env"]:
        data = path.read_bytes()
        assert key.encode() not in data, path
        assert as_header(key).encode() not in data, path


def test_there_is_one_serve_per_prefect_home(served: Served) -> None:
    command = [*served.command()[:-1], str(served.port + 1)]
    where = {"cwd": ROOT, "env": served.environment, "timeout": 120}
    second = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, **where)
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


def test_a_run_beside_it_finds_it_and_keeps_its_key_to_itself(served, tiny_recipe):
    """`lyceum run` proves the server and uses it, without and with PREFECT_API_URL."""
    command = [sys.executable, "-m", "flows.cli.main", "run", str(tiny_recipe), "--json"]
    for url in ({}, {"PREFECT_API_URL": f"http://localhost:{served.port}/api"}):
        where = {"cwd": served.work, "env": served.environment | url, "timeout": 300}
        done = subprocess.run(command, capture_output=True, text=True, check=True, **where)
        assert f"Prefect API: {served.api}" in done.stderr
        named = {"flow_runs": {"name": {"any_": [json.loads(done.stdout)["run_id"]]}}}
        assert served.ask("/flow_runs/filter", named)[0]["state"]["type"] == "COMPLETED"
        assert (served.reach.key or "") not in done.stderr
    no_file_has_the_key(served)


def test_what_ran_when_it_ended_is_cancelled_or_crashed_when_it_starts_again(tmp_path, tiny_recipe):
    """One home, served three times: it ends by Ctrl-C, which leaves nothing, then with its machine;
    the last time behind TLS. The second run is a night, which holds its deployment's only slot."""
    with Served(tmp_path) as served:
        key = served.reach.key
        stopped = served.start(recipe=str(tiny_recipe), overrides=[SLOW])
        until(lambda: jobs(served))
        leave_as_an_earlier_version_did(served)
        assert served.stop() < process_tree.STOP_SECONDS
        assert "Stopping" in served.said
    assert served.processes() == {}
    assert not answers(served.api)
    assert served.records()[-1].status == "cancelled"

    with Served(tmp_path) as served:
        assert served.state(stopped)["type"] == "CANCELLED"
        fixed = template()["job_configuration"] | {"working_dir": str(served.work)}
        closed = {**template(), "job_configuration": fixed}
        assert served.ask(f"/work_pools/{POOL}")["base_job_template"] == closed
        assert served.ask("/deployments/name/nightly/nightly")["job_variables"] == {}
        assert served.reach.key != key, "a key lives as long as its server"
        run = served.start("nightly", recipe=str(tiny_recipe), overrides=[SLOW])
        until(lambda: jobs(served))
        for pid in served.processes():
            with suppress(ProcessLookupError):  # it may have ended with another one
                os.kill(pid, signal.SIGKILL)
        served.process.wait()
    until(lambda: not served.processes(), seconds=60)

    proxied = ("--host", "0.0.0.0", "--behind-tls", "https://lyceum.example.org")
    with Served(tmp_path, *proxied) as served:
        answers_to_the_name_of_the_proxy(served)
        state = served.state(run)
        assert (state["type"], state["message"]) == (
            "CRASHED",
            "its process ended with `lyceum serve`; Retry continues it",
        )
        within = {"flow_runs": {"parent_flow_run_id": {"any_": [run]}}}
        [inner] = served.ask("/flow_runs/filter", within)
        assert inner["state"]["type"] in ("CRASHED", "CANCELLED"), "it does not run for ever either"
        served.retry(run)
        until(lambda: jobs(served))
        served.stop()
    assert served.processes() == {}


def leave_as_an_earlier_version_did(served: Served) -> None:
    """A pool, and a deployment, that let a run choose its command."""
    opened = {
        "job_configuration": {"command": "{{ command }}"},
        "variables": {"properties": {"command": {}}},
    }
    served.ask(f"/work_pools/{POOL}", {"base_job_template": opened}, "PATCH")
    deployment = served.ask("/deployments/name/nightly/nightly")["id"]
    served.ask(f"/deployments/{deployment}", {"job_variables": {"command": "true"}}, "PATCH")


def answers_to_the_name_of_the_proxy(served: Served) -> None:
    """What a proxy passes on: the browser's Host and Origin. Our own processes use the address."""
    name = "lyceum.example.org"
    assert served.link.startswith(f"https://{name}/lyceum/enter#")
    headers = {"Host": name, "Origin": f"https://{name}"}
    request = urllib.request.Request(f"{served.ui}/ui-settings", headers=headers)
    assert urllib.request.urlopen(request, timeout=60).status == 200
    assert served.ask("/deployments/name/nightly/nightly")["name"] == "nightly"
