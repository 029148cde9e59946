"""The hosts and devices of one job: how hosts agree, how all report one's failure, and the mesh
over their devices.

A slice of several hosts runs the same worker on each of them. `LYCEUM_HOST` (0, 1, ...),
`LYCEUM_HOSTS` and `LYCEUM_COORDINATOR` (`ip:port` of host 0) tell a worker which one it is
(`infra.tpu.host` sets them; without them there is one host). All hosts compute the same things in
the same order, from the same inputs, so host 0 decides what depends on a clock or on the store's
state (`agree`), and host 0 alone writes to the store. Hosts talk through the coordination service
of `jax.distributed`. It lives in host 0 and ends the workers of all others (SIGABRT: the machine
failed, not the stage) when one has not been heard of for `SILENT_BEATS` heartbeats, or does not
come up.

The mesh has Tunix's axes. Batches are spread over "fsdp"; `tasks.models.sharding` places weights.

JAX loads at the first use only, since stages without devices import this module.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from math import gcd
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from infra.context import context
from infra.settings import Settings
from schemas.base import InputError, StageFailed

if TYPE_CHECKING:
    import jax
    from jax.sharding import Mesh

log = logging.getLogger("lyceum")
T = TypeVar("T")
ArrayT = TypeVar("ArrayT", bound="jax.Array | np.ndarray")

BATCH, TENSOR = "fsdp", "tp"
"""The axes of the mesh, by Tunix's names. A batch is spread over BATCH; heads, feed-forward width
and vocabulary over TENSOR."""

JOIN_SECONDS = 900
"""Seconds that a host waits for the others to come up."""

SILENT_BEATS = 15
"""A host is dead after this many times `LYCEUM_HEARTBEAT_SECONDS` without a sign of life."""

LINGER_SECONDS = 5
"""Seconds that a failed host waits for the others before it ends, so that they can report their
failures, too."""

_FOREVER_MS = 7 * 24 * 3600 * 1000
"""Time limit of waiting for a living host; a host's end also ends the wait."""

_numbers: Iterator[int] = count()
_connected: Any = None
"""The client of the coordination service, once `connect` has been called on several hosts."""
_silence_seconds = 0


class HostLost(Exception):
    """The devices of the job do not reach each other: the machines failed, not the stage."""


def host() -> int:
    """This host's number, from 0."""
    return int(os.environ.get("LYCEUM_HOST", "0"))


def hosts() -> int:
    """How many hosts the job has."""
    return int(os.environ.get("LYCEUM_HOSTS", "1"))


def is_committer() -> bool:
    """Whether this host writes to the store: host 0 does."""
    return host() == 0


def connect(settings: Settings) -> None:
    """Join the other hosts, if there are any, before anything is computed. Raises HostLost when
    their devices are out of reach."""
    global _connected, _silence_seconds
    if hosts() == 1:
        return
    import jax
    from jax._src import distributed  # the client has no public name

    _silence_seconds = max(1, round(SILENT_BEATS * settings.heartbeat_seconds))
    log.info("host %d of %d: waiting for the others for up to %d s", host(), hosts(), JOIN_SECONDS)
    try:
        jax.distributed.initialize(
            coordinator_address=os.environ["LYCEUM_COORDINATOR"],
            num_processes=hosts(),
            process_id=host(),
            cluster_detection_method="deactivate",  # the environment's value wins
            initialization_timeout=JOIN_SECONDS,
            heartbeat_timeout_seconds=_silence_seconds,
        )
        _connected = distributed.global_state.client
        _count_devices()
    except RuntimeError as error:
        raise HostLost(f"host {host()} of {hosts()} does not reach the others: {error}") from error
    told = host(), hosts(), jax.local_device_count(), jax.device_count()
    log.info("host %d of %d: %d devices here, %d in all", *told)


def _count_devices() -> None:
    """Make all devices reach each other before any computes for minutes; on CPUs a host waits only
    30 s for another."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    number = jax.device_count()
    mesh = make_mesh({"devices": number})
    ones = spread(np.ones(number, np.int32), mesh)
    total = (
        jax.jit(lambda ones: ones.sum(), out_shardings=NamedSharding(mesh, PartitionSpec()))
        .lower(ones)
        .compile()
    )
    barrier()  # compiled everywhere
    assert int(total(ones)) == number


def topology(uses_devices: bool) -> dict[str, int | str]:
    """The numbers of hosts and devices of a stage, and their kind (`device`): its bytes depend on
    them beside its inputs."""
    if not uses_devices:
        return {"hosts": 1, "devices": 0}
    import jax

    count = jax.device_count()
    return {"hosts": hosts(), "devices": count, "device": jax.devices()[0].device_kind}


def agree(value: T) -> T:
    """Host 0's value (JSON) on every host. All hosts call it at the same point of their work; the
    others wait for host 0."""
    if _connected is None:
        return value
    key = f"agreed/{next(_numbers)}"
    if is_committer():
        _connected.key_value_set(key, json.dumps(value))
        return value
    agreed: T = json.loads(_connected.blocking_key_value_get(key, _FOREVER_MS))
    return agreed


def barrier() -> None:
    """Wait until all hosts are here."""
    if _connected is not None:
        _connected.wait_at_barrier(f"barrier/{next(_numbers)}", _FOREVER_MS)


def first_failure(message: str, exit_code: int, *, sure: bool) -> tuple[str, int]:
    """The job's failure and exit code, as the first host to fail reports them.

    Args:
        message, exit_code: this host's failure.
        sure: whether the stage itself raised it. Any other failure may come from another host's
            end: wait until all hosts have failed, or until the lost one is noticed, which ends this
            process.
    """
    if _connected is None:
        return message, exit_code
    first = _told("failed")
    if first is None and not sure:
        with suppress(RuntimeError):  # time is up: all are alive, and this host alone has failed
            _connected.wait_at_barrier("failing", 1000 * (_silence_seconds + LINGER_SECONDS))
        first = _told("failed")
    if first is None:
        with suppress(RuntimeError):  # another one was faster
            _connected.key_value_set("failed", json.dumps([host(), message, exit_code]))
        return message, exit_code
    index, theirs, code = json.loads(first)
    return (message, exit_code) if theirs == message else (f"host {index}: {theirs}", code)


def _told(key: str) -> str | None:
    try:
        value: str = _connected.key_value_try_get(key)
    except RuntimeError:  # there is none
        return None
    return value


def leave() -> None:
    """Wait a moment for the other hosts to end, since the end of host 0 ends their work."""
    if _connected is not None:
        with suppress(RuntimeError):  # the others go on, or are gone
            _connected.wait_at_barrier("ended", 1000 * LINGER_SECONDS)


# Devices


def make_mesh(
    batch_sizes: Mapping[str, int] | None = None, devices: "Sequence[jax.Device] | None" = None
) -> "Mesh":
    """The mesh over the devices of the job, LYCEUM_TENSOR_PARALLEL of them to a group that shares
    one part of the batch.

    Args:
        batch_sizes: name of a setting -> rows that a program takes at a time. None for one device.
        devices: those of a machine to compile for; by default this job's own.

    Returns:
        a mesh of all devices. On one host it has the most devices that divide all batch sizes, and
        logs when some are left out.

    Raises:
        InputError: on several hosts, where every device takes part, a batch cannot be spread
            evenly; or the devices do not make groups.
        StageFailed: there are several hosts, and only this one computes.
    """
    if hosts() > 1 and _connected is None:
        raise StageFailed("a stage that computes on devices says so: its Kind must set `devices`")
    import jax
    from jax.sharding import Mesh

    everything = list(jax.devices() if devices is None else devices)
    together = context().settings.tensor_parallel if batch_sizes else 1
    if len(everything) % together:
        raise InputError(
            f"LYCEUM_TENSOR_PARALLEL={together} does not divide the {len(everything)} devices of"
            " this machine."
        )
    groups = len(everything) // together
    rows = gcd(*(batch_sizes or {"": 1}).values())
    used = max(number for number in range(1, groups + 1) if rows % number == 0)
    if batch_sizes and used < groups:
        shown = ", ".join(f"{name} = {size}" for name, size in batch_sizes.items())
        valid = f"a multiple of {groups} ({groups}, {2 * groups}, {3 * groups}, ...)"
        machines = len({device.process_index for device in everything})
        if machines > 1:
            wrong = ", ".join(name for name, size in batch_sizes.items() if size % groups)
            raise InputError(
                f"{shown}: {machines} hosts have {len(everything)} devices, and all take part. Set"
                f" {wrong} to {valid}."
            )
        told = used * together, len(everything), shown, valid
        log.info("%d of %d devices are used: %s; %s uses all", *told)
    return Mesh(np.array(everything[: used * together]).reshape(used, together), (BATCH, TENSOR))


def halves(
    devices: "Sequence[jax.Device] | None" = None,
) -> "tuple[list[jax.Device], list[jax.Device]]":
    """The devices of a job in two halves, for two models that compute at the same time (G-RaR's
    split mesh): a policy's, and a judge's or a teacher's. A single device serves as both.
    `devices`: those of a machine to compile for.

    Raises:
        InputError: there are several hosts.
    """
    import jax

    everything = list(jax.devices() if devices is None else devices)
    if len({device.process_index for device in everything}) > 1:
        raise InputError(
            "a judge or a teacher beside the policy needs a machine of one host, such as v5e-8;"
            " this job has several."
        )
    middle = len(everything) // 2
    return (everything[:middle], everything[middle:]) if middle else (everything, everything)


def spread(batch: Any, mesh: "Mesh") -> Any:
    """Put the arrays of a batch, which every host has whole, on the devices; each gets its part of
    the rows."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    return jax.tree.map(lambda array: put(array, NamedSharding(mesh, PartitionSpec(BATCH))), batch)


def put(array: "jax.Array | np.ndarray", sharding: "jax.sharding.Sharding") -> "jax.Array":
    """Put an array that every host has whole, or that already lies so, on devices, in memory of its
    own."""
    import jax

    if sharding.is_fully_addressable or (
        isinstance(array, jax.Array) and array.sharding == sharding
    ):
        return jax.device_put(array, sharding, may_alias=isinstance(array, jax.Array))
    whole = np.asarray(array, jax.dtypes.canonicalize_dtype(array.dtype))
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: np.array(whole[index]))


def fetch(array: "jax.Array | np.ndarray") -> np.ndarray:
    """The array's values on this host, from each of its shards once; all hosts call it for an array
    that is spread over them.

    It fetches each shard through an object of its own (`addressable_data`): JAX caches fetched
    values beside the array, and those of a whole tree would stay in host memory until the next
    step.
    """
    if isinstance(array, np.ndarray):
        return array
    array = gathered(array)
    if array.is_fully_replicated:
        return np.asarray(array.addressable_shards[0].data.addressable_data(0))
    whole = np.empty(array.shape, array.dtype)
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            whole[shard.index] = np.asarray(shard.data.addressable_data(0))
    return whole


def gathered(array: ArrayT) -> ArrayT:
    """The array with every value within this host's reach; all hosts call it for an array that is
    spread over them."""
    if isinstance(array, np.ndarray) or array.is_fully_addressable or array.is_fully_replicated:
        return array
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    assert isinstance(array.sharding, NamedSharding)
    whole: ArrayT = jax.jit(
        _same, out_shardings=NamedSharding(array.sharding.mesh, PartitionSpec())
    )(array)
    return whole


def _same(array: "jax.Array") -> "jax.Array":
    return array


def by_rows(array: "jax.Array", axis: int = 0) -> "jax.Array":
    """Keep an array, in a program, spread along `axis`, its batch, whatever the compiler would
    choose."""
    return constrained(array, *[None] * axis, BATCH)


def batch_parts() -> int:
    """Count, in a program, the devices that share the batch."""
    import jax

    return int(jax.sharding.get_abstract_mesh().shape.get(BATCH, 1))


def constrained(array: "jax.Array", *axes: Any) -> "jax.Array":
    """Spread, in a program, the first axes of an array over these axes of the mesh (None: over
    none; `PartitionSpec.UNCONSTRAINED`: as the compiler likes), the rest whole on every device."""
    import jax
    from jax.sharding import PartitionSpec

    mesh = jax.sharding.get_abstract_mesh()  # the mesh of `jax.set_mesh`, in which programs run
    return (
        array
        if mesh.empty or mesh.size == 1
        else jax.lax.with_sharding_constraint(array, PartitionSpec(*axes))
    )
