"""The VM of a machine in the cloud: Lyceum's agent, in the frame that the startup script
(`infra/tpu/bootstrap_tpu.sh`) puts around it."""

from pathlib import Path
from typing import Any

from infra.context import context
from infra.store.remote import host_status
from infra.tpu.api import ApiError, TpuApi
from infra.tpu.host import Agent, Place
from infra.tpu.machine import failure
from infra.tpu.types import TPU_TYPES
from schemas.base import InputError
from schemas.job import JobStatus
from tests.simulation.world import World

TARGET = "v5e-8"


def live(world: World, machine: Any, root: Path) -> int:
    """From the boot until the agent has ended, and then until the machine is deleted."""
    metadata = machine.metadata
    _, key, attempt, _ = metadata["lyceum-job"].split("/")
    log = root / f"boot-{machine.number}.log"
    log.write_text("booted\n", encoding="utf-8")
    silence = float(metadata["lyceum-silence"])
    place = Place(key, attempt, 0, metadata["lyceum-resource"], silence, log)
    try:
        Agent(place, context().store(), context().settings).run()
    except (OSError, InputError, ApiError) as error:
        world.say(f"agent {machine.number} fails: {type(error).__name__}")
        _report(place)
        world.sleep(silence)
        api = TpuApi(TPU_TYPES[TARGET], context().tpu)
        while not _removed(api, place.resource):
            world.sleep(10.0)
    return 0


def _report(place: Place) -> None:
    """The script's last word, unless there is one."""
    name = host_status(place.key, place.attempt, 0)
    try:
        last = context().store().read_json(name, JobStatus)
        if last is None or last.state in ("queued", "running"):
            context().store().write_json(name, failure("the agent failed", lost=True))
    except (OSError, InputError):
        pass


def _removed(api: TpuApi, resource: str) -> bool:
    try:
        return api.remove(resource)
    except ApiError:
        return False
