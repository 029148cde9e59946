"""The VM of a machine in the cloud: Lyceum's agent, and around it what the startup script
(`infra/tpu/bootstrap_tpu.sh`) does."""

from pathlib import Path
from typing import Any

from infra.context import context
from infra.store.remote import host_status
from infra.tpu.api import ApiError, TpuApi
from infra.tpu.host import Agent, Place
from infra.tpu.state_machine import failure
from infra.tpu.types import TPU_TYPES
from schemas.base import InputError
from schemas.job import JobStatus
from tests.simulation.threads import Condition
from tests.simulation.world import Process, World

AGAIN_SECONDS = 60.0
"""Time between two times that the script asks for the machine's deletion."""


def place_of(machine: Any, host: int, root: Path) -> Place:
    """What the startup script has found out on a host."""
    metadata = machine.metadata
    _, key, attempt, _ = metadata["lyceum-job"].split("/")
    log = root / f"boot-{machine.number}-{host}.log"
    log.write_text("booted\n", encoding="utf-8")
    silence = float(metadata["lyceum-silence"])
    return Place(key, attempt, host, metadata["lyceum-resource"], silence, log)


def run_agent(world: World, place: Place) -> int:
    """The agent's process."""
    try:
        Agent(place, context().store(), context().settings).run()
    except (OSError, InputError, ApiError) as error:
        world.say(f"the agent of {place.attempt} fails: {type(error).__name__}")
        return 1
    return 0


def run_script(world: World, place: Place, target: str, agent: Process) -> int:
    """The startup script's, from the start of the agent on: it outlives the agent."""
    over = Condition(world)
    agent.ended.append(over.notify_all)
    while agent.code is None:
        with over:
            over.wait()
    if agent.code == 0:
        return 0
    _report(place, lost=agent.code < 0)
    if agent.code > 0:
        world.sleep(place.silence)
    api = TpuApi(TPU_TYPES[target], context().tpu)
    while not _asked(api, place.resource):
        world.sleep(AGAIN_SECONDS)
    return 1


def _report(place: Place, lost: bool) -> None:
    """The script's last word, unless there is one."""
    name = host_status(place.key, place.attempt, place.host)
    try:
        last = context().store().read_json(name, JobStatus)
        if last is None or last.state in ("queued", "running"):
            context().store().write_json(name, failure("the agent failed", lost=lost))
    except (OSError, InputError):
        pass


def _asked(api: TpuApi, resource: str) -> bool:
    try:
        api.remove(resource)
    except ApiError:
        return False
    return True
