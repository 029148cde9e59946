"""What Terraform, where it is installed, makes of `infra/terraform/`."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.gcs.region import require_near
from infra.settings import Settings, TpuSettings
from infra.tpu.secret_manager import NAME
from tasks.chat.provider import travelling
from tests.fakes.terraform_provider import Block, google_provider
from tests.infra.terraform_files import FILES, TERRAFORM

pytestmark = pytest.mark.skipif(
    shutil.which("terraform") is None, reason="terraform is not on the PATH"
)


class Applied:
    """Resources and outputs after `terraform apply`."""

    def __init__(self, state: dict[str, Any]) -> None:
        found = state["root_module"].get("resources", [])
        self.resources = {one["address"]: one["values"] for one in found}
        self.outputs = {name: one.get("value") for name, one in state["outputs"].items()}

    def one(self, address: str) -> dict[str, Any]:
        return self.resources[address]

    def environment(self) -> dict[str, str]:
        """What a shell has after `eval` of the output."""
        command = ["bash", "-c", f"{self.outputs['environment']}\nenv -0"]
        where = {"PATH": os.environ["PATH"]}
        said = subprocess.check_output(command, env=where, text=True)
        lines = [line for line in said.split("\0") if re.match(r"LYCEUM_|\w+_SECRET=", line)]
        return dict(line.split("=", 1) for line in lines)

    def readers(self) -> list[dict[str, Any]]:
        """Who may read which secret."""
        prefix = "google_secret_manager_secret_iam"
        return [one for name, one in self.resources.items() if name.startswith(prefix)]


Terraform = Callable[..., Applied | str]


@pytest.fixture(scope="module")
def terraform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terraform]:
    """Apply the files with variables to an empty project: what is there then, or what Terraform
    said when it refused."""
    with google_provider(_block([FILES["provider"]["google"]]), _resources()) as attached:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
        environment = {**clean, **attached, "CHECKPOINT_DISABLE": "1"}

        def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
            where = {"cwd": directory, "env": environment, "timeout": 120}
            command = ["terraform", *arguments]
            return subprocess.run(command, capture_output=True, text=True, **where)

        def apply(**variables: Any) -> Applied | str:
            directory = tmp_path_factory.mktemp("terraform")
            shutil.copytree(TERRAFORM, directory, dirs_exist_ok=True)
            given = json.dumps({"project": "demo-project", **variables})
            (directory / "terraform.tfvars.json").write_text(given)
            done = run(directory, "apply", "-auto-approve", "-no-color", "-input=false")
            if done.returncode:
                return done.stderr
            return Applied(json.loads(run(directory, "show", "-json").stdout)["values"])

        yield apply


def _resources() -> dict[str, Block]:
    """A schema for each resource type, made of what the files use of it."""
    made = {"id", "name", "email", "member", "url"}
    return {kind: _block([*named.values()], made) for kind, named in FILES["resource"].items()}


META = {"count", "for_each", "depends_on", "lifecycle", "dynamic"}


def _block(bodies: list[dict[str, Any]], computed: set[str] = frozenset()) -> Block:
    used: dict[str, list[Any]] = {}
    for body in bodies:
        for name, value in body.items():
            used.setdefault(name, []).append(value)
        for dynamic in body.get("dynamic", []):
            for name, value in dynamic.items():
                used.setdefault(name, []).append(value["content"])
    blocks: dict[str, Any] = {}
    attributes = {name: {"type": "string", "optional": True, "computed": True} for name in computed}
    for name in used.keys() - META:
        if all(isinstance(one, list) and one and isinstance(one[0], dict) for one in used[name]):
            blocks[name] = _block([one for value in used[name] for one in value])
        else:
            attributes[name] = {"type": "dynamic", "optional": True}
    return {"attributes": attributes, "blocks": blocks}


def test_the_files_are_formatted() -> None:
    command = ["terraform", "fmt", "-check", "-diff"]
    done = subprocess.run(command, cwd=TERRAFORM, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_output_is_what_lyceum_reads(terraform: Terraform) -> None:
    applied = terraform(labels={"team": "nlp", "cost-center": "42"}, zones=["us-central1-a"])
    assert isinstance(applied, Applied), applied
    environment = applied.environment()
    settings = Settings.from_environment(environment)
    tpu = TpuSettings.from_environment(environment)
    assert settings.store == "gs://demo-project-lyceum/lyceum"
    assert settings.zones == ("us-central1-a",)
    network = (tpu.network, tpu.subnetwork, tpu.external_ips)
    assert (tpu.project, *network) == ("demo-project", "lyceum", "lyceum", True)
    assert tpu.service_account == "lyceum-tpu@demo-project.iam.gserviceaccount.com"
    assert tpu.labels == {"team": "nlp", "cost-center": "42"}
    for rule in ("ssh", "hosts"):
        assert set(tpu.tags) <= set(applied.one(f"google_compute_firewall.{rule}")["target_tags"])
    assert applied.one("google_storage_bucket.store")["location"] == "US-CENTRAL1"
    optional = r"google_(compute_instance|compute_router|secret_manager|storage_bucket\.code)"
    assert not [address for address in applied.resources if re.match(optional, address)], (
        "nothing optional is paid for"
    )
    assert "code_archive" not in applied.outputs


def test_the_bucket_is_near_all_zones_and_each_region_has_its_subnetwork(terraform):
    zones = ["europe-west4-b", "europe-west4-a", "europe-west1-b"]
    applied = terraform(zones=zones, external_ips=False, bucket="some-name")
    assert isinstance(applied, Applied), applied
    for zone in zones:
        require_near("gs://some-name", applied.one("google_storage_bucket.store")["location"], zone)
    regions = ("europe-west4", "europe-west1")
    subnetworks = [applied.one(f'google_compute_subnetwork.tpu["{one}"]') for one in regions]
    name = applied.environment()["LYCEUM_TPU_SUBNETWORK"]
    assert {one["name"] for one in subnetworks} == {name}, "the TPU API looks it up by region"
    assert [one["private_ip_google_access"] for one in subnetworks] == [True, True]
    ranges = [one["ip_cidr_range"] for one in subnetworks]
    assert ranges == ["10.64.0.0/20", "10.64.16.0/20"]
    assert sorted(applied.one("google_compute_firewall.hosts")["source_ranges"]) == ranges
    assert {f'google_compute_router_nat.nat["{one}"]' for one in regions} <= set(applied.resources)
    assert TpuSettings.from_environment(applied.environment()).external_ips is False


def test_the_vm_has_code_that_tpus_cannot_change_and_settings_and_secrets(terraform):
    secrets = ["HF_TOKEN", "PREFECT_API_AUTH_STRING"]
    applied = terraform(prefect_vm=True, external_ips=False, secrets=secrets)
    assert isinstance(applied, Applied), applied
    vm = applied.one("google_compute_instance.prefect[0]")
    flow = "lyceum-flow@demo-project.iam.gserviceaccount.com"
    assert vm["service_account"] == [{"email": flow, "scopes": ["cloud-platform"]}]
    assert not vm["network_interface"][0]["access_config"], "no public address"
    metadata = vm["metadata"]
    assert metadata["startup-script"] == (TERRAFORM / "prefect_vm.sh").read_text(encoding="utf-8")
    told = dict(line.split("=", 1) for line in metadata["lyceum-environment"].splitlines())
    assert told == applied.environment()
    assert metadata["lyceum-secrets"].split() == secrets
    place = "gs://demo-project-lyceum-code/lyceum.tar.gz"
    assert metadata["lyceum-code"] == applied.outputs["code_archive"] == place
    bucket, made = "demo-project-lyceum-code", applied.resources.values()
    [code] = [one for one in made if one.get("bucket") == bucket]
    assert code["role"] == "roles/storage.objectViewer"
    assert code["member"] == f"serviceAccount:{flow}"
    readable = {(one["secret_id"], one["member"]) for one in applied.readers()}
    assert readable == {(f"lyceum-{name}", f"serviceAccount:{flow}") for name in secrets}
    assert "-L 4200:localhost:4200" in applied.outputs["prefect_tunnel"]


def test_tpu_vms_read_the_keys_that_are_named_for_them_and_no_others(terraform: Terraform) -> None:
    named = ["OPENAI_API_KEY", "MY_VLLM_API_KEY"]
    applied = terraform(prefect_vm=True, secrets=named[:1], tpu_secrets=named)
    assert isinstance(applied, Applied), applied
    tpu = f"serviceAccount:{applied.environment()['LYCEUM_TPU_SERVICE_ACCOUNT']}"
    grants = applied.readers()
    readable = {one["secret_id"] for one in grants if one["member"] == tpu}
    assert readable == {"lyceum-tpu-OPENAI_API_KEY", "lyceum-tpu-MY_VLLM_API_KEY"}
    assert {one["role"] for one in grants} == {"roles/secretmanager.secretAccessor"}
    variables = applied.environment().items()
    names = {name: value for name, value in variables if name.endswith("_SECRET")}
    key = "projects/demo-project/secrets/lyceum-tpu-OPENAI_API_KEY"
    assert names["OPENAI_API_KEY_SECRET"] == key
    assert all(NAME.fullmatch(value) for value in names.values())
    told = travelling({"provider": "openai"}, names)
    assert told["OPENAI_API_KEY_SECRET"] == names["OPENAI_API_KEY_SECRET"]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"project": "My Project"}, "A project id has"),
        ({"zones": []}, "at least one is needed"),
        ({"zones": ["us-central1"]}, "A zone is a region and a letter"),
        ({"zones": ["us-central1-a", "europe-west4-a"]}, "All zones must lie in one region"),
        ({"zones": ["me-west1-a", "me-central1-a"]}, "All zones must lie in one region"),
        ({"bucket": "Not_OK"}, "A bucket's name here"),
        ({"shipped_days": 1}, "At least 7 whole days"),
        ({"soft_delete_days": 3}, "7 to 90 days"),
        ({"ssh_source_ranges": ["0.0.0.0/0"]}, "SSH is not opened to the world"),
        ({"members": ["allUsers"]}, "allUsers and domains are not taken"),
        ({"labels": {"Team": "x"}}, "Labels have lower-case letters"),
        ({"secrets": ["hf_secret=abc"]}, "Names of environment variables"),
        ({"tpu_secrets": ["HF_TOKEN"]}, "that end in _API_KEY"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_variable_is_refused_with_what_is_right(terraform, variables, said):
    refused = terraform(**variables)
    assert isinstance(refused, str)
    assert said in " ".join(re.sub(r"[│╷╵]", " ", refused).split())
