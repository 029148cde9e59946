"""The VMs of the fake of Cloud TPU: what a startup script finds there, and that nothing of them stays."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from google.cloud import tpu_v2alpha1 as api

from tests.fakes.tpu_catalog import accelerators
from tests.fakes.tpu_client import PARENT, READ, SLEEP, ZONE, connect, create, delete, lines, lives, name
from tests.fakes.tpu_fake import FakeTpu


@pytest.mark.parametrize(
    ("accelerator", "zone", "chips", "hosts"),
    [
        ("v2-8", "us-central1-b", 4, 1),
        ("v3-8", "us-central1-a", 4, 1),
        ("v3-32", "europe-west4-a", 16, 4),
        ("v4-16", "us-central2-b", 8, 2),
        ("v5litepod-1", ZONE, 1, 1),
        ("v5litepod-8", ZONE, 8, 1),
        ("v5litepod-16", ZONE, 16, 4),
        ("v6e-256", "us-east5-b", 256, 64),
        ("v5p-8", "us-east5-a", 4, 1),
    ],
)
def test_slices_have_the_hosts_and_chips_that_they_have(accelerator: str, zone: str, chips: int, hosts: int) -> None:
    one = accelerators(zone)[accelerator]
    assert (one.chips, one.hosts) == (chips, hosts)


def test_the_startup_script_runs_on_every_host_with_nothing_but_its_environment(tpu: FakeTpu, tpu_client: api.TpuClient) -> None:
    tpu.set_environment({"STORAGE_EMULATOR_HOST": "http://127.0.0.1:1"})
    script = f"env | sort; echo --; {READ}/instance/attributes/agent-worker-number; echo; {SLEEP}"
    create(tpu_client, "a-1", script, accelerator_type="v5litepod-16")
    assert tpu.wait("a-1", "ACTIVE").starts == 4
    for host in range(4):
        said = lines(tpu, "a-1", 18, host)
        environment = dict(line.split("=", 1) for line in said[: said.index("--")])
        assert environment.keys() - {"SHLVL", "PWD", "_"} == {
            *("PATH", "HOME", "TMPDIR", "GCE_METADATA_HOST", "GCE_METADATA_IP", "LYCEUM_VM_PYTHON", "LYCEUM_VM_ROOT", "LYCEUM_CACHE"),
            *("JAX_PLATFORMS", "LYCEUM_TPU_ENDPOINT", "LYCEUM_VM_TPU_API", "STORAGE_EMULATOR_HOST", "LYCEUM_FAKE_VM"),
        }
        assert environment["LYCEUM_VM_PYTHON"] == sys.executable
        assert environment["LYCEUM_TPU_ENDPOINT"] == tpu.endpoint
        assert environment["JAX_PLATFORMS"] == "cpu"
        disk = Path(environment["HOME"]).parent
        assert {Path(environment[one]).parent for one in ("TMPDIR", "LYCEUM_VM_ROOT", "LYCEUM_CACHE")} == {disk}
        assert said[said.index("--") + 1] == str(host)
    delete(tpu_client, "a-1")
    tpu.wait("a-1", "GONE")
    assert not disk.exists()
    assert len(tpu.output("a-1").splitlines()) == 18  # the output outlives the VM


def test_the_metadata_server_answers_as_the_real_one(tpu: FakeTpu, tpu_client: api.TpuClient) -> None:
    script = f"""
    base=http://$GCE_METADATA_HOST/computeMetadata/v1
    echo "$(curl -s -o /dev/null -w '%{{http_code}}' $base/instance/attributes/key)"
    echo "$(curl -s -o /dev/null -w '%{{http_code}}' -H 'Metadata-Flavor: Google' -H 'X-Forwarded-For: x' $base/instance/attributes/key)"
    echo "$(curl -s -o /dev/null -w '%{{http_code}}' -H 'Metadata-Flavor: Google' $base/instance/attributes/none)"
    echo "$({READ}/instance/attributes/key)"
    echo "$({READ}/instance/attributes/worker-network-endpoints)"
    echo "$({READ}/instance/attributes/accelerator-type)"
    echo "$({READ}/instance/service-accounts/default/token)"
    echo "$({READ}/instance/service-accounts/default/email)"
    echo "$({READ}/project/project-id)"
    echo "$({READ}/instance/zone)"
    echo "$({READ}/instance/preempted)"
    echo "$({READ}/instance/maintenance-event)"
    echo "$({READ}/instance/service-accounts/)"
    echo "$({READ}/instance/service-accounts/default/?recursive=true)"
    echo "$(curl -si -H 'Metadata-Flavor: Google' $base/instance/preempted | tr -d '\\r' | grep -i 'metadata-flavor\\|etag')"
    curl -s -X PUT --data value -H 'Metadata-Flavor: Google' $base/instance/guest-attributes/lyceum/state
    {SLEEP}
    """
    create(tpu_client, "a-1", script, metadata={"key": "value of it"}, service_account={"email": "vm@x.iam"})
    tpu.wait("a-1", "ACTIVE")
    said = lines(tpu, "a-1", 17)
    assert said[:3] == ["403", "403", "404"]
    assert said[3:6] == ["value of it", "unknown:unknown:127.0.0.1", "v5litepod-8"]
    assert said[6].startswith('{"access_token": "ya29')
    assert said[7:12] == ["vm@x.iam", "lyceum-test", "projects/123456789012/zones/us-west4-a", "FALSE", "NONE"]
    assert said[12:14] == ["default/", "vm@x.iam/"]
    assert '"scopes": ["https://www.googleapis.com/auth/cloud-platform"]' in said[14]
    assert [line.split(":")[0].lower() for line in said[15:17]] == ["metadata-flavor", "etag"]
    request = {"name": f"{PARENT}/nodes/a-1", "query_path": "lyceum/"}
    end = time.monotonic() + 5
    while not (found := tpu_client.get_guest_attributes(request).guest_attributes[0].query_value.items):
        assert time.monotonic() < end
    assert [(one.namespace, one.key, one.value) for one in found] == [("lyceum", "state", "value")]


def test_google_auth_takes_the_metadata_server_for_one(tpu: FakeTpu, tpu_client: api.TpuClient) -> None:
    code = (
        "import google.auth, google.auth.transport.requests as r; c, p = google.auth.default(); c.refresh(r.Request());"
        "print(p, c.service_account_email, c.token[:5])"
    )
    tpu.set_environment({})
    create(tpu_client, "a-1", f'"$LYCEUM_VM_PYTHON" -c "{code}"', service_account={"email": "vm@x.iam"})
    tpu.wait("a-1", "ACTIVE")
    assert lines(tpu, "a-1", 1)[-1] == "lyceum-test vm@x.iam ya29."


def test_nothing_of_a_vm_survives_its_node_whatever_session_or_environment_it_made(tpu: FakeTpu, tpu_client: api.TpuClient) -> None:
    create(
        tpu_client, "a-1", f"trap '' TERM; setsid sleep 998 & env -i {sys.executable} -c 'import time; time.sleep(998)' & echo up; {SLEEP}"
    )
    tpu.wait("a-1", "ACTIVE")
    lines(tpu, "a-1", 1)
    end = time.monotonic() + 5
    while len(pids := tpu.processes("a-1")) < 4:
        assert time.monotonic() < end, pids
    create(tpu_client, "a-2")
    tpu.wait("a-2", "ACTIVE")
    delete(tpu_client, "a-1")
    tpu.wait("a-1", "GONE")
    assert not any(lives(pid) for pid in pids)
    assert len(tpu.processes("a-2")) >= 1  # another VM is left alone


def test_a_vm_deletes_itself_without_a_grpc_client(tpu: FakeTpu, tpu_client: api.TpuClient) -> None:
    ask = "curl -s -o /dev/null -w '%{http_code}\n'"
    me = f"$LYCEUM_VM_TPU_API/v2alpha1/{name('a-1')}"
    script = f"""
    token=$({READ}/instance/service-accounts/default/token | cut -d '"' -f 4)
    {ask} {me}
    {ask} -H "Authorization: Bearer $token" {me}x
    curl -s -H "Authorization: Bearer $token" {me} | tr -d ' \\n'
    echo
    {ask} -H "Authorization: Bearer $token" -X DELETE {me}
    {ask} -H "Authorization: Bearer $token" -X DELETE "{me}?force=true"
    {SLEEP}
    """
    tpu.faults.add("lost", method="DeleteQueuedResource", skip=1)
    create(tpu_client, "a-1", script)
    tpu.wait("a-1", "GONE")
    said = tpu.output("a-1").splitlines()
    assert (said[0], said[1], said[3]) == ("401", "404", "400")
    assert '"state":{"state":' in said[2]
    assert tpu.requests()["DeleteQueuedResource"] == 2


def test_processes_are_asked_to_end_when_the_deletion_begins(tpu: FakeTpu, tpu_client: api.TpuClient) -> None:
    tpu.set_seconds(DELETING=30)
    create(tpu_client, "a-1", "trap 'echo asked; exit' TERM; echo up; while :; do sleep 0.05; done")
    tpu.wait("a-1", "ACTIVE")
    lines(tpu, "a-1", 1)
    delete(tpu_client, "a-1")
    end = time.monotonic() + 5
    while "asked" not in tpu.output("a-1"):
        assert time.monotonic() < end
        time.sleep(0.01)
    assert tpu.leaked()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_survives_the_end_of_the_fake(end: signal.Signals) -> None:
    with FakeTpu() as tpu:
        with connect(tpu) as tpu_client:
            create(tpu_client, "a-1", f"setsid sleep 998 & echo $HOME; {SLEEP}")
            tpu.wait("a-1", "ACTIVE")
            root = Path(lines(tpu, "a-1", 1)[0]).parents[3]
            pids = tpu.processes("a-1")
        assert pids
        assert root.is_dir()
        os.kill(tpu.pid, end)
        deadline = time.monotonic() + 10
        while root.exists() or any(lives(pid) for pid in pids):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_it_ends_with_its_parent() -> None:
    code = "import os, sys; from tests.fakes.tpu_fake import FakeTpu; f = FakeTpu().__enter__(); print(f.pid, flush=True); os._exit(0)"
    out = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    pid, end = int(out.stdout), time.monotonic() + 10
    while lives(pid):
        assert time.monotonic() < end
        time.sleep(0.05)
