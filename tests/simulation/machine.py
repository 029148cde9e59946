"""A machine in the simulated cloud: its request, its node and its VM."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from google.cloud import tpu_v2alpha1 as tpu

from tests.simulation.threads import Condition
from tests.simulation.world import Process

State, NodeState = tpu.QueuedResourceState.State, tpu.Node.State


@dataclass(eq=False)
class Machine:
    """A request, its node, and the VM of it.

    Attributes:
        number: which of all, from 1.
        state, node: None when there is none (any more).
        ready, gone: when the VM was there to pay for, virtual seconds.
        taken: what the metadata server says of its preemption.
        frozen: nothing of its VM runs any more, and the service does not know.
        asked, left_in: when it was asked for, and the state in which its deletion was.
        late: who asked for it stood still within the request: others who looked did not find it.
        processes: of its VM.
    """

    number: int
    name: str
    labels: dict[str, str]
    metadata: dict[str, str]
    state: Any = State.CREATING
    node: Any = None
    error: str = ""
    ready: float | None = None
    gone: float | None = None
    taken: str = "FALSE"
    frozen: bool = False
    asked: float = 0.0
    left_in: Any = None
    told: Condition | None = None
    asked_by: Process | None = None
    late: bool = False
    processes: list[Process] = field(default_factory=list)
    working: Callable[[], bool] = lambda: True

    @property
    def there(self) -> bool:
        """Whether anything of it is left."""
        return self.state is not None or self.node is not None

    @property
    def leaving(self) -> bool:
        """Whether the service has accepted to delete it."""
        return self.state == State.DELETING or self.node == NodeState.DELETING

    @property
    def followed(self) -> bool:
        """Whether it works, and nobody has asked for its end."""
        return self.state == State.ACTIVE and self.node == NodeState.READY

    @property
    def done(self) -> bool:
        """Whether it is paid for, though no worker of it lives."""
        return self.followed and bool(self.processes) and not self.frozen and not self.working()

    @property
    def job(self) -> str:
        """Key and attempt."""
        return "/".join(self.metadata["lyceum-job"].split("/")[1:3])

    @property
    def node_name(self) -> str:
        return self.name.replace("/queuedResources/", "/nodes/")
