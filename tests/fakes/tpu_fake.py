"""A fake of Cloud TPU for tests: a process that speaks the real gRPC protocol, whose VMs are
subprocesses; and the handle tests hold on it.

    with FakeTpu(vm_environment=gcs.environment) as tpu:    # or the fixtures `tpu`, `tpu_cloud`
        os.environ |= tpu.environment                       # LYCEUM_TPU_ENDPOINT, ..._PROJECT
        ...                                                 # the client asks for `lyceum-ab-0`
        tpu.wait("lyceum-ab-0", "ACTIVE")                   # a state of request or node, or GONE
        tpu.strike("preempt", "lyceum-ab-0", notice=1.0)    # something happens now
        tpu.faults.add("lost", method="CreateQueuedResource", times=1)    # something will happen
        tpu.faults.add("stuck", state="PROVISIONING", name="lyceum-ab")
        assert not tpu.leaked()
        tpu.resources()                                     # everything ever made

A request goes CREATING, ACCEPTED, WAITING_FOR_RESOURCES, PROVISIONING, ACTIVE, each for a while
(`set_seconds`). When its node becomes READY the node's `startup-script` is run by bash on every
host of the slice, in a directory of its own that is gone with the node, with a clean environment:
PATH, HOME, TMPDIR, GCE_METADATA_HOST (a metadata server for each host), LYCEUM_VM_PYTHON (this
interpreter), LYCEUM_VM_ROOT and LYCEUM_CACHE in the VM's directory, LYCEUM_TPU_ENDPOINT,
LYCEUM_VM_TPU_API (the same service over REST: `tpu_rest.py`), JAX_PLATFORMS=cpu, and what
`vm_environment` says. PYTHONPATH is not there: a VM has nothing but what its script brings.
Deletion takes a while: processes get SIGTERM when it begins, SIGKILL at its end.

By hand: `python -m tests.fakes.tpu_fake --vm NAME=VALUE` prints its endpoint and runs until
SIGTERM, SIGINT or its parent's end. Nothing of it survives, whichever way it ends.
`tests/fakes/fake_cloud.py` starts it together with the fake of Cloud Storage.

`tpu_service.py` has the calls, `tpu_resources.py` the states, `tpu_vm.py` and `tpu_metadata.py` the
VMs, `tpu_faults.py` what can go wrong; what is on offer is `infra.tpu.types`.
"""

import argparse
import json
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from tests.fakes.faults import Faults
from tests.fakes.process import FakeProcess, wait_for_the_end

PROJECT = "lyceum-test"
_THREADS = 128
_CONTROL = "lyceum.Control/"


@dataclass(frozen=True)
class Resource:
    """A queued resource that was made, and its node.

    Attributes:
        name: complete, `projects/P/locations/Z/queuedResources/ID`.
        state, node_state: now; GONE when it is not there any more, for a node also when it is not
            there yet.
        history: (seconds since the epoch, `request`, `node` or `event`, state or event, why).
        billed_seconds: how long its node was READY.
        starts: how often a startup script was run, over all hosts.
        metadata, labels: the node's.
    """

    name: str
    accelerator: str
    tier: str
    runtime: str
    chips: int
    state: str
    node_state: str
    history: list[tuple[float, str, str, str]]
    billed_seconds: float
    starts: int
    metadata: dict[str, str]
    labels: dict[str, str]

    @property
    def id(self) -> str:
        return self.name.rsplit("/", 1)[-1]

    @property
    def zone(self) -> str:
        return self.name.split("/")[3]


class FakeTpu(FakeProcess):
    """The process, as a context manager.

    Attributes:
        endpoint: `127.0.0.1:PORT`, plaintext gRPC.
        environment: variables with which our client finds it.
        faults: what shall go wrong.

    Args:
        vm_environment: more variables of every VM.
    """

    def __init__(self, vm_environment: Mapping[str, str] | None = None) -> None:
        variables = [f"--vm={name}={value}" for name, value in (vm_environment or {}).items()]
        super().__init__("tests.fakes.tpu_fake", *variables)

    def started(self, *places: str) -> None:
        self.endpoint, control = places
        self._channel = grpc.insecure_channel(control)
        self.environment = {"LYCEUM_TPU_ENDPOINT": self.endpoint, "LYCEUM_TPU_PROJECT": PROJECT}
        self.faults = Faults(self.control)

    def __exit__(self, *exception: object) -> None:
        self._channel.close()
        super().__exit__(*exception)

    def resources(self) -> list[Resource]:
        """Everything that was made since the start or `forget`, in that order."""
        return [_resource(one) for one in self.control("resources")]

    def resource(self, name: str) -> Resource:
        """The newest resource whose name contains `name`."""
        return _resource(self.control("resource", name=name))

    def leaked(self) -> list[str]:
        """What is there now: names of queued resources and nodes, and VMs with living processes."""
        return self.control("leaked")

    def wait(self, name: str, state: str, seconds: float = 120.0) -> Resource:
        """Wait until a resource whose name contains `name` exists and it, or its node, is in a
        state, or is GONE. Raises TimeoutError."""
        found = self.control("wait", name=name, state=state, seconds=seconds)
        if found is None:
            there = [(one.name, one.history) for one in self.resources()]
            raise TimeoutError(f"{name} was not {state} within {seconds} s; there are {there}")
        return _resource(found)

    def strike(self, action: str, name: str, **parameters: Any) -> None:
        """Have something befall the newest resource whose name contains `name`, now: one of
        `tpu_faults.EVENTS`."""
        self.control("strike", action=action, name=name, parameters=parameters)

    def set_seconds(self, **seconds: float) -> None:
        """How long a state takes from now on, e.g. `DELETING=5.0`: see `tpu_resources.SECONDS`."""
        self.control("set_seconds", seconds=seconds)

    def set_quota(self, tier: str, chips: int, zone: str) -> None:
        """How many chips of each kind one zone grants to a tier: `spot`, `guaranteed`,
        `on-demand`."""
        self.control("set_quota", key=f"{zone}/{tier}", chips=chips)

    def requests(self) -> dict[str, int]:
        """Calls since the start or `forget`, by method."""
        return self.control("requests")

    def forget(self) -> None:
        """As after the start: everything is removed at once, with its record, its faults, times and
        quotas."""
        self.control("forget")

    def control(self, verb: str, **wish: Any) -> Any:
        """One wish by the control path, which no fault strikes and no count counts."""
        call = self._channel.unary_unary(f"/{_CONTROL}{verb}")
        answer = json.loads(call(json.dumps(wish).encode(), timeout=600, wait_for_ready=True))
        if "error" in answer:
            raise RuntimeError(f"the fake of Cloud TPU does not {verb} {wish}: {answer['error']}")
        return answer["result"]


def _resource(value: dict[str, Any]) -> Resource:
    return Resource(**{**value, "history": [tuple(entry) for entry in value["history"]]})


def main(arguments: Sequence[str] | None = None) -> None:
    """The process's life. The modules of the service are imported here: tests that hold the handle
    do not need them."""
    from tests.fakes.tpu_control import Control
    from tests.fakes.tpu_relay import Relay
    from tests.fakes.tpu_resources import Cloud
    from tests.fakes.tpu_rest import RestServer
    from tests.fakes.tpu_service import Service
    from tests.fakes.tpu_vm import Warden, adopt_orphans, reap

    what = "A fake of the Cloud TPU API. Prints its endpoint, and that of its controls."
    parser = argparse.ArgumentParser(description=what)
    every = "a variable of every VM; may be repeated"
    parser.add_argument("--vm", action="append", default=[], metavar="NAME=VALUE", help=every)
    options = parser.parse_args(arguments)
    fake, root = f"tpu-{uuid.uuid4().hex[:12]}", Path(tempfile.mkdtemp(prefix="lyceum-fake-tpu-"))
    warden = Warden(fake, root)
    adopt_orphans()
    cloud = Cloud(fake, root)
    service = Service(cloud)
    handlers = (service, Control(service, _CONTROL))
    server = grpc.server(ThreadPoolExecutor(_THREADS), handlers=handlers)
    inner = server.add_insecure_port("127.0.0.1:0")
    server.start()
    service.relay = Relay(inner)
    cloud.fixed_environment = {
        "LYCEUM_TPU_ENDPOINT": f"127.0.0.1:{service.relay.port}",
        "LYCEUM_VM_TPU_API": RestServer(service).url,
    }
    cloud.environment = dict(one.split("=", 1) for one in options.vm)
    wait_for_the_end(f"127.0.0.1:{service.relay.port}", f"127.0.0.1:{inner}")
    cloud.stop()
    warden.dismiss()
    reap()
    server.stop(None)


if __name__ == "__main__":
    main()
