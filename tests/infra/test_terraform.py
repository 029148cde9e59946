"""`infra/terraform/`: what the files say, by a parser; what Terraform makes of them, where it is installed; what the VM does with it."""

import ast
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
from tasks.chat.endpoint import travelling
from tests.fakes.terraform_files import FILES, REPOSITORY, TERRAFORM
from tests.fakes.terraform_provider import Block, google_provider

# Methods of google.cloud.tpu_v2alpha1 and what they ask for; queued resources have no permissions of their own. Source: the table of
# methods in github.com/iann0036/iam-dataset (gcp/map.json, August 2026), which agrees with what roles/tpu.admin is made of.
PERMISSIONS = {
    "create_queued_resource": "tpu.nodes.create",
    "delete_queued_resource": "tpu.nodes.delete",
    "delete_node": "tpu.nodes.delete",
    "get_queued_resource": "tpu.nodes.get",
    "get_node": "tpu.nodes.get",
    "list_queued_resources": "tpu.nodes.list",
    "list_nodes": "tpu.nodes.list",
}


def texts(value: Any) -> Iterator[str]:
    """Every string in a parsed file."""
    if isinstance(value, dict):
        for part in value.values():
            yield from texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from texts(part)
    elif isinstance(value, str):
        yield value


ALL = "\n".join(texts({kind: part for kind, part in FILES.items() if kind != "variable"}))


def role(name: str) -> set[str]:
    return set(FILES["resource"]["google_project_iam_custom_role"][name]["permissions"])


# What the files say


def test_every_reference_is_declared_and_everything_declared_is_used() -> None:
    resources = {f"{kind}.{name}" for kind, named in FILES["resource"].items() for name in named}
    assert set(re.findall(r"\bvar\.(\w+)", ALL)) == set(FILES["variable"])
    assert set(re.findall(r"\blocal\.(\w+)", ALL)) == set(FILES["locals"])
    assert set(re.findall(r"\b(google_\w+\.\w+)", ALL)) <= resources


def test_every_variable_and_output_says_what_it_is() -> None:
    for name, body in {**FILES["variable"], **FILES["output"]}.items():
        assert len(body["description"]) > 20, name
    for name, body in FILES["variable"].items():
        assert body["type"], name
        assert "default" in body or name == "project", f"{name}: only the project must be given"


def test_nobody_gets_a_wide_role_and_nothing_is_public() -> None:
    for wide in ("roles/owner", "roles/editor", "roles/viewer", "roles/tpu.admin", "admin", "allUsers", "allAuthenticatedUsers"):
        assert wide.lower() not in ALL.lower()
    assert "google_service_account_key" not in FILES["resource"]
    assert not [kind for kind in FILES["resource"] if kind.endswith(("_iam_policy", "_iam_binding"))], "they take others' grants away"
    for name, bucket in FILES["resource"]["google_storage_bucket"].items():
        assert (bucket["uniform_bucket_level_access"], bucket["public_access_prevention"]) == (True, "enforced"), name


def test_nothing_is_open_to_the_world() -> None:
    assert "0.0.0.0/0" not in ALL
    assert "::/0" not in ALL
    for name, rule in FILES["resource"]["google_compute_firewall"].items():
        assert rule["source_ranges"], name
        assert rule["target_tags"], name
    assert FILES["variable"]["ssh_source_ranges"]["default"] == ["35.235.240.0/20"]


def asked_by(*methods: str) -> set[str]:
    """The permissions that methods of TpuApi need; without names, all of it."""
    source = ast.parse((REPOSITORY / "infra" / "tpu" / "api.py").read_text(encoding="utf-8"))
    places = [node for node in ast.walk(source) if isinstance(node, ast.FunctionDef) and (not methods or node.name in methods)]
    calls = [node for place in places for node in ast.walk(place) if isinstance(node, ast.Call) and ast.unparse(node.func) == "self._ask"]
    return {PERMISSIONS[ast.literal_eval(call.args[1])] for call in calls}


def test_the_flows_role_is_exactly_what_its_calls_ask_for() -> None:
    assert role("flow") == asked_by()


def test_a_tpu_vm_may_delete_machines_and_not_make_them() -> None:
    # infra.tpu.host calls TpuApi.remove, bootstrap_tpu.sh the same method by itself.
    assert role("tpu") == asked_by("look", "_with_node", "remove") == {"tpu.nodes.get", "tpu.nodes.delete"}
    granted = [
        body
        for kind, named in FILES["resource"].items()
        if "_iam_member" in kind
        for body in named.values()
        if "google_service_account.tpu.member" in "".join(texts(body))
    ]
    roles = {text for body in granted for text in texts(body) if text.startswith("roles/")}
    assert roles == {"roles/storage.objectUser", "roles/logging.logWriter", "roles/secretmanager.secretAccessor"}


def test_what_the_lifecycle_deletes_is_what_is_shipped_to_machines() -> None:
    rules = FILES["resource"]["google_storage_bucket"]["store"]["lifecycle_rule"]
    deleting = [rule["condition"][0] for rule in rules if rule["action"][0]["type"] == "Delete"]
    prefixes = re.findall(r'"(\w+)/"', "".join(rule.get("matches_prefix", "") for rule in deleting))
    assert sorted(prefixes) == sorted(shipped_prefixes())
    assert all("matches_prefix" in rule or "days_since_noncurrent_time" in rule for rule in deleting), "artifacts are never deleted"


def shipped_prefixes() -> set[str]:
    """The first parts of names, in a store, of what is sent to machines: the code's own list, and what a machine leaves for the next."""
    modules = ("infra/source.py", "tasks/models/shipping.py", "infra/store/compiled.py")
    texts = [ast.get_docstring(ast.parse((REPOSITORY / name).read_text(encoding="utf-8")), clean=False) or "" for name in modules]
    listed = re.findall(r"^    (\w+)/<", "\n".join(texts), re.M)
    kept = re.findall(r'upload "(\w+)/\$', (REPOSITORY / "infra" / "tpu" / "bootstrap_tpu.sh").read_text(encoding="utf-8"))
    return {*listed, *kept}


def test_every_exported_setting_exists() -> None:
    exported = set(re.findall(r"\bLYCEUM_\w+", FILES["locals"]["environment"]))
    known = {model.PREFIX + name.upper() for model in (Settings, TpuSettings) for name in model.model_fields}
    assert exported <= known
    assert {"LYCEUM_STORE", "LYCEUM_ZONES", "LYCEUM_TPU_PROJECT", "LYCEUM_TPU_SERVICE_ACCOUNT", "LYCEUM_TPU_NETWORK"} <= exported


# What Terraform makes of them

needs_terraform = pytest.mark.skipif(shutil.which("terraform") is None, reason="terraform is not on the PATH")


class Applied:
    """Resources and outputs after `terraform apply`."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.resources = {one["address"]: one["values"] for one in state["root_module"].get("resources", [])}
        self.outputs = {name: one.get("value") for name, one in state["outputs"].items()}

    def one(self, address: str) -> dict[str, Any]:
        return self.resources[address]

    def environment(self) -> dict[str, str]:
        """What a shell has after `eval` of the output."""
        script = f"{self.outputs['environment']}\nenv -0"
        shell = subprocess.run(["bash", "-c", script], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True)
        lines = [line.split("=", 1) for line in shell.stdout.split("\0") if line]
        return {name: value for name, value in lines if name.startswith("LYCEUM_") or name.endswith("_SECRET")}


Terraform = Callable[..., Applied | str]


@pytest.fixture(scope="module")
def terraform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terraform]:
    """Apply the files with variables to an empty project: what is there then, or what Terraform said when it refused."""
    with google_provider(_block([FILES["provider"]["google"]]), _resources()) as attached:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
        environment = {**clean, **attached, "CHECKPOINT_DISABLE": "1"}

        def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(["terraform", *arguments], cwd=directory, env=environment, capture_output=True, text=True, timeout=120)

        def apply(**variables: Any) -> Applied | str:
            directory = tmp_path_factory.mktemp("terraform")
            shutil.copytree(TERRAFORM, directory, dirs_exist_ok=True)
            (directory / "terraform.tfvars.json").write_text(json.dumps({"project": "demo-project", **variables}))
            done = run(directory, "apply", "-auto-approve", "-no-color", "-input=false")
            if done.returncode:
                return done.stderr
            return Applied(json.loads(run(directory, "show", "-json").stdout)["values"])

        yield apply


def _resources() -> dict[str, Block]:
    """A schema for each resource type, made of what the files use of it."""
    return {kind: _block(list(named.values()), {"id", "name", "email", "member", "url"}) for kind, named in FILES["resource"].items()}


META = {"count", "for_each", "depends_on", "lifecycle", "dynamic"}


def _block(bodies: list[dict[str, Any]], computed: set[str] = frozenset()) -> Block:
    used: dict[str, list[Any]] = {}
    for body in bodies:
        for name, value in body.items():
            used.setdefault(name, []).append(value)
        for dynamic in body.get("dynamic", []):
            for name, value in dynamic.items():
                used.setdefault(name, []).append(value["content"])
    blocks = {
        name: {"nesting": "list", "block": _block([one for value in values for one in value])}
        for name, values in used.items()
        if name not in META and all(isinstance(value, list) and value and isinstance(value[0], dict) for value in values)
    }
    given = {name: {"type": "dynamic", "optional": True} for name in used if name not in META | set(blocks)}
    return {"attributes": {name: {"type": "string", "optional": True, "computed": True} for name in computed} | given, "blocks": blocks}


@needs_terraform
def test_the_files_are_formatted() -> None:
    done = subprocess.run(["terraform", "fmt", "-check", "-diff"], cwd=TERRAFORM, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@needs_terraform
def test_the_output_is_what_lyceum_reads(terraform: Terraform) -> None:
    applied = terraform(labels={"team": "nlp", "cost-center": "42"}, zones=["us-central1-a"])
    assert isinstance(applied, Applied), applied
    environment = applied.environment()
    settings, tpu = Settings.from_environment(environment), TpuSettings.from_environment(environment)
    assert (settings.store, settings.zones) == ("gs://demo-project-lyceum/lyceum", ("us-central1-a",))
    assert (tpu.project, tpu.network, tpu.subnetwork, tpu.external_ips) == ("demo-project", "lyceum", "lyceum", True)
    assert tpu.service_account == "lyceum-tpu@demo-project.iam.gserviceaccount.com"
    assert tpu.labels == {"team": "nlp", "cost-center": "42"}
    for rule in ("ssh", "hosts"):
        assert set(tpu.tags) <= set(applied.one(f"google_compute_firewall.{rule}")["target_tags"])
    assert applied.one("google_storage_bucket.store")["location"] == "US-CENTRAL1"
    optional = r"google_(compute_instance|compute_router|secret_manager|storage_bucket\.code)"
    assert not [address for address in applied.resources if re.match(optional, address)], "nothing optional is paid for"
    assert "code_archive" not in applied.outputs


@needs_terraform
def test_the_bucket_is_near_all_zones_and_each_region_has_its_subnetwork(terraform: Terraform) -> None:
    zones = ["europe-west4-b", "europe-west4-a", "europe-west1-b"]
    applied = terraform(zones=zones, external_ips=False, bucket="some-name")
    assert isinstance(applied, Applied), applied
    for zone in zones:
        require_near("gs://some-name", applied.one("google_storage_bucket.store")["location"], zone)
    subnetworks = [applied.one(f'google_compute_subnetwork.tpu["{region}"]') for region in ("europe-west4", "europe-west1")]
    assert {one["name"] for one in subnetworks} == {applied.environment()["LYCEUM_TPU_SUBNETWORK"]}, (
        "the TPU API looks the name up by region"
    )
    assert [one["private_ip_google_access"] for one in subnetworks] == [True, True]
    ranges = [one["ip_cidr_range"] for one in subnetworks]
    assert ranges == ["10.64.0.0/20", "10.64.16.0/20"]
    assert sorted(applied.one("google_compute_firewall.hosts")["source_ranges"]) == ranges
    assert {'google_compute_router_nat.nat["europe-west4"]', 'google_compute_router_nat.nat["europe-west1"]'} <= set(applied.resources)
    assert TpuSettings.from_environment(applied.environment()).external_ips is False


@needs_terraform
def test_the_vm_has_code_that_tpus_cannot_change_and_settings_and_secrets(terraform: Terraform) -> None:
    applied = terraform(prefect_vm=True, external_ips=False, secrets=["HF_TOKEN", "PREFECT_API_AUTH_STRING"])
    assert isinstance(applied, Applied), applied
    vm, flow = applied.one("google_compute_instance.prefect[0]"), "lyceum-flow@demo-project.iam.gserviceaccount.com"
    assert vm["service_account"] == [{"email": flow, "scopes": ["cloud-platform"]}]
    assert not vm["network_interface"][0]["access_config"], "no public address"
    metadata = vm["metadata"]
    assert metadata["startup-script"] == (TERRAFORM / "prefect_vm.sh").read_text(encoding="utf-8")
    assert dict(line.split("=", 1) for line in metadata["lyceum-environment"].splitlines()) == applied.environment()
    assert metadata["lyceum-secrets"].split() == ["HF_TOKEN", "PREFECT_API_AUTH_STRING"]
    assert metadata["lyceum-code"] == applied.outputs["code_archive"] == "gs://demo-project-lyceum-code/lyceum.tar.gz"
    code = [one for one in applied.resources.values() if one.get("bucket") == "demo-project-lyceum-code"]
    assert [(one["role"], one["member"]) for one in code] == [("roles/storage.objectViewer", f"serviceAccount:{flow}")]
    readers = {address: one for address, one in applied.resources.items() if address.startswith("google_secret_manager_secret_iam")}
    assert {one["secret_id"] for one in readers.values()} == {"lyceum-HF_TOKEN", "lyceum-PREFECT_API_AUTH_STRING"}
    assert {one["member"] for one in readers.values()} == {f"serviceAccount:{flow}"}
    assert "-L 4200:localhost:4200" in applied.outputs["prefect_tunnel"]


@needs_terraform
def test_tpu_vms_read_the_keys_that_are_named_for_them_and_no_others(terraform: Terraform) -> None:
    applied = terraform(prefect_vm=True, secrets=["OPENAI_API_KEY"], tpu_secrets=["OPENAI_API_KEY", "MY_VLLM_API_KEY"])
    assert isinstance(applied, Applied), applied
    tpu = f"serviceAccount:{applied.environment()['LYCEUM_TPU_SERVICE_ACCOUNT']}"
    grants = [one for address, one in applied.resources.items() if address.startswith("google_secret_manager_secret_iam")]
    readable = {one["secret_id"] for one in grants if one["member"] == tpu}
    assert readable == {"lyceum-tpu-OPENAI_API_KEY", "lyceum-tpu-MY_VLLM_API_KEY"}
    assert {one["role"] for one in grants} == {"roles/secretmanager.secretAccessor"}
    names = {name: value for name, value in applied.environment().items() if name.endswith("_SECRET")}
    assert names["OPENAI_API_KEY_SECRET"] == "projects/demo-project/secrets/lyceum-tpu-OPENAI_API_KEY"
    assert all(NAME.fullmatch(value) for value in names.values())
    told = travelling({"provider": "openai"}, names)
    assert told["OPENAI_API_KEY_SECRET"] == names["OPENAI_API_KEY_SECRET"]


@needs_terraform
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
def test_a_wrong_variable_is_refused_with_what_is_right(terraform: Terraform, variables: dict[str, Any], said: str) -> None:
    refused = terraform(**variables)
    assert isinstance(refused, str)
    assert said in " ".join(re.sub(r"[│╷╵]", " ", refused).split())


# The VM's startup script

STUBS = {
    "curl": 'cat "$STUB_METADATA/${@: -1}" 2>/dev/null || cat "$STUB_METADATA/$(basename "${@: -1}")"',
    "gcloud": """
        case "$1 $2" in
          "storage cp") cp "$STUB_CODE" "$4" ;;
          "secrets versions")
            name=${5#--secret=lyceum-}
            if [ -e "$STUB_SECRETS/$name" ]; then cat "$STUB_SECRETS/$name"; else
              echo "ERROR: (gcloud.secrets.versions.access) NOT_FOUND: Secret [$name] not found or has no versions." >&2; exit 1; fi ;;
        esac""",
    "python3": """
        mkdir -p "$3/bin"
        for tool in pip uv; do
          printf '#!/bin/bash\necho %s "$@" >>"$STUB_CALLS"' "$tool" >"$3/bin/$tool"
          chmod +x "$3/bin/$tool"
        done""",
    "runuser": 'shift 3; exec "$@"',
    **{name: f'echo {name} "$@" >>"$STUB_CALLS"' for name in ("apt-get", "chown", "id", "systemctl", "useradd")},
}


def test_the_vm_starts_the_service_with_its_settings_and_the_secrets_that_have_values(tmp_path: Path) -> None:
    home, calls = tmp_path / "lyceum", tmp_path / "calls"
    for name in ("bin", "metadata", "secrets", "code"):
        (tmp_path / name).mkdir()
    for name, body in STUBS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "metadata" / "lyceum-code").write_text("gs://bucket-code/lyceum.tar.gz")
    (tmp_path / "metadata" / "lyceum-environment").write_text("LYCEUM_STORE=gs://bucket/lyceum\nLYCEUM_TPU_LABELS=team=nlp")
    (tmp_path / "metadata" / "lyceum-secrets").write_text("API_KEY HF_TOKEN")
    (tmp_path / "secrets" / "API_KEY").write_text('a"b\\c $d')
    (tmp_path / "code" / "pyproject.toml").write_text("")
    subprocess.run(["tar", "czf", tmp_path / "code.tar.gz", "-C", tmp_path / "code", "."], check=True)
    environment = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "LYCEUM_VM_ROOT": str(home),
        "STUB_METADATA": str(tmp_path / "metadata"),
        "STUB_CODE": str(tmp_path / "code.tar.gz"),
        "STUB_SECRETS": str(tmp_path / "secrets"),
        "STUB_CALLS": str(calls),
    }
    for boot in (1, 2):
        done = subprocess.run(["bash", TERRAFORM / "prefect_vm.sh"], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert "secret lyceum-HF_TOKEN has no value yet" in done.stderr
        assert (home / "code" / "pyproject.toml").exists()
        assert (home / "code" / ".venv").exists() == (boot == 2), "the environment outlives new code"
        (home / "code" / ".venv").mkdir(exist_ok=True)
    assert (home / "environment").read_text().splitlines() == [
        'LYCEUM_STORE="gs://bucket/lyceum"',
        'LYCEUM_TPU_LABELS="team=nlp"',
        r'API_KEY="a\"b\\c $d"',
    ]
    assert (home / "environment").stat().st_mode & 0o777 == 0o600
    unit = (home / "lyceum.service").read_text()
    assert f"ExecStart={home}/code/.venv/bin/lyceum serve\n" in unit
    assert f"EnvironmentFile={home}/environment\n" in unit
    said = calls.read_text()
    assert said.count("pip install uv") == 1, "only the first boot installs"
    assert said.count(f"uv sync --no-dev --directory {home}/code") == 2
    assert said.count("systemctl restart lyceum.service") == 2
