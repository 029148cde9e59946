"""A queued resource of the fake of Cloud TPU with its node: what is kept of them, their states, and
what a call may be answered with."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.cloud import tpu_v2alpha1 as tpu

from infra.tpu.types import TpuType
from tests.fakes.tpu_vm import Host

State = tpu.QueuedResourceState.State
NodeState = tpu.Node.State


class ApiError(Exception):
    """What a call is answered with instead of a result."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


@dataclass
class Node:
    """A node, and the VMs behind it from READY on. `ready_at` is the moment since which it is paid
    for."""

    name: str
    spec: tpu.Node
    state: NodeState = NodeState.CREATING
    since: float = field(default_factory=time.monotonic)
    hosts: list[Host] = field(default_factory=list)
    ready_at: float | None = None
    billed: float = 0.0
    exists: bool = True
    directory: Path | None = None

    def billed_seconds(self) -> float:
        now = time.monotonic()
        return self.billed + (now - self.ready_at if self.ready_at is not None else 0.0)


@dataclass
class Request:
    """A queued resource, kept for the record when it is gone.

    Attributes:
        history: (seconds since the epoch, `request` or `node`, state or event, why).
        events: (moment, event, parameters) of what is going to befall it.
    """

    number: int
    name: str
    spec: tpu.QueuedResource
    accelerator: TpuType
    tier: str
    created: float = field(default_factory=time.time)
    state: State = State.CREATING
    since: float = field(default_factory=time.monotonic)
    error: tuple[int, str] | None = None
    node: Node | None = None
    exists: bool = True
    history: list[tuple[float, str, str, str]] = field(default_factory=list)
    events: list[tuple[float, str, dict[str, Any]]] = field(default_factory=list)
    starts: int = 0

    @property
    def project(self) -> str:
        return self.name.split("/")[1]

    @property
    def zone(self) -> str:
        return self.name.split("/")[3]

    @property
    def metric(self) -> str:
        """The quota that it draws on."""
        return f"TPU {self.accelerator.accelerator.split('-')[0]} {self.tier}"

    @property
    def place(self) -> tuple[str, str]:
        """Project and zone."""
        return self.project, self.zone

    @property
    def the_node(self) -> Node:
        """The node, which was made."""
        assert self.node is not None
        return self.node

    @property
    def node_exists(self) -> bool:
        return self.node is not None and self.node.exists

    def is_in(self, state: str) -> bool:
        """Whether the request or its node is in a state; GONE when neither is left."""
        if state == "GONE":
            return not self.exists and not self.node_exists
        if self.exists and self.state.name == state:
            return True
        return self.node_exists and self.the_node.state.name == state

    def valid_until(self) -> float | None:
        """When it fails if it still waits, in seconds since the epoch."""
        policy = self.spec.queueing_policy
        if not policy.valid_until_duration:
            return None
        return self.created + policy.valid_until_duration.total_seconds()
