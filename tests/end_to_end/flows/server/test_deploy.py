"""The deployments: what their forms ask for and refuse, what registering again keeps, and where
they cannot be registered."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling, Crashed, Running
from prefect.variables import Variable

from flows.post_train import post_train
from flows.recipe.parameters import recipe_choices
from flows.server.deploy import choices, deploy, register
from flows.server.prefect_api import free_port
from flows.server.serve import POOL, _end_what_is_left, template
from infra.process import ROOT
from schemas.base import InputError
from tasks.stage import run_stage

NIGHTLY, POST_TRAIN = "nightly/nightly", "post-train/post-train"


@pytest.fixture
def client(
    prefect_api: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[SyncPrefectClient]:
    """A client of the session's API, which has one pool of each kind and no deployment yet;
    LYCEUM_STORE is set."""
    monkeypatch.setenv("LYCEUM_STORE", str(tmp_path / "store"))
    with get_client(sync_client=True) as made:
        for name, kind in (("processes", "process"), ("images", "docker")):
            if name not in [pool.name for pool in made.read_work_pools()]:
                made.create_work_pool(WorkPoolCreate(name=name, type=kind))
        yield made
        for deployment in (NIGHTLY, POST_TRAIN):
            try:
                made.delete_deployment(made.read_deployment_by_name(deployment).id)
            except ObjectNotFound:
                continue


def test_the_form_describes_every_parameter_and_offers_choices(client, tmp_path):
    (tmp_path / "mine.toml").touch()
    assert list(deploy("processes", tmp_path).pages) == [POST_TRAIN, NIGHTLY]
    for name in (NIGHTLY, POST_TRAIN):
        schema = client.read_deployment_by_name(name).parameter_openapi_schema
        fields = schema["properties"]
        assert list(fields)[:6] == ["recipe", "target", "store", "overrides", "data", "force"]
        for position, (key, field) in enumerate(fields.items()):
            assert field["position"] == position
            assert field["title"] != key, "labels are for people"
            assert field["description"].endswith((".", "sft", "20", str(tmp_path / "store")))
        shipped, own, path = fields["recipe"]["anyOf"]
        assert "quickstart" in shipped["enum"]
        assert own["enum"] == [str(tmp_path / "mine.toml")]
        assert path == {"type": "string", "title": "Path of a TOML file"}
        assert {"local", "v5e-8"} <= set(fields["target"]["enum"])


def test_store_and_target_may_come_from_prefects_variables(client, tmp_path):
    """As docs/prefect.md has it: a run gets what the variable holds when it is created; what the
    form would refuse is refused."""
    deploy("processes")
    page = (ROOT / "docs" / "prefect.md").read_text(encoding="utf-8")
    [text] = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    parameters = json.loads(text)
    deployment = client.read_deployment_by_name(POST_TRAIN).id
    for target in ("v5e-8", "local"):
        for name, value in (("lyceum_store", "gs://team/lyceum"), ("lyceum_target", target)):
            Variable.set(name, value, overwrite=True)
        run = client.create_flow_run_from_deployment(deployment, parameters=parameters)
        assert run.parameters == {"store": "gs://team/lyceum", "target": target}
    Variable.set("lyceum_target", "mars", overwrite=True)
    with pytest.raises(httpx.HTTPStatusError) as refused:
        client.create_flow_run_from_deployment(deployment, parameters=parameters)
    assert "'mars' is not one of" in refused.value.response.text


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"recipy": "quickstart"}, "'recipy' was unexpected"),
        ({"target": "mars"}, "'mars' is not one of"),
        ({"overrides": ["stages.sft.config.steps"]}, "overrides[0]"),
        ({"force": "sft"}, "'force'"),
    ],
)
def test_the_server_refuses_what_does_not_fit_the_form(client, parameters, message):
    deploy("processes")
    deployment = client.read_deployment_by_name(POST_TRAIN)
    with pytest.raises(httpx.HTTPStatusError) as refused:
        client.create_flow_run_from_deployment(deployment.id, parameters=parameters)
    assert message in json.loads(refused.value.response.text)["detail"]


def test_runs_find_the_flow_by_module_and_the_store_by_environment(client, tmp_path):
    """No code is pulled, and a run's own temporary directory is no place for artifacts."""
    deploy("processes")
    deployment = client.read_deployment_by_name(POST_TRAIN)
    assert deployment.entrypoint == "flows.post_train.post_train"
    assert (deployment.pull_steps, deployment.path) == ([], None)
    assert deployment.job_variables["env"] == {"LYCEUM_STORE": str(tmp_path / "store")}
    assert deployment.enforce_parameter_schema


def test_nights_do_not_overlap_and_begin_when_they_are_switched_on(client):
    deploy("processes")
    nightly = client.read_deployment_by_name(NIGHTLY)
    assert nightly.global_concurrency_limit.limit == 1
    assert nightly.concurrency_options.collision_strategy == "CANCEL_NEW"
    [schedule] = nightly.schedules
    assert schedule.schedule.cron == "0 2 * * *"  # type: ignore[union-attr]
    assert not schedule.active
    assert client.read_deployment_by_name(POST_TRAIN).schedules == []


def test_registering_again_keeps_what_people_changed_in_the_ui(client, tmp_path):
    first = deploy("processes")
    nightly = client.read_deployment_by_name(NIGHTLY)
    parameters = {"recipe": "open_data", "force": ["sft"]}
    client.update_deployment(nightly.id, DeploymentUpdate(parameters=parameters))
    one_gpu = DeploymentUpdate(concurrency_limit=1)
    client.update_deployment(client.read_deployment_by_name(POST_TRAIN).id, one_gpu)
    client.update_deployment_schedule(nightly.id, nightly.schedules[0].id, active=True)
    assert deploy("processes") == first
    again = client.read_deployment_by_name(NIGHTLY)
    assert again.parameters == parameters
    [schedule] = again.schedules
    assert (schedule.schedule, schedule.active) == (nightly.schedules[0].schedule, True)
    limits = [client.read_deployment_by_name(name).global_concurrency_limit for name in first.pages]
    assert [limit and limit.limit for limit in limits] == [1, 1]
    assert again.concurrency_options == nightly.concurrency_options


def test_stored_parameters_that_the_form_refuses_are_left_out_and_no_night_begins(client, capsys):
    """Another version's, or some that were stored while nothing was checked: `lyceum serve` ended
    with a traceback, and without its server nobody could mend them."""
    deploy("processes")
    nightly = client.read_deployment_by_name(NIGHTLY)
    client.update_deployment_schedule(nightly.id, nightly.schedules[0].id, active=True)
    stored = {"recipe": "quickstart", "target": "mars", "recipy": "x"}
    unchecked = DeploymentUpdate(parameters=stored, enforce_parameter_schema=False)
    client.update_deployment(nightly.id, unchecked)
    deploy("processes")
    again = client.read_deployment_by_name(NIGHTLY)
    assert again.parameters == {"recipe": "quickstart"}
    assert [one.active for one in again.schedules] == [False]
    said = capsys.readouterr().err.splitlines()
    assert "nightly/nightly: its parameter target is left out" in said[0]
    assert "refuses 'mars': 'mars' is not one of" in said[0]
    assert "recipy" in said[1]
    deploy("processes")
    assert capsys.readouterr().err == ""


def test_what_lost_its_process_has_ended_when_serve_starts_again(client):
    """A night was killed, which its worker saw; the run within it, which no worker knows, goes on
    for ever. Another one was killed while it was being cancelled."""
    closed = {"type": "process", "base_job_template": template()}
    client.create_work_pool(WorkPoolCreate(name=POOL, **closed))
    try:
        register(client, POOL, "store", recipe_choices(None), {})
        deployment = client.read_deployment_by_name(NIGHTLY).id
        lost = [client.create_flow_run_from_deployment(deployment).id for _ in range(2)]
        parent = client.create_task_run(run_stage, lost[0], "0", state=Running())
        within = client.create_flow_run(post_train, parent_task_run_id=parent.id).id
        states = {lost[0]: [Crashed()], lost[1]: [Running(), Cancelling()], within: [Running()]}
        for run, state in [(run, state) for run, told in states.items() for state in told]:
            client.set_flow_run_state(run, state, force=True)
        _end_what_is_left(client)
        ended = [client.read_flow_run(run).state_type for run in states]
        assert ended == ["CRASHED", "CANCELLED", "CRASHED"]
    finally:
        client.delete_work_pool(POOL)


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        (
            "proceses",
            r"no work pool 'proceses'; `prefect work-pool create proceses --type process` makes"
            r" it. Did you mean 'processes'",
        ),
        ("images", r"of type docker.* would need an image.* Valid: .*processes"),
    ],
)
def test_a_pool_that_cannot_run_the_flows_is_refused(client, pool, message):
    with pytest.raises(InputError, match=message):
        deploy(pool)


def test_an_api_that_is_not_there_is_named(client, monkeypatch):
    nobody = f"http://127.0.0.1:{free_port()}/api"
    with (
        temporary_settings({PREFECT_API_URL: nobody}),
        pytest.raises(InputError, match=f"{nobody} .* does not answer"),
    ):
        deploy("processes")
    with (
        temporary_settings(restore_defaults={PREFECT_API_URL}),
        pytest.raises(InputError, match="no Prefect API is configured"),
    ):
        deploy("processes")


def test_what_the_worker_could_not_find_is_refused(client, monkeypatch, tmp_path):
    with pytest.raises(InputError, match=r"--recipes .* is not a directory with recipes"):
        deploy("processes", tmp_path)
    monkeypatch.setenv("LYCEUM_STORE", "somewhere")
    with pytest.raises(InputError, match="LYCEUM_STORE=somewhere is a relative path"):
        deploy("processes")


def test_what_somebodys_own_prefect_leaves_open_is_measured_and_said(client, lyceum):
    """The session's API is as Prefect starts it: it asks for no key, answers `*`, and its pool lets
    a run choose what is executed."""
    said = lyceum("deploy", "--pool", "processes").out
    for weakness in (
        "the API asks for no key",
        "it answers Access-Control-Allow-Origin: *",
        "it answers to any host name",
        "a run may choose its command, env, working_dir",
    ):
        assert f"Not protected: {weakness}" in said
    assert len(lyceum("deploy", "--pool", "processes", "--json").json["unprotected"]) == 4


def test_a_closed_pool_is_used_as_it_is(client: SyncPrefectClient) -> None:
    closed = {"type": "process", "base_job_template": template()}
    client.create_work_pool(WorkPoolCreate(name="closed", **closed))
    try:
        said = deploy("closed").unprotected
        assert not [one for one in said if "a run may choose" in one]
        deployment = client.read_deployment_by_name(POST_TRAIN)
        assert deployment.job_variables == {}
        field = deployment.parameter_openapi_schema["properties"]["store"]
        assert field["description"].endswith("Empty: LYCEUM_STORE where its worker runs")
    finally:
        client.delete_work_pool("closed")


def test_what_a_template_lets_a_run_choose() -> None:
    assert choices(template()) == []
    assert choices({"job_configuration": {"env": {"A": "1"}}, "variables": {}}) == ["env"], (
        "Prefect adds a run's to it"
    )
    named = {"job_configuration": {"command": "{{ command }}"}}
    named["variables"] = {"properties": {"command": {}, "env": {}}}
    assert choices(named) == ["command"], "a variable that nothing uses chooses nothing"
