"""`prefect deploy --all` in a clone, by Prefect's own command line against a real server: the same
two deployments as `lyceum deploy` registers."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate

from flows.server.deploy import deploy
from infra.process import ROOT

POOL = "lyceum"
NAMES = ("post-train/post-train", "nightly/nightly")


@pytest.fixture
def client(
    prefect_api: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SyncPrefectClient]:
    """A client of an API with a pool of the name in prefect.yaml."""
    monkeypatch.setenv("LYCEUM_STORE", str(tmp_path / "store"))
    with get_client(sync_client=True) as made:
        made.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
        yield made
        made.delete_work_pool(POOL)


def prefect(*arguments: str) -> str:
    """Prefect's command line, in the clone."""
    command = [sys.executable, "-m", "prefect", "--no-prompt", *arguments]
    piped = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, cwd=ROOT, text=True, **piped)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_prefect_deploy_all_registers_what_lyceum_deploy_does(client, tmp_path):
    prefect("deploy", "--all")
    by_prefect = {name: client.read_deployment_by_name(name) for name in NAMES}
    for one in by_prefect.values():
        assert one.work_pool_name == POOL
        assert one.job_variables["env"] == {"LYCEUM_STORE": str(tmp_path / "store")}
        client.delete_deployment(one.id)
    deploy(POOL)
    for name, here in by_prefect.items():
        there = client.read_deployment_by_name(name)
        assert here.entrypoint == there.entrypoint
        assert sorted(here.tags) == sorted(there.tags)
        assert here.enforce_parameter_schema == there.enforce_parameter_schema
        forms = [[*one.parameter_openapi_schema["properties"]] for one in (here, there)]
        assert forms[0] == forms[1]
        crons = [[one.schedule.cron for one in each.schedules] for each in (here, there)]  # type: ignore[union-attr]
        assert crons[0] == crons[1]
        assert not any(one.active for each in (here, there) for one in each.schedules)
        assert here.concurrency_options == there.concurrency_options
        limits = [each.global_concurrency_limit for each in (here, there)]
        assert [limit and limit.limit for limit in limits] == [1 if "nightly" in name else None] * 2
        client.delete_deployment(there.id)
