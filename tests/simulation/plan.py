"""What a history is made of, drawn from its seed before it begins: who runs what where, and what
goes wrong. A plan is data, so a part of it can be left out (`shrink`) and said in words."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

OPERATIONS = {
    "flow": (
        *("create lease", "write lease", "read lease", "create manifest", "read manifest"),
        *("create job", "write run", "write tpu", "ask create", "ask get", "ask delete", "any"),
    ),
    "worker": (
        *("create manifest", "read manifest", "put tree", "put tree", "create seal", "read seal"),
        *("write journal", "remove kept", "start step", "any"),
    ),
    "agent": ("write status", "write log", "read job", "ask delete", "any"),
    "operator": (
        "create lease",
        "remove any",
        "move manifest",
        "read run",
        "remove run",
        "ask delete",
        "any",
    ),
}
"""Role of a process -> operations that a fault may strike."""


@dataclass(frozen=True)
class Fault:
    """Strikes the `count`-th operation `what` of the processes called `who` (or of any of that
    role).

    Attributes:
        action: kill, pause, refuse (an error, and nothing is done), lose (it is done, and the
            answer is an error).
        when: before or after the operation, or inside it, between two system calls.
    """

    action: str
    who: str
    what: str
    count: int
    when: str = "before"
    seconds: float = 0.0

    def __str__(self) -> str:
        how = {
            "kill": "is killed",
            "pause": f"stands still for {self.seconds:.0f} s",
            "refuse": "is refused an answer",
            "lose": "loses the answer",
        }[self.action]
        when = f"{self.when} " if self.action in ("kill", "pause") else "to "
        return f"{self.who} {how} {when}its '{self.what}' number {self.count}"


@dataclass(frozen=True)
class Event:
    """Something that happens at a moment, or to the n-th machine in the cloud.

    Attributes:
        action: storm (the store answers 503), away (the API of TPUs does), stale (listings lag),
            jump (of a clock, by `amount` seconds), drift (a clock's rate), cancel and deadline (of
            a flow), power (of a machine is cut), damage (of an artifact), gc (with an amount: runs
            that have ended are dropped), force (a flow that computes again), preempt, mute (its
            machine is cut off), unbootable, stuck (a request), stockout, reluctant (deletions are
            refused).
        at: virtual seconds; of machines, since they were there.
    """

    action: str
    at: float
    who: str = ""
    seconds: float = 0.0
    amount: float = 0.0

    def __str__(self) -> str:
        of = f" of {self.who}" if self.who else ""
        long = f" for {self.seconds:.0f} s" if self.seconds else ""
        much = f" ({self.amount:g})" if self.amount else ""
        return f"{self.action}{of} at {self.at:.1f} s{long}{much}"


@dataclass(frozen=True)
class Plan:
    """A history before it happens.

    Attributes:
        place: `directory` or `bucket`.
        target: `local` or `v5e-8`.
        stages: how many the recipe has.
        flows: when each begins, seconds.
    """

    seed: int
    place: str
    target: str
    stages: int
    flows: tuple[float, ...]
    faults: tuple[Fault, ...] = ()
    events: tuple[Event, ...] = ()

    @property
    def parts(self) -> int:
        return len(self.faults) + len(self.events) + len(self.flows) - 1

    def without(self, part: int) -> "Plan":
        """The plan without one of its parts."""
        if part < len(self.faults):
            return replace(self, faults=_without(self.faults, part))
        part -= len(self.faults)
        if part < len(self.events):
            return replace(self, events=_without(self.events, part))
        return replace(self, flows=self.flows[: -1 - (part - len(self.events))] or self.flows[:1])

    def words(self) -> list[str]:
        """The plan for people."""
        flows = ", ".join(f"{at:.0f}" for at in self.flows)
        stages = f"{self.stages} stage{'s' * (self.stages > 1)}"
        head = f"{stages} on {self.target}, store in a {self.place}, flows begin at {flows} s"
        return [head, *map(str, self.faults), *map(str, self.events)]


def _without(items: Sequence, place: int) -> tuple:  # type: ignore[type-arg]
    return (*items[:place], *items[place + 1 :])


def drawn(seed: int, targets: Sequence[str] = ("local", "local", "v5e-8")) -> Plan:
    """The plan of a seed."""
    chance = random.Random(f"plan {seed}")
    target = chance.choice(targets)
    place = "bucket" if target != "local" else chance.choice(("directory", "directory", "bucket"))
    later = (lambda: 0.0, lambda: 0.0, lambda: round(chance.uniform(0, 60), 1))
    flows = (0.0, *sorted(chance.choice(later)() for _ in range(chance.choice((0, 1, 1, 2)))))
    plan = Plan(seed, place, target, chance.choice((1, 1, 2)), flows)
    faults = tuple(_fault(chance, plan) for _ in range(chance.choice((0, 1, 2, 2, 3, 4))))
    events = tuple(_event(chance, plan) for _ in range(chance.choice((0, 1, 1, 2, 3))))
    return replace(plan, faults=faults, events=events)


def _fault(chance: random.Random, plan: Plan) -> Fault:
    role = chance.choice(("flow", "flow", "worker", "worker", "agent", "operator"))
    if role == "agent" and plan.target == "local":
        role = "worker"
    who = role if role != "flow" else f"flow {chance.randint(1, len(plan.flows))}"
    actions = ["kill", "kill", "pause", "pause"]
    if plan.place == "bucket":
        actions += ["lose", "lose", "refuse"]
    action = chance.choice(actions)
    when = chance.choice(("before", "after"))
    if action == "kill" and plan.place == "directory" and chance.random() < 0.4:
        when = "inside"
    what = chance.choice(OPERATIONS[role])
    count = int(60 ** chance.random()) if what == "any" else chance.choice((1, 1, 1, 2, 2, 3, 4))
    seconds = chance.choice((3.0, 15.0, 40.0, 200.0)) if action == "pause" else 0.0
    return Fault(action, who, what, count, when, seconds)


def _event(chance: random.Random, plan: Plan) -> Event:
    at = round(chance.uniform(0, 90), 1)
    flow = f"flow {chance.randint(1, len(plan.flows))}"
    actions = ["jump", "drift", "cancel", "gc", "gc", "force", "deadline", "damage"]
    if plan.place == "bucket":
        actions += ["storm", "storm", "stale", "stale"]
    if plan.place == "directory":
        actions += ["power", "power"]
    if plan.target != "local":
        actions += ["preempt", "preempt", "mute", "unbootable", "stuck", "stockout"]
        actions += ["reluctant", "away", "preempt"]
    action = chance.choice(actions)
    if action == "jump":
        return Event(action, at, flow, amount=chance.choice((-7200.0, -40.0, 40.0, 7200.0)))
    if action == "drift":
        return Event(action, 0.0, flow, amount=chance.choice((0.7, 0.95, 1.05, 1.4)))
    if action == "power":
        return Event(action, at, chance.choice(("laptop", "server")))
    if action in ("cancel", "force", "deadline"):
        return Event(action, at, flow)
    if action in ("storm", "away", "stale", "reluctant", "stockout"):
        return Event(action, at, seconds=chance.choice((2.0, 10.0, 45.0, 150.0)))
    if action in ("preempt", "mute", "unbootable", "stuck"):
        number = chance.choice((1, 1, 2))
        return Event(action, round(chance.uniform(0, 25), 1), f"machine {number}")
    return Event(action, at, amount=chance.choice((0.0, 1.0)))
