"""`infra/terraform/`: what the files say, by a parser; what the VM does with it."""

import os
import re
import subprocess
from collections.abc import Iterator
from typing import Any

from infra.settings import Settings, TpuSettings
from infra.tpu.api import TpuApi
from infra.tpu.types import TPU_TYPES
from tests.fakes.tpu_fake import FakeTpu
from tests.infra.terraform_files import FILES, TERRAFORM

# Methods of the Cloud TPU API and what they ask for; queued resources have no permissions
# of their own. Source: the table of methods in github.com/iann0036/iam-dataset (gcp/map.json,
# August 2026), which agrees with what roles/tpu.admin is made of.
PERMISSIONS = {
    "CreateQueuedResource": "tpu.nodes.create",
    "DeleteQueuedResource": "tpu.nodes.delete",
    "DeleteNode": "tpu.nodes.delete",
    "GetQueuedResource": "tpu.nodes.get",
    "GetNode": "tpu.nodes.get",
    "ListQueuedResources": "tpu.nodes.list",
    "ListNodes": "tpu.nodes.list",
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
    assert not re.search("roles/(owner|editor|viewer)|admin|allUsers|allAuthenticated", ALL, re.I)
    assert "google_service_account_key" not in FILES["resource"]
    assert not [
        kind for kind in FILES["resource"] if kind.endswith(("_iam_policy", "_iam_binding"))
    ], "they take others' grants away"
    closed = {"uniform_bucket_level_access": True, "public_access_prevention": "enforced"}
    for name, bucket in FILES["resource"]["google_storage_bucket"].items():
        assert bucket.items() >= closed.items(), name
    assert not re.search(r"0\.0\.0\.0/0|::/0", ALL)
    for name, rule in FILES["resource"]["google_compute_firewall"].items():
        assert rule["source_ranges"], name
        assert rule["target_tags"], name
    assert FILES["variable"]["ssh_source_ranges"]["default"] == ["35.235.240.0/20"]


def test_roles_are_exactly_what_calls_ask_for(tpu: FakeTpu) -> None:
    """A VM removes itself (`infra.tpu.host`, bootstrap_tpu.sh), and makes no machine."""
    api = TpuApi(TPU_TYPES["v5e-8"], TpuSettings.from_environment())
    asked = tpu.requests

    def remove(name: str) -> set[str]:
        before = asked()
        while not api.remove(name):
            pass
        return {PERMISSIONS[method] for method in asked() if asked()[method] != before.get(method)}

    for short in ("whole", "node"):
        name = api.name("us-central1-a", short)
        api.create(name, {}, {"startup-script": "exec sleep 600"}, 60)
        tpu.wait(short, "READY")
    tpu.strike("vanish", "node", what="request")
    assert len(api.list("us-central1-a")) == 2
    removing = remove(api.name("us-central1-a", "whole")) | remove(name)
    assert role("tpu") == removing == {"tpu.nodes.get", "tpu.nodes.delete"}
    assert asked().keys() == PERMISSIONS.keys()
    assert role("flow") == {*PERMISSIONS.values()}


def test_a_tpu_vm_may_write_objects_and_logs_and_read_its_secrets() -> None:
    granted = [
        body
        for kind, named in FILES["resource"].items()
        if "_iam_member" in kind
        for body in named.values()
        if "google_service_account.tpu.member" in "".join(texts(body))
    ]
    roles = {text for body in granted for text in texts(body) if text.startswith("roles/")}
    assert roles == {
        "roles/storage.objectUser",
        "roles/logging.logWriter",
        "roles/secretmanager.secretAccessor",
    }


def test_what_the_lifecycle_deletes_is_what_is_shipped_to_machines() -> None:
    rules = FILES["resource"]["google_storage_bucket"]["store"]["lifecycle_rule"]
    deleting = [rule["condition"][0] for rule in rules if rule["action"][0]["type"] == "Delete"]
    prefixes = re.findall(r'"(\w+)/"', "".join(rule.get("matches_prefix", "") for rule in deleting))
    assert sorted(prefixes) == ["compiled", "data", "env", "models", "src"]
    assert all(
        "matches_prefix" in rule or "days_since_noncurrent_time" in rule for rule in deleting
    ), "artifacts are never deleted"


def test_every_exported_setting_exists() -> None:
    exported = set(re.findall(r"\bLYCEUM_\w+", FILES["locals"]["environment"]))
    known = {
        model.PREFIX + name.upper()
        for model in (Settings, TpuSettings)
        for name in model.model_fields
    }
    needed = ("STORE", "ZONES", "TPU_PROJECT", "TPU_SERVICE_ACCOUNT", "TPU_NETWORK")
    assert {f"LYCEUM_{name}" for name in needed} <= exported <= known


# The VM's startup script

STUBS = {
    "curl": 'cat "$STUB_METADATA/$(basename "${@: -1}")"',
    "gcloud": """
        case "$1 $2" in
          "storage cp") cp "$STUB_CODE" "$4" ;;
          "secrets versions")
            name=${5#--secret=lyceum-}
            if [ "$name" = OLD_KEY ]; then
              echo "FAILED_PRECONDITION: [...] is in DISABLED state." >&2; exit 1; fi
            if [ -e "$STUB_SECRETS/$name" ]; then cat "$STUB_SECRETS/$name"; else
              echo "NOT_FOUND: Secret [$name] not found or has no versions." >&2; exit 1; fi ;;
        esac""",
    "python3": r"""
        mkdir -p "$3/bin"
        for tool in pip uv; do
          printf '#!/bin/bash\necho %s "$@" >>"$STUB_CALLS"' "$tool" >"$3/bin/$tool"
          chmod +x "$3/bin/$tool"
        done""",
    "runuser": 'shift 3; exec "$@"',
    **{
        name: f'echo {name} "$@" >>"$STUB_CALLS"'
        for name in ("chown", "id", "sleep", "systemctl", "useradd")
    },
    # upgrades of the image's own go on while it boots for the first time
    "apt-get": """
        echo apt-get "$@" >>"$STUB_CALLS"
        if [ "$(grep -c apt-get "$STUB_CALLS")" = 1 ]; then
          echo "E: Could not get lock /var/lib/apt/lists/lock." >&2; exit 100; fi""",
}


def test_the_vm_starts_the_service_with_its_settings_and_the_secrets_that_have_values(tmp_path):
    home, calls = tmp_path / "lyceum", tmp_path / "calls"
    for name in ("bin", "metadata", "secrets", "code"):
        (tmp_path / name).mkdir()
    for name, body in STUBS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    for path, text in {
        "metadata/lyceum-code": "gs://bucket-code/lyceum.tar.gz",
        "metadata/lyceum-environment": (
            "LYCEUM_STORE=gs://bucket/lyceum\nLYCEUM_TPU_LABELS=team=nlp"
        ),
        "metadata/lyceum-secrets": "API_KEY HF_TOKEN OLD_KEY",
        "secrets/API_KEY": 'a"b\\c $d',
        "code/pyproject.toml": "",
    }.items():
        (tmp_path / path).write_text(text)
    subprocess.run(
        ["tar", "czf", tmp_path / "code.tar.gz", "-C", tmp_path / "code", "."], check=True
    )
    environment = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "LYCEUM_VM_ROOT": str(home),
        "STUB_CODE": str(tmp_path / "code.tar.gz"),
        **{f"STUB_{one.upper()}": str(tmp_path / one) for one in ("metadata", "secrets", "calls")},
    }
    command = ["bash", TERRAFORM / "prefect_vm.sh"]
    for boot in (1, 2):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert "secret lyceum-HF_TOKEN has no value yet" in done.stderr
        assert (home / "code" / "pyproject.toml").exists()
        assert (home / "code" / ".venv").exists() == (boot == 2), (
            "the environment outlives new code"
        )
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
    assert said.count("apt-get update") == 2, "its lock was waited for"
    assert said.count("pip install uv") == 1, "only the first boot installs"
    assert said.count(f"uv sync --no-dev --directory {home}/code") == 2
    assert said.count("systemctl restart lyceum.service") == 2
