"""A stand-in for Terraform's google provider, so that the real `terraform` checks and applies our
files without a registry or a cloud.

It speaks the plugin protocol, version 5 (github.com/hashicorp/terraform,
docs/plugin-protocol/tfplugin5.proto), over gRPC. Applying keeps what the files say and makes up
what Google would answer: e-mail addresses, URLs, ids.
"""

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import msgpack
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClassesForFiles

Block = dict[str, Any]
"""`{"attributes": {name: {"type": ..., "optional" | "computed": True}}, "blocks": {name: Block}}`:
types as Terraform writes them in JSON; a block is nested as a list."""

UNKNOWN = msgpack.ExtType(0, b"\x00")
LIST = 2

_MESSAGES = {
    "Dynamic": "bytes:msgpack:1 bytes:json:2",
    "Raw": "bytes:json:1",
    "Attribute": "string:name:1 bytes:type:2 bool:optional:5 bool:computed:6",
    "Nested": "string:type_name:1 Block:block:2 int32:nesting:3",
    "Block": "int64:version:1 *Attribute:attributes:2 *Nested:block_types:3",
    "Schema": "int64:version:1 Block:block:2",
    "Entry": "string:key:1 Schema:value:2",
    "GetSchema": "Schema:provider:1 *Entry:resource_schemas:2",
    "Prepared": "Dynamic:prepared_config:1",
    "Request": "string:type_name:1",
    "Config": "Dynamic:config:1",
    "UpgradeRequest": "string:type_name:1 int64:version:2 Raw:raw_state:3",
    "Upgraded": "Dynamic:upgraded_state:1",
    "ReadRequest": "string:type_name:1 Dynamic:current_state:2",
    "State": "Dynamic:new_state:1",
    "PlanRequest": "string:type_name:1 Dynamic:prior_state:2 Dynamic:proposed_new_state:3",
    "Planned": "Dynamic:planned_state:1 bool:legacy_type_system:5",
    "ApplyRequest": "string:type_name:1 Dynamic:prior_state:2 Dynamic:planned_state:3",
    "Applied": "Dynamic:new_state:1 bool:legacy_type_system:4",
    "Nothing": "",
}


def _message_classes() -> dict[str, Any]:
    file = FileDescriptorProto(name="tfplugin5_part.proto", package="tfplugin5", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = DescriptorProto(name=name)
        for field in fields.split():
            kind, label, number = field.split(":")
            many = "REPEATED" if kind.startswith("*") else "OPTIONAL"
            added = message.field.add(name=label, number=int(number))
            added.label = FieldDescriptorProto.Label.Value(f"LABEL_{many}")
            kind = kind.lstrip("*")
            if kind[0].isupper():
                added.type_name = f".tfplugin5.{kind}"
                kind = "MESSAGE"
            added.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
        file.message_type.append(message)
    pool = DescriptorPool()
    pool.Add(file)
    made = GetMessageClassesForFiles([file.name], pool)
    return {name.rpartition(".")[2]: kind for name, kind in made.items()}


_M = _message_classes()


@contextmanager
def google_provider(provider: Block, resources: dict[str, Block]) -> Iterator[dict[str, str]]:
    """Serve on a free port of 127.0.0.1 while inside; yields the environment in which `terraform`
    uses it."""
    server = grpc.server(ThreadPoolExecutor(4))
    port = server.add_insecure_port("127.0.0.1:0")
    methods = _methods(provider, resources).items()
    handlers = {name: _handler(request, method) for name, (request, method) in methods}
    handler = grpc.method_handlers_generic_handler("tfplugin5.Provider", handlers)
    server.add_generic_rpc_handlers((handler,))
    server.start()
    attached = {"Protocol": "grpc", "ProtocolVersion": 5, "Pid": os.getpid(), "Test": True}
    attached["Addr"] = {"Network": "tcp", "String": f"127.0.0.1:{port}"}
    told = json.dumps({"registry.terraform.io/hashicorp/google": attached})
    try:
        yield {"TF_REATTACH_PROVIDERS": told}
    finally:
        server.stop(None).wait()


def _handler(request: str, method: Callable[[Any], Any]) -> grpc.RpcMethodHandler:
    return grpc.unary_unary_rpc_method_handler(
        lambda message, _: method(message),
        request_deserializer=_M[request].FromString,
        response_serializer=lambda answer: answer.SerializeToString(),
    )


def _methods(
    provider: Block, resources: dict[str, Block]
) -> dict[str, tuple[str, Callable[[Any], Any]]]:
    def schema(_: Any) -> Any:
        entries = [_M["Entry"](key=name, value=_schema(block)) for name, block in resources.items()]
        return _M["GetSchema"](provider=_schema(provider), resource_schemas=entries)

    def plan(request: Any) -> Any:
        states = (request.proposed_new_state, request.prior_state)
        proposed, prior = (msgpack.unpackb(state.msgpack) for state in states)
        if prior is None:
            for name, attribute in resources[request.type_name]["attributes"].items():
                if attribute.get("computed") and proposed[name] is None:
                    proposed[name] = UNKNOWN
        return _M["Planned"](planned_state=_dynamic(proposed), legacy_type_system=True)

    def apply(request: Any) -> Any:
        made = _made(resources[request.type_name], msgpack.unpackb(request.planned_state.msgpack))
        return _M["Applied"](new_state=_dynamic(made), legacy_type_system=True)

    def upgrade(request: Any) -> Any:
        return _M["Upgraded"](upgraded_state=_M["Dynamic"](json=request.raw_state.json))

    def prepare(request: Any) -> Any:
        return _M["Prepared"](prepared_config=request.config)

    def read(request: Any) -> Any:
        return _M["State"](new_state=request.current_state)

    def nothing(_: Any) -> Any:
        return _M["Nothing"]()

    return {
        "GetSchema": ("Nothing", schema),
        "PrepareProviderConfig": ("Config", prepare),
        "ValidateResourceTypeConfig": ("Request", nothing),
        "Configure": ("Nothing", nothing),
        "UpgradeResourceState": ("UpgradeRequest", upgrade),
        "ReadResource": ("ReadRequest", read),
        "PlanResourceChange": ("PlanRequest", plan),
        "ApplyResourceChange": ("ApplyRequest", apply),
        "Stop": ("Nothing", nothing),
    }


def _schema(block: Block) -> Any:
    return _M["Schema"](block=_block(block))


def _block(block: Block) -> Any:
    found = _M["Block"]()
    for name, attribute in block["attributes"].items():
        kind = json.dumps(attribute["type"]).encode()
        flags = {one: bool(attribute.get(one)) for one in ("optional", "computed")}
        found.attributes.add(name=name, type=kind, **flags)
    for name, nested in block["blocks"].items():
        found.block_types.add(type_name=name, block=_block(nested), nesting=LIST)
    return found


def _dynamic(value: Any) -> Any:
    return _M["Dynamic"](msgpack=msgpack.packb(value))


def _made(block: Block, planned: dict[str, Any] | None) -> dict[str, Any] | None:
    """A resource as Google would have made it: what was unknown has a value, if it is text."""
    if planned is None:
        return None
    # A value of dynamic type comes as [type, value].
    account, title = (
        value[1] if isinstance(value, list) else value
        for value in map(planned.get, ("account_id", "name"))
    )
    email = f"{account}@demo-project.iam.gserviceaccount.com"
    known = {"email": email, "member": f"serviceAccount:{email}", "url": f"gs://{title}"}
    made = dict(planned)
    for name in [name for name, value in planned.items() if value == UNKNOWN]:
        is_text = block["attributes"][name]["type"] == "string"
        made[name] = known.get(name, f"made-up-{name}") if is_text else None
    return made
