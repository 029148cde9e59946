"""The Cloud TPU API as we use it: over real gRPC against the fake, and what its refusals mean."""

import time
from types import SimpleNamespace

import pytest
from google.api_core.exceptions import ServiceUnavailable
from google.cloud import tpu_v2alpha1

import infra.tpu.api
from infra.settings import TpuSettings
from infra.tpu.api import GONE, ApiError, Resource, TpuApi, deletion_command, node_of
from infra.tpu.problems import explain
from infra.tpu.types import TPU_TYPES
from schemas.base import InputError
from tests.fakes.process import until
from tests.fakes.tpu_fake import PROJECT, FakeTpu

ZONE = "us-central1-a"
LABELS = {"lyceum": "job", "lyceum-store": "s1"}
V5E = TPU_TYPES["v5e-8"]


def api(target: str = "v5e-8", **settings: object) -> TpuApi:
    return TpuApi(TPU_TYPES[target], TpuSettings.from_environment().model_copy(update=settings))


def create(one: TpuApi, short: str = "lyceum-1", zone: str = ZONE, **more: float) -> str:
    name = one.name(zone, short)
    metadata = {"startup-script": "exec sleep 600", "lyceum-job": "work/k/1/job.json"}
    one.create(name, LABELS, metadata, more.get("seconds", 3600))
    return name


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infra.tpu.api, "CALL_SECONDS", 0.8)


def removed(one: TpuApi, name: str) -> None:
    until(lambda: one.remove(name))


def test_a_resource_is_made_seen_and_removed(tpu: FakeTpu) -> None:
    one = api()
    name = create(one)
    assert name == f"projects/{PROJECT}/locations/{ZONE}/queuedResources/lyceum-1"
    tpu.wait("lyceum-1", "READY")
    seen = one.look(name)
    assert (seen.request, seen.node, seen.problem, seen.health) == ("ACTIVE", "READY", None, "")
    assert LABELS.items() <= seen.labels.items()
    assert seen.metadata["lyceum-job"] == "work/k/1/job.json"
    assert seen.created == pytest.approx(time.time(), abs=60)
    tpu.faults.add("stuck", state="DELETING")
    assert not one.remove(name)
    assert not one.remove(name)  # it is under way
    tpu.faults.clear()
    removed(one, name)
    assert (one.look(name).request, one.look(name).node) == (GONE, GONE)
    assert tpu.leaked() == []
    assert tpu.requests()["DeleteQueuedResource"] == 1


def test_every_setting_reaches_the_service(tpu: FakeTpu) -> None:
    """Each changes what is asked for, in its place."""

    def asked(**settings: object) -> dict:
        place = f"projects/{PROJECT}/locations/{ZONE}"
        order = tpu_v2alpha1.QueuedResource(api(**settings).order(place, "x", LABELS, {}, 77.4))
        return tpu_v2alpha1.QueuedResource.to_dict(order, use_integers_for_enums=False)

    def node(order: dict) -> dict:
        return order["tpu"]["node_spec"][0]["node"]

    plain = asked()
    assert node(plain)["accelerator_type"] == "v5litepod-8"
    assert node(plain)["runtime_version"] == "v2-alpha-tpuv5-lite"
    [scope] = node(plain)["service_account"]["scope"]
    assert scope == "https://www.googleapis.com/auth/cloud-platform"
    assert node(plain)["network_config"]["enable_external_ips"] is True
    assert plain["queueing_policy"]["valid_until_duration"] == "77s"
    assert "spot" in plain
    assert not {"guaranteed", "spot"} & asked(tier="on-demand").keys()
    reserved = asked(tier="guaranteed", reservation="r1")
    assert reserved["guaranteed"]["reserved"] is True
    assert reserved["reservation_name"] == f"projects/{PROJECT}/locations/{ZONE}/reservations/r1"
    assert asked(tier="guaranteed")["reservation_name"] == ""
    assert node(asked(runtime="v2-alpha-tpuv5"))["runtime_version"] == "v2-alpha-tpuv5"
    assert node(asked(network="n1"))["network_config"]["network"] == "n1"
    assert node(asked(subnetwork="s1"))["network_config"]["subnetwork"] == "s1"
    assert node(asked(external_ips=False))["network_config"]["enable_external_ips"] is False
    assert node(asked(service_account="a@b"))["service_account"]["email"] == "a@b"
    assert node(asked(labels={"team": "nlp"}))["labels"] == {**LABELS, "team": "nlp"}
    assert node(asked(tags=("t1",)))["tags"] == ["t1"]
    disks = node(asked(data_disk="projects/p/zones/z/disks/d"))["data_disks"]
    assert disks == [{"source_disk": "projects/p/zones/z/disks/d", "mode": "READ_ONLY"}]
    assert api(project="p2").name(ZONE, "x").startswith("projects/p2/")


@pytest.mark.parametrize(
    ("action", "parameters"),
    [
        ("status", {"code": "UNAVAILABLE"}),
        ("status", {"code": "INTERNAL"}),
        ("status", {"code": "RESOURCE_EXHAUSTED"}),
        ("lost", {"code": "UNAVAILABLE"}),
        ("reset_before", {}),
        ("reset_after", {}),
    ],
)
def test_short_troubles_of_every_call_pass_unnoticed(tpu, action, parameters):
    """Among them answers that were lost: the second create finds the first one's resource, the
    second delete finds nothing."""
    one = api()
    fault = tpu.faults.add(action, method="*", times=None, probability=0.4, seed=3, **parameters)
    name = create(one)
    assert one.look(name).request != GONE
    assert [found.name for found in one.list(ZONE)] == [name]
    removed(one, name)
    assert tpu.faults.fired(fault) >= 2
    tpu.faults.clear()
    assert len(tpu.resources()) == 1
    assert tpu.leaked() == []


@pytest.mark.usefixtures("hasty")
def test_a_long_outage_is_told_and_nothing_is_known(tpu: FakeTpu) -> None:
    one = api()
    tpu.faults.add("status", method="*", code="UNAVAILABLE")
    for call in (
        lambda: create(one),
        lambda: one.look(one.name(ZONE, "x")),
        lambda: one.list(ZONE),
        lambda: one.remove(one.name(ZONE, "x")),
    ):
        with pytest.raises(ApiError) as raised:
            call()
        assert raised.value.problem.kind == "transient"
        assert "the Cloud TPU API does not answer (UNAVAILABLE" in str(raised.value)


@pytest.mark.usefixtures("hasty")
def test_an_endpoint_where_nobody_listens_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    one = api(endpoint="127.0.0.1:9", project="p")
    with pytest.raises(ApiError) as raised:
        one.look(one.name(ZONE, "x"))
    assert raised.value.problem.kind == "transient"


@pytest.mark.usefixtures("hasty")
def test_a_call_that_hangs_ends_in_time(tpu: FakeTpu) -> None:
    one = api()
    one.connect()
    tpu.faults.add("slow", method="GetQueuedResource", seconds=30.0, times=1)
    began = time.monotonic()
    with pytest.raises(ApiError):
        one.look(one.name(ZONE, "x"))
    assert time.monotonic() - began < 25


RAN_OUT = (
    "Getting metadata from plugin failed with error: Reauthentication is needed. Please run `gcloud"
    " auth application-default login` to reauthenticate.",
    "Getting metadata from plugin failed with error: ('invalid_grant: Bad Request', {})",
)


@pytest.mark.parametrize("words", RAN_OUT)
def test_credentials_that_ran_out_are_no_outage_and_are_read_again(monkeypatch, words) -> None:
    """gRPC says UNAVAILABLE, and says so until somebody logs in: in the middle of the night, of a
    company's account."""
    one, asked = api(endpoint="127.0.0.1:9", project="p"), []

    def refuse(**given: object) -> None:
        asked.append(1)
        raise ServiceUnavailable(words)

    old = vars(one)["_client"] = SimpleNamespace(get_queued_resource=refuse)
    with pytest.raises(ApiError) as raised:
        one.look(one.name(ZONE, "x"))
    assert raised.value.problem.kind == "credentials"
    assert "Log in: gcloud auth application-default login" in str(raised.value)
    assert one._client is not old


@pytest.mark.filterwarnings("ignore:Unrecognized")
def test_a_state_that_is_newer_than_the_client_is_an_unknown_one() -> None:
    """A machine at work was given up, for an error of ours."""
    one = api(endpoint="127.0.0.1:9", project="p")
    request = tpu_v2alpha1.QueuedResource(name=one.name(ZONE, "x"), state={"state": 99})
    node = tpu_v2alpha1.Node(name=node_of(request.name), state=98, health=97)
    active = tpu_v2alpha1.QueuedResource(name=request.name, state={"state": "ACTIVE"})
    vars(one)["_client"] = SimpleNamespace(
        get_queued_resource=lambda **given: answers.pop(), get_node=lambda **given: node
    )
    answers = [active, request]
    assert (one.look(request.name).request, one.look(request.name)) == (
        "",
        Resource(request.name, "ACTIVE"),
    )


def test_somebody_elses_resource_of_our_name_is_not_taken_for_ours(tpu: FakeTpu) -> None:
    one = api()
    name = create(one)
    create(one)  # ours
    with pytest.raises(ApiError, match="is not this job's") as raised:
        one.create(name, {**LABELS, "lyceum-store": "s2"}, {}, 60)
    assert raised.value.problem.kind == "invalid"
    command = "gcloud compute tpus queued-resources delete lyceum-1 --zone=us-central1-a"
    assert command in str(raised.value)


@pytest.mark.parametrize(
    ("action", "words"), [("fail", "There is no more capacity"), ("stuck", "The start timing")]
)
def test_a_request_that_failed_says_why_and_one_expires_when_nobody_is_left_to_give_it_up(
    tpu: FakeTpu, action: str, words: str
) -> None:
    one = api()
    tpu.faults.add(action, state="WAITING_FOR_RESOURCES")
    name = create(one, seconds=0.6 if action == "stuck" else 3600)
    tpu.wait("lyceum-1", "FAILED")
    problem = one.look(name).problem
    assert problem.kind == "stockout"
    said = f"v5e-8 (spot) in us-central1-a: the zone has no free TPUs ({words}"
    assert problem.text.startswith(said)


def test_nodes_without_a_request_are_listed_and_removed(tpu: FakeTpu) -> None:
    one = api()
    create(one)
    lonely = create(one, "lyceum-2")
    for short in ("lyceum-1", "lyceum-2"):
        tpu.wait(short, "READY")
    tpu.strike("vanish", "lyceum-2", what="request")
    tpu.wait("lyceum-2", "READY")
    found = {"/".join(seen.name.split("/")[-2:]): seen for seen in one.list(ZONE)}
    assert sorted(found) == ["nodes/lyceum-2", "queuedResources/lyceum-1"]
    assert (found["nodes/lyceum-2"].request, found["nodes/lyceum-2"].node) == (GONE, "READY")
    assert LABELS.items() <= found["nodes/lyceum-2"].labels.items()
    removed(one, found["nodes/lyceum-2"].name)
    assert one.remove(lonely)
    assert one.list("us-west4-a") == []


REFUSALS = """
RESOURCE_EXHAUSTED | stockout | no free TPUs |
    There is no more capacity in the zone "us-central1-a"; you can try in another zone
INTERNAL | stockout | no free TPUs | ZONE_RESOURCE_POOL_EXHAUSTED
DEADLINE_EXCEEDED | stockout | no free TPUs |
    The start timing constraint 'valid until' of the request has expired.
RESOURCE_EXHAUSTED | quota | or choose another tier (LYCEUM_TPU_TIER). |
    Quota limit 'TPUV6E' has been exceeded. Limit: 0 in region us-east5.
RESOURCE_EXHAUSTED | transient | does not answer |
    Quota exceeded for quota metric 'Requests' and limit 'Requests per minute'
UNAVAILABLE | transient | UNAVAILABLE | The service is currently unavailable.
DEADLINE_EXCEEDED | transient | DEADLINE_EXCEEDED | Deadline Exceeded
UNKNOWN | transient | no reason given |
UNAUTHENTICATED | credentials | gcloud auth application-default login |
    Request had invalid authentication credentials.
PERMISSION_DENIED | disabled | gcloud services enable tpu.googleapis.com --project=p |
    Cloud TPU API has not been used in project 12 before or it is disabled.
PERMISSION_DENIED | disabled | billing is not enabled |
    This API method requires billing to be enabled.
PERMISSION_DENIED | disabled | LYCEUM_TPU_PROJECT | Project 'p' not found or deleted.
PERMISSION_DENIED | permission | add-iam-policy-binding p --member=user:YOU --role=roles/tpu.admin |
    Permission 'tpu.queuedResources.create' denied on 'projects/p/locations/us-central1-a'
PERMISSION_DENIED | permission | roles/iam.serviceAccountUser |
    The user does not have permission to act as service account x: iam.serviceAccounts.actAs
PERMISSION_DENIED | permission | roles/tpu.admin | The caller does not have permission
PERMISSION_DENIED | invalid | is no zone |
    Permission denied on 'locations/us-central1-a' (or it may not exist).
INVALID_ARGUMENT | invalid | LYCEUM_TPU_SUBNETWORK |
    The subnetwork 'projects/p/regions/r/subnetworks/s' does not exist
NOT_FOUND | invalid | LYCEUM_TPU_RESERVATION | Reservation r1 was not found
INVALID_ARGUMENT | invalid | refuses the request: Cloud TPU received |
    Cloud TPU received a bad request. [EID: 0x1]
PERMISSION_DENIED | invalid | LYCEUM_ZONES |
    Location us-central9-z is not found or access is unauthorized.
INVALID_ARGUMENT | invalid | v5litepod-8 is not to be had in us-central1-a |
    Cloud TPU received a bad request. The requested accelerator configuration could not be found
INVALID_ARGUMENT | invalid | Valid: v2-alpha-tpuv5-lite; set LYCEUM_TPU_RUNTIME |
    The requested runtime version, "tpu-vm-v9", could not be found in zone us-central1-a
INVALID_ARGUMENT | invalid | LYCEUM_TPU_DATA_DISK | The disk 'd' is in another place
FAILED_PRECONDITION | invalid | Set LYCEUM_TPU_EXTERNAL_IPS=false |
    Constraint constraints/compute.vmExternalIpAccess violated for project 12.
PERMISSION_DENIED | credentials | gcloud auth application-default set-quota-project p |
    The tpu.googleapis.com API requires a quota project, which is not set by default.
FAILED_PRECONDITION | unknown | answers FAILED_PRECONDITION |
    delete is not supported while in state DELETING
"""
"""A line each: code, the kind that it means, a part of what is said, and the API's own words."""


def test_refusals_have_one_meaning_and_say_what_to_do() -> None:
    lines = REFUSALS.replace("|\n ", "|").strip().splitlines()
    assert len(lines) == 26
    for line in lines:
        code, kind, said, words = (part.strip() for part in line.split("|"))
        problem = explain(code, words, ZONE, "p", V5E, TpuSettings(project="p"))
        assert (problem.kind, said in problem.text) == (kind, True), line
        assert words in problem.text


def test_without_credentials_or_a_project_one_is_told_how_to_get_them(monkeypatch, tmp_path):
    unset = "LYCEUM_TPU_ENDPOINT LYCEUM_TPU_PROJECT GOOGLE_APPLICATION_CREDENTIALS"
    for name in [*unset.split(), "GOOGLE_CLOUD_PROJECT"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(InputError, match="gcloud auth application-default login"):
        api(project="p").connect()
    with pytest.raises(InputError, match="LYCEUM_TPU_PROJECT"):
        api(endpoint="127.0.0.1:9", project="").connect()


def test_what_people_type_to_delete_by_hand() -> None:
    place, where = "projects/p/locations/us-west4-a", "--zone=us-west4-a --project=p"
    typed = f"gcloud compute tpus queued-resources delete q {where} --force --quiet"
    assert deletion_command(f"{place}/queuedResources/q") == typed
    typed = f"gcloud compute tpus tpu-vm delete n {where} --quiet"
    assert deletion_command(f"{place}/nodes/n") == typed
