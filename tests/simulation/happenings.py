"""What happens by itself at the moments that a plan names."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from infra.store.store import data_name
from tests.simulation.naming import short
from tests.simulation.plan import Event
from tests.simulation.refusals import BUCKET, CLOUD, DIRECTORY

if TYPE_CHECKING:
    from tests.simulation.history import History


def happening(history: "History", event: Event, number: int) -> Callable[[], None]:
    """What an event of a plan does."""
    world = history.world

    def act() -> None:
        if history.calm:  # it was to come so long after the first artifact
            return
        world.say(f"event: {event}")
        of = [one for one in history.flows if one.name == event.who and one.alive]
        until = world.now + event.seconds
        match event.action:
            case "jump":
                for one in of:
                    one.offset += event.amount
            case "drift":
                for one in of:
                    one.rate, one.disturbed = event.amount, float("inf")
            case "cancel":
                for one in of:
                    world.signal(one, "stop")
            case "deadline":
                for one in of:
                    world.signal(one, "pause")
            case "force":
                history.start_flow(f"{number} forced", "server", forced=True)
            case "night":
                history.start_flow(f"{number} by night", "server", day=int(event.amount))
            case "promote" | "rollback" | "look":
                history.start_operator(number, event.action)
            case "power":
                _cut_power(history, event.who)
            case "damage":
                _damage(history)
            case "gc":
                history.start_operator(number, "gc and drop" if event.amount else "gc")
            case "storm":
                history.service.storm = max(history.service.storm, until)
                history.laws.away(until)
            case "forkless":
                for one in [one for one in world.processes if one.role == "server"]:
                    world.kill(one)
            case "stale":
                history.service.lag(event.seconds)
                history.laws.lagging, history.laws.on_record.lag = True, (world.now, until)
            case "away":
                history.cloud.away = max(history.cloud.away, until)
                history.laws.deaf = True
            case "reluctant":
                history.cloud.reluctant = max(history.cloud.reluctant, until)
                history.laws.deaf = True
            case "stockout":
                history.cloud.full = max(history.cloud.full, until)
            case "refusal":
                _refuse(history, event, until)
            case "spoil":
                _spoil(history)

    return act


def _cut_power(history: "History", machine: str) -> None:
    """All of a machine ends, and of what it has written without waiting for the disk some is lost:
    the file is as it was before, or empty."""
    world = history.world
    for process in world.processes:
        if process.machine == machine and process.alive:
            world.kill(process, "loses power")
    for name, before in history.disk.lost(machine):
        path = history.root / "store" / name
        history.laws.payments.lost(name)
        data = world.random.choice((before, before, b""))
        world.say(f"lost: {short(name)} {'is empty' if data == b'' else 'is as before'}")
        if data is not None and path.parent.is_dir():
            path.write_bytes(data)
        else:
            path.unlink(missing_ok=True)


def _refuse(history: "History", event: Event, until: float) -> None:
    """Somebody must do something first, and does."""
    who: Any = history.cloud if event.who == "cloud" else history.service or history.disk
    said = CLOUD if event.who == "cloud" else BUCKET if history.service else DIRECTORY
    if event.who == "store":
        history.laws.away()
    history.laws.deaf |= event.who == "cloud"
    who.refused, who.refusal = until, said[int(event.amount) % len(said)]
    history.world.say(f"refused: {who.refusal}")


def _spoil(history: "History") -> None:
    """The record of a run, a champion or a night, or a paid answer, becomes something else."""
    names = [
        one for top in ("runs/", "champions/", "nights/", "answers/") for one in history.names(top)
    ]
    runs = ("run.json", *(f"stages/{stage}.json" for stage in ("distill", "rebalance", "sft")))
    kept = [one for one in names if one.endswith(runs) or not one.startswith("runs/")]
    if kept:
        name = history.world.random.choice(kept)
        history.world.say(f"spoiled: {short(name)}")
        history.laws.spoil(name)
        history.rot(name, b"{")


def _damage(history: "History") -> None:
    """A bit of an artifact flips."""
    for kind, key in list(history.laws.committed)[:1]:
        manifest = history.laws.committed[kind, key]
        name = f"{data_name(manifest)}/{manifest.files[-1].path}"
        data = bytearray(history.read(name) or b"?")
        data[0] ^= 1
        history.world.say(f"damaged: {short(name)}")
        history.laws.damaged.add(key)
        history.rot(name, bytes(data))
