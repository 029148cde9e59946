"""The Cloud TPU API (v2alpha1, queued resources). This module, the only importer of its client,
sends requests and reads answers; decisions are made elsewhere.

The client library does not retry. Here each call is repeated for CALL_SECONDS after 429 (too many
requests), 5xx, UNAVAILABLE, DEADLINE_EXCEEDED and broken connections. A longer outage raises an
`ApiError` of kind `transient`, and the caller may try again. Lost acknowledgements do no harm: an
existing request is ours if its labels match, and a resource that is not found is deleted.

`LYCEUM_TPU_ENDPOINT` points the client at a plaintext endpoint, such as a test double; there is no
other difference. The client takes two seconds to import, so nothing is imported before it is
needed.
"""

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from infra.settings import TpuSettings
from infra.tpu.problems import Problem, credentials_problem, explain
from infra.tpu.types import TpuType
from schemas.base import InputError

CALL_SECONDS = 10.0
"""Seconds to wait for one call, with its repetitions."""

GONE = "GONE"
"""State of a resource that the API does not find. All other states have the API's names; "" is an
unknown state."""

QUEUED = ("", "CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES")
"""States of a request that has no node yet."""


class ApiError(Exception):
    """The API refused a call, or did not answer for CALL_SECONDS."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.text)
        self.problem = problem


class _NotFound(ApiError):
    pass


class _AlreadyExists(ApiError):
    pass


@dataclass(frozen=True)
class Resource:
    """The API's view of a queued resource and its node at one moment.

    Attributes:
        name: `projects/P/locations/Z/queuedResources/ID`, whose node is
            `projects/P/locations/Z/nodes/ID`; or of a node without a queued resource the node's.
        request, node: their states.
        problem: why the request is FAILED.
        health: the API's word for the node's health, if it is bad.
        labels, metadata: the node's.
        created: when the node was created, seconds since the epoch; None: unknown.
    """

    name: str
    request: str = ""
    node: str = ""
    problem: Problem | None = None
    health: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    created: float | None = None


def zone_of(name: str) -> str:
    return name.split("/")[3]


def node_of(name: str) -> str:
    """The complete name of a queued resource's node."""
    return name.replace("/queuedResources/", "/nodes/")


def deletion_command(name: str) -> str:
    """The command that deletes a queued resource with its node, or a node without one."""
    _, project, _, zone, collection, short = name.split("/")
    where = f"delete {short} --zone={zone} --project={project}"
    if collection == "queuedResources":
        return f"gcloud compute tpus queued-resources {where} --force --quiet"
    return f"gcloud compute tpus tpu-vm {where} --quiet"


def left_over(names: Sequence[str], why: str) -> str:
    commands = "; ".join(deletion_command(name) for name in names)
    return (
        f"{', '.join(names)} may still be there and may cost money or hold quota: {why}. Delete by"
        f" hand: {commands}"
    )


class TpuApi:
    """Asks for, looks at and deletes resources of one type. Safe to use from several threads."""

    def __init__(self, kind: TpuType, settings: TpuSettings) -> None:
        self._kind = kind
        self._settings = settings
        self._lock = threading.Lock()

    @functools.cached_property
    def project(self) -> str:
        """The project. Raises InputError when there is none, or no credentials."""
        project = self._settings.project
        if not project and not self._settings.endpoint:
            project = _default_credentials()[1] or ""
        if not project:
            raise InputError(
                "there is no Google Cloud project to take TPUs from. Name it:"
                " LYCEUM_TPU_PROJECT=PROJECT."
            )
        return project

    @functools.cached_property
    def _client(self) -> Any:
        """Raises InputError when there are no credentials. Nothing is sent."""
        import google.cloud.tpu_v2alpha1 as tpu

        if not self._settings.endpoint:
            return tpu.TpuClient(credentials=_default_credentials()[0])
        import grpc
        from google.cloud.tpu_v2alpha1.services.tpu.transports import TpuGrpcTransport

        # After an outage gRPC would wait for up to two minutes before it connects again.
        channel = grpc.insecure_channel(
            self._settings.endpoint, options=[("grpc.max_reconnect_backoff_ms", 2000)]
        )
        return tpu.TpuClient(transport=TpuGrpcTransport(channel=channel))

    def connect(self) -> None:
        """Make the client, which takes seconds. Raises InputError when there are no credentials or
        no project. Nothing is sent."""
        with self._lock:
            _ = self.project, self._client

    def name(self, zone: str, short: str) -> str:
        return f"projects/{self.project}/locations/{zone}/queuedResources/{short}"

    def create(
        self, name: str, labels: Mapping[str, str], metadata: Mapping[str, str], seconds: float
    ) -> None:
        """Ask for a TPU. It succeeds, too, if this very request was accepted before.

        Args:
            seconds: the request fails by itself when it is not granted for so long, even if this
                process is gone.

        Raises:
            ApiError: it was refused, or nobody knows.
        """
        parent, _, short = name.partition("/queuedResources/")
        request = {
            "parent": parent,
            "queued_resource_id": short,
            "queued_resource": self.order(parent, short, labels, metadata, seconds),
        }
        try:
            self._ask(name, "create_queued_resource", request)
        except _AlreadyExists:
            self.find(name, labels)

    def find(self, name: str, labels: Mapping[str, str]) -> Resource | None:
        """The states of a request, None if it is not there. Raises ApiError, also when it is not
        one with these labels."""
        there = self.look(name)
        if there.request == GONE:
            return None
        if any(there.labels.get(label) != value for label, value in labels.items()):
            text = (
                f"there is another TPU of the name {name}, which is not this job's. Delete it:"
                f" {deletion_command(name)}"
            )
            raise ApiError(Problem("invalid", text))
        return there

    def look(self, name: str) -> Resource:
        """The states of a queued resource and, once it may have one, of its node; or of a node that
        has none. Raises ApiError."""
        try:
            if name == node_of(name):
                return self._with_node(Resource(name, request=GONE))
            found = self._resource(self._ask(name, "get_queued_resource", {"name": name}))
        except _NotFound:
            return self._with_node(Resource(name, request=GONE))
        return found if found.request in QUEUED else self._with_node(found)

    def remove(self, name: str, notice: Callable[[Resource], None] = lambda found: None) -> bool:
        """Ask for the deletion of a queued resource with its node, or of a node that has none,
        unless it is under way. `notice` is told what there is before.

        Returns:
            True when nothing of it is left.

        Raises:
            ApiError: it was refused, or nobody knows.
        """
        found = self.look(name)
        notice(found)
        try:
            if found.request not in (GONE, "DELETING"):
                self._ask(name, "delete_queued_resource", {"name": name, "force": True})
            elif found.request == GONE and found.node not in (GONE, "DELETING"):
                self._ask(name, "delete_node", {"name": node_of(name)})
        except _NotFound:  # it went in this moment; the next look tells
            return False
        except ApiError:
            # a repeated call is refused when the first was heard and its acknowledgement lost
            now = self.look(name)
            if (now.node if found.request == GONE else now.request) not in (GONE, "DELETING"):
                raise
            return False
        return found.request == GONE and found.node == GONE

    def list(self, zone: str) -> list[Resource]:
        """All queued resources of the project in a zone, and the nodes that belong to none. Raises
        ApiError."""
        parent = f"projects/{self.project}/locations/{zone}"
        requests = [
            self._resource(one)
            for one in self._ask(parent, "list_queued_resources", {"parent": parent})
        ]
        nodes = {one.name: one for one in self._ask(parent, "list_nodes", {"parent": parent})}
        found = [_with(one, nodes.pop(node_of(one.name), None)) for one in requests]
        owned = {one.name for one in requests}
        return found + [
            _with(Resource(name, GONE), node)
            for name, node in nodes.items()
            if node.queued_resource not in owned
        ]

    def order(
        self,
        parent: str,
        short: str,
        labels: Mapping[str, str],
        metadata: Mapping[str, str],
        seconds: float,
    ) -> dict[str, Any]:
        """A QueuedResource of one node, which has its name."""
        given = self._settings
        node: dict[str, Any] = {
            "accelerator_type": self._kind.accelerator,
            "runtime_version": given.runtime or self._kind.runtime,
            "network_config": {
                "network": given.network,
                "subnetwork": given.subnetwork,
                "enable_external_ips": given.external_ips,
            },
            "service_account": {
                "email": given.service_account,
                "scope": ["https://www.googleapis.com/auth/cloud-platform"],
            },
            "labels": {**given.labels, **labels},
            "tags": list(given.tags),
            "metadata": dict(metadata),
        }
        if given.data_disk:
            node["data_disks"] = [{"source_disk": given.data_disk, "mode": "READ_ONLY"}]
        order: dict[str, Any] = {
            "tpu": {"node_spec": [{"parent": parent, "node_id": short, "node": node}]},
            "queueing_policy": {"valid_until_duration": {"seconds": max(1, round(seconds))}},
        }
        if given.tier == "spot":
            order["spot"] = {}
        elif given.tier == "guaranteed":
            order["guaranteed"] = {"reserved": True}
            if given.reservation:
                order["reservation_name"] = f"{parent}/reservations/{given.reservation}"
        return order

    def _resource(self, request: Any) -> Resource:
        state = _word(request.state.state)
        error, problem = request.state.failed_data.error, None
        if state == "FAILED":
            problem = self._problem(_code_name(error.code), error.message, request.name)
        node = request.tpu.node_spec[0].node if request.tpu.node_spec else None
        labels, metadata = (dict(node.labels), dict(node.metadata)) if node else ({}, {})
        return Resource(request.name, state, problem=problem, labels=labels, metadata=metadata)

    def _with_node(self, found: Resource) -> Resource:
        try:
            return _with(found, self._ask(found.name, "get_node", {"name": node_of(found.name)}))
        except _NotFound:
            return _with(found, None)

    def _ask(self, name: str, method: str, request: dict[str, Any]) -> Any:
        """Call a method of the client, repeatedly if need be. Raises ApiError, or its subclasses
        _NotFound and _AlreadyExists."""
        from google.api_core.exceptions import GoogleAPICallError, RetryError
        from google.api_core.retry import Retry
        from google.auth.exceptions import GoogleAuthError, TransportError

        def passing(error: Exception) -> bool:
            if isinstance(error, GoogleAPICallError):
                return self._problem(_code_of(error), error.message or "", name).kind == "transient"
            return isinstance(error, TransportError)

        patience = Retry(
            predicate=passing, initial=0.3, maximum=3.0, multiplier=2.0, timeout=CALL_SECONDS
        )
        self.connect()
        try:
            answer = getattr(self._client, method)(
                request=request, retry=patience, timeout=CALL_SECONDS
            )
            return list(answer) if method.startswith("list_") else answer
        except (GoogleAPICallError, RetryError, GoogleAuthError) as error:
            cause = error.cause if isinstance(error, RetryError) else error
            if isinstance(cause, GoogleAuthError):
                away = f"Google's servers for credentials do not answer ({cause})"
                problem = credentials_problem(str(cause))
                raise ApiError(Problem("transient", away) if passing(cause) else problem) from error
            code = _code_of(cause)
            kind = {"NOT_FOUND": _NotFound, "ALREADY_EXISTS": _AlreadyExists}.get(code, ApiError)
            problem = self._problem(code, str(getattr(cause, "message", cause)), name)
            if problem.kind == "credentials":  # read them anew: somebody may have logged in
                vars(self).pop("_client", None)
            raise kind(problem) from error

    def _problem(self, code: str, words: str, name: str) -> Problem:
        return explain(code, words, zone_of(name), self.project, self._kind, self._settings)


def _with(found: Resource, node: Any) -> Resource:
    """The resource with the fields of a Node message, or of none."""
    if node is None:
        return replace(found, node=GONE)
    ill = _word(node.health) if node.health > 1 else ""
    return replace(
        found,
        node=_word(node.state),
        health=f"{ill} {node.health_description}".strip(),
        labels=dict(node.labels) or found.labels,
        metadata=dict(node.metadata) or found.metadata,
        created=node.create_time.timestamp() if node.create_time else None,
    )


def _word(value: Any) -> str:
    """The API's word for the value of an enumeration, "" for a number that this client, which is
    older than the API, does not know."""
    return getattr(value, "name", "") if value else ""


def _default_credentials() -> tuple[Any, str | None]:
    """Application default credentials, and their project. Raises InputError when there are none."""
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    try:
        return google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    except DefaultCredentialsError as error:
        raise InputError(credentials_problem(str(error).splitlines()[0]).text) from error


def _code_of(error: Any) -> str:
    """gRPC's name of the code of an exception of the client."""
    code = getattr(error, "grpc_status_code", None)
    return "UNKNOWN" if code is None else str(code.name)


def _code_name(number: int) -> str:
    """gRPC's name of the code in a google.rpc.Status."""
    import grpc

    return next((code.name for code in grpc.StatusCode if code.value[0] == number), "UNKNOWN")
