"""What a history is made of, drawn from its seed before it begins: who runs what where, and what
goes wrong. A plan is data, so a part of it can be left out (`shrink`) and said in words."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

OPERATIONS = {
    "flow": (
        *("create lease", "write lease", "read lease", "create manifest", "read manifest"),
        *("create job", "write run", "write tpu", "ask create", "ask get", "ask delete", "any"),
        *("create night", "create champion"),
    ),
    "worker": (
        *("create manifest", "read manifest", "put tree", "put tree", "create seal", "read seal"),
        *("write journal", "remove kept", "start step", "any"),
    ),
    "agent": ("write status", "write log", "read job", "ask delete", "any"),
    "operator": (
        *("create lease", "remove any", "move manifest", "read run", "remove run", "ask delete"),
        *("create champion", "any"),
    ),
}
"""Role of a process -> operations that a fault may strike."""
SLICE = "v5e-16"
"""A target of four hosts."""
REGIONS = ("US", "US", "US-CENTRAL1", "NAM4", "US-WEST4+US-SOUTH1", "EUROPE-WEST4")
"""Where buckets lie."""
OPERATORS = ("gc", "promote", "rollback", "look")
"""Events that an operator's process is made of."""


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
            that have ended are dropped), force (a flow that computes again), night (a nightly flow,
            of the data of that day), promote and rollback (by hand), look (with a
            command that changes nothing but a report), preempt, mute (its machine is
            cut off), freeze (nothing of it runs any more), unbootable, stuck (a request), stockout,
            reluctant (deletions are refused), refusal (of `store` or `cloud`: what only people can
            put right, by its number in `refusals`), spoil (of a record of a run or a champion),
            forkless (what workers are forked from is killed).
        at: virtual seconds; of machines and artifacts, since they were there.
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
        target: `local`, `v5e-8` or `SLICE`.
        stages: how many the recipe has.
        flows: when each begins, seconds.
        budget: US dollars that a run may spend on machines.
        region: where a bucket lies.
        reports: runs that have ended write theirs.
        data: the recipe reads files of `--data`.
        cold: no Prefect API runs, so that a run of which all is cached starts none.
    """

    seed: int
    place: str
    target: str
    stages: int
    flows: tuple[float, ...]
    faults: tuple[Fault, ...] = ()
    events: tuple[Event, ...] = ()
    budget: float | None = None
    region: str = "US"
    reports: bool = False
    data: bool = False
    cold: bool = False

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
        head += f", which lies in {self.region}" if self.region != "US" else ""
        head += ", runs write reports" if self.reports else ""
        head += ", they read data" if self.data else ""
        head += ", no Prefect API runs" if self.cold else ""
        head += f", each may spend {self.budget} dollars" if self.budget else ""
        return [head, *map(str, self.faults), *map(str, self.events)]


def _without(items: Sequence, place: int) -> tuple:  # type: ignore[type-arg]
    return (*items[:place], *items[place + 1 :])


def drawn(seed: int, targets: Sequence[str] = ("local", "local", "v5e-8")) -> Plan:
    """The plan of a seed. In two of three plans most of what happens, happens around one moment."""
    chance = random.Random(f"plan {seed}")
    target = chance.choice(targets)
    target = SLICE if target == "v5e-8" and chance.random() < 0.25 else target
    place = "bucket" if target != "local" else chance.choice(("directory", "directory", "bucket"))
    around, share = chance.uniform(3, 50), chance.choice((0.0, 0.7, 0.7))

    def moment(longest: float) -> float:
        near = chance.random() < share
        return round(around + chance.uniform(-3, 6) if near else chance.uniform(0, longest), 1)

    later = (lambda: 0.0, lambda: 0.0, lambda: moment(60))
    flows = (0.0, *sorted(chance.choice(later)() for _ in range(chance.choice((0, 1, 1, 2)))))
    budget = chance.choice((None, None, 0.01, 0.03)) if target != "local" else None
    plan = Plan(seed, place, target, chance.choice((1, 2, 3, 4)), flows, budget=budget)
    if place == "bucket":
        plan = replace(plan, region=chance.choice(REGIONS))
    events = tuple(_event(chance, plan, moment) for _ in range(chance.choice((0, 1, 1, 2, 3))))
    if plan.stages >= 3 and chance.random() < 0.12:  # champions come and go
        moments = sorted(chance.uniform(45, 140) for _ in range(chance.randint(3, 6)))
        events = tuple(_of_champions(chance, round(at, 1)) for at in moments)
    plan = replace(plan, events=events)
    faults = tuple(_fault(chance, plan) for _ in range(chance.choice((0, 1, 2, 2, 3, 4))))
    plan = replace(plan, faults=faults, reports=chance.random() < 0.1, data=chance.random() < 0.3)
    return replace(plan, cold=chance.random() < 0.2)


def _fault(chance: random.Random, plan: Plan) -> Fault:
    roles = ["flow", "flow", "worker", "worker"]
    roles += ["agent"] if plan.target != "local" else []
    roles += ["operator", "operator"] if any(one.action in OPERATORS for one in plan.events) else []
    role = chance.choice(roles)
    who = role
    if role == "flow":
        who = chance.choice(("flow", f"flow {chance.randint(1, len(plan.flows))}"))
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


def _of_champions(chance: random.Random, at: float) -> Event:
    action = chance.choice(("night", "night", "promote", "promote", "rollback", "rollback", "look"))
    return Event(action, at, amount=chance.choice((1.0, 2.0)) if action == "night" else 0.0)


def _event(chance: random.Random, plan: Plan, moment: Callable[[float], float]) -> Event:
    at = moment(90)
    flow = f"flow {chance.randint(1, len(plan.flows))}"
    actions = ["jump", "drift", "cancel", "gc", "gc", "gc", "look", "look"]
    actions += ["force", "deadline", "damage"]
    actions += ["night", "night", "promote", "rollback"] if plan.stages >= 3 else []
    actions += ["refusal", "spoil"]
    if plan.place == "bucket":
        actions += ["storm", "storm", "stale", "stale"]
    if plan.place == "directory":
        actions += ["power", "power"]
    if plan.target == "local":
        actions += ["forkless"]
    if plan.target != "local":
        actions += ["preempt", "preempt", "mute", "freeze", "unbootable", "stuck", "stockout"]
        actions += ["reluctant", "away", "preempt", "refusal", "refusal"]
    action = chance.choice(actions)
    if action == "jump":
        return Event(action, at, flow, amount=chance.choice((-7200.0, -40.0, 40.0, 7200.0)))
    if action == "drift":
        return Event(action, 0.0, flow, amount=chance.choice((0.7, 0.95, 1.05, 1.4)))
    if action == "power":
        return Event(action, at, chance.choice(("laptop", "server")))
    if action in ("cancel", "force", "deadline"):
        return Event(action, at, flow)
    if action == "night":
        return Event(action, at, amount=chance.choice((1.0, 2.0)))
    if action == "refusal":
        who = chance.choice(("store", "cloud")) if plan.target != "local" else "store"
        seconds = chance.choice((2.0, 10.0, 45.0))
        return Event(action, at, who, seconds, float(chance.randint(0, 35)))
    if action in ("storm", "away", "stale", "reluctant", "stockout"):
        return Event(action, at, seconds=chance.choice((2.0, 10.0, 45.0, 150.0)))
    if action in ("preempt", "mute", "freeze", "unbootable", "stuck"):
        number = chance.choice((1, 1, 2))
        return Event(action, round(chance.uniform(0, 25), 1), f"machine {number}")
    if action == "damage":
        after = chance.choice((chance.uniform(0, 1), chance.uniform(0, 30)))
        return Event(action, round(after, 1), "artifact 1")
    return Event(action, at, amount=chance.choice((0.0, 1.0, 1.0)))
