"""The real client of Cloud TPU, connected to the fake, and what tests of the fake do with it all
the time."""

import time
from typing import Any

import grpc
import psutil
from google.api_core.operation import Operation
from google.cloud import tpu_v2alpha1 as api
from google.cloud.tpu_v2alpha1.services.tpu.transports.grpc import TpuGrpcTransport

from tests.fakes.tpu_fake import FakeTpu

ZONE = "us-west4-a"
PARENT = f"projects/lyceum-test/locations/{ZONE}"
SLEEP = "sleep 1000"
READ = "curl -sS -H 'Metadata-Flavor: Google' http://$GCE_METADATA_HOST/computeMetadata/v1"


def connect(tpu: FakeTpu) -> api.TpuClient:
    return api.TpuClient(transport=TpuGrpcTransport(channel=grpc.insecure_channel(tpu.endpoint)))


def resource(
    short: str, script: str = SLEEP, parent: str = PARENT, tier: str = "spot", **node: Any
) -> dict[str, Any]:
    """A QueuedResource of one node."""
    given = {"accelerator_type": "v5litepod-8", "runtime_version": "v2-alpha-tpuv5-lite", **node}
    given["metadata"] = {"startup-script": script, **node.get("metadata", {})}
    spec = {"parent": parent, "node_id": short, "node": given}
    return {"tpu": {"node_spec": [spec]}, **({tier: {}} if tier != "on-demand" else {})}


def create(
    client: api.TpuClient, short: str, script: str = SLEEP, parent: str = PARENT, **given: Any
) -> Operation:
    return client.create_queued_resource(
        parent=parent,
        queued_resource_id=short,
        queued_resource=resource(short, script, parent, **given),
    )


def name(short: str, parent: str = PARENT) -> str:
    return f"{parent}/queuedResources/{short}"


def delete(client: api.TpuClient, short: str, force: bool = True) -> Operation:
    return client.delete_queued_resource(request={"name": name(short), "force": force})


def state(client: api.TpuClient, short: str) -> str:
    return client.get_queued_resource(name=name(short)).state.state.name


def lines(tpu: FakeTpu, short: str, count: int, host: int = 0) -> list[str]:
    """The first lines of a VM's output, once there are so many."""
    end = time.monotonic() + 120
    while len(found := tpu.output(short, host).splitlines()) < count:
        assert time.monotonic() < end, found
        time.sleep(0.01)
    return found


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
