"""What tests do with the fake of Cloud TPU behind the API's back: JSON over gRPC, on a port of its
own. See `tests.fakes.tpu_fake.FakeTpu`."""

import json
import time
from collections.abc import Callable
from typing import Any

import grpc

from tests.fakes.faults import WrongFault
from tests.fakes.tpu_resources import SECONDS, Request
from tests.fakes.tpu_service import Service
from tests.fakes.tpu_vm import processes


class Control(grpc.GenericRpcHandler):
    """Wishes, by verb, below `prefix`."""

    def __init__(self, service: Service, prefix: str) -> None:
        self._service, self._prefix = service, prefix
        self._cloud = service.cloud

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        prefix, _, verb = details.method.lstrip("/").partition("/")
        wish = getattr(self, f"do_{verb}", None)
        if f"{prefix}/" != self._prefix or wish is None:
            return None
        return grpc.unary_unary_rpc_method_handler(lambda request, _: self._grant(wish, request))

    def _grant(self, wish: Callable[..., Any], request: bytes) -> bytes:
        try:
            with self._cloud.lock:
                answer = {"result": wish(**json.loads(request))}
        except (WrongFault, TypeError) as error:
            answer = {"error": str(error)}
        return json.dumps(answer).encode()

    def do_resources(self) -> list[dict[str, Any]]:
        return [_described(one) for one in self._cloud.made]

    def do_resource(self, name: str) -> dict[str, Any]:
        return _described(self._cloud.find(name))

    def do_wait(self, name: str, state: str, seconds: float) -> dict[str, Any] | None:
        end = time.monotonic() + seconds
        while True:
            found = [one for one in self._cloud.made if name in one.name]
            if found and found[-1].is_in(state):
                return _described(found[-1])
            if not self._cloud.changed.wait(end - time.monotonic()):
                return None

    def do_leaked(self) -> list[str]:
        names = [one.name for one in self._cloud.made if one.exists]
        names += [one.the_node.name for one in self._cloud.made if one.node_exists]
        living = processes(self._cloud.fake)
        return names + [f"process {one.pid}: {' '.join(one.cmdline())}" for one in living]

    def do_strike(self, action: str, name: str, parameters: dict[str, Any]) -> None:
        self._cloud.strike(name, action, parameters)

    def do_set_seconds(self, seconds: dict[str, float]) -> None:
        if unknown := set(seconds) - set(SECONDS):
            raise WrongFault(f"no time of {', '.join(unknown)}; there are {', '.join(SECONDS)}")
        self._cloud.seconds |= seconds

    def do_set_quota(self, key: str, chips: int) -> None:
        self._cloud.quota[key] = chips

    def do_requests(self) -> dict[str, int]:
        return dict(self._service.counts)

    def do_forget(self) -> None:
        self._cloud.forget()
        self._service.forget()

    def do_add_fault(self, **wish: Any) -> int:
        return self._cloud.faults.add(wish)

    def do_fired(self, fault: int) -> int:
        return self._cloud.faults.fired(fault)

    def do_clear_faults(self) -> None:
        self._cloud.faults.clear()


def _described(one: Request) -> dict[str, Any]:
    """The fields of `tests.fakes.tpu_fake.Resource`."""
    node = one.spec.tpu.node_spec[0].node
    return {
        "name": one.name,
        "accelerator": one.accelerator.accelerator,
        "tier": one.tier,
        "runtime": node.runtime_version,
        "chips": one.accelerator.chips,
        "state": one.state.name if one.exists else "GONE",
        "node_state": one.node.state.name if one.node is not None and one.node.exists else "GONE",
        "history": one.history,
        "billed_seconds": one.node.billed_seconds() if one.node is not None else 0.0,
        "starts": one.starts,
        "metadata": dict(node.metadata),
        "labels": dict(node.labels),
    }
