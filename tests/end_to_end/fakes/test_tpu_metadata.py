"""The metadata server and the REST API of the fake of Cloud TPU, held against what curl and
google-auth expect of the real ones."""

import time

from google.cloud import tpu_v2alpha1 as api

from tests.fakes.tpu_client import PARENT, READ, SLEEP, create, lines, name
from tests.fakes.tpu_fake import FakeTpu


def test_the_metadata_server_answers_as_the_real_one(
    tpu: FakeTpu, tpu_client: api.TpuClient
) -> None:
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
    create(
        tpu_client,
        "a-1",
        script,
        metadata={"key": "value of it"},
        service_account={"email": "vm@x.iam"},
    )
    tpu.wait("a-1", "ACTIVE")
    said = lines(tpu, "a-1", 17)
    assert said[:3] == ["403", "403", "404"]
    assert said[3:6] == ["value of it", "unknown:unknown:127.0.0.1", "v5litepod-8"]
    assert said[6].startswith('{"access_token": "ya29')
    assert said[7:12] == [
        "vm@x.iam",
        "lyceum-test",
        "projects/123456789012/zones/us-west4-a",
        "FALSE",
        "NONE",
    ]
    assert said[12:14] == ["default/", "vm@x.iam/"]
    assert '"scopes": ["https://www.googleapis.com/auth/cloud-platform"]' in said[14]
    assert [line.split(":")[0].lower() for line in said[15:17]] == ["metadata-flavor", "etag"]
    request = {"name": f"{PARENT}/nodes/a-1", "query_path": "lyceum/"}
    end = time.monotonic() + 60
    while not (
        found := tpu_client.get_guest_attributes(request).guest_attributes[0].query_value.items
    ):
        assert time.monotonic() < end
    assert [(one.namespace, one.key, one.value) for one in found] == [("lyceum", "state", "value")]


def test_google_auth_takes_the_metadata_server_for_one(
    tpu: FakeTpu, tpu_client: api.TpuClient
) -> None:
    code = (
        "import google.auth, google.auth.transport.requests as r; c, p = google.auth.default();"
        " c.refresh(r.Request());print(p, c.service_account_email, c.token[:5])"
    )
    tpu.set_environment({})
    create(
        tpu_client, "a-1", f'"$LYCEUM_VM_PYTHON" -c "{code}"', service_account={"email": "vm@x.iam"}
    )
    tpu.wait("a-1", "ACTIVE")
    assert lines(tpu, "a-1", 1)[-1] == "lyceum-test vm@x.iam ya29."


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
