"""Which artifacts the runs on record name."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation.world import Process, World


@dataclass
class OnRecord:
    """The keys that runs on record name. A run without its `run.json` is none, whatever of it is
    still there.

    Args:
        read: the bytes of an object, without an operation.

    Attributes:
        lag: listings show what was there at the first moment, until the second.
        since: key -> the moment from which on a record that is there names it.
        looked: operator -> when it looked at the records last, or is to look again.
        aside: operator and key -> when it set the artifact aside.
        gone: key -> when its artifact was set aside, by whomever, or removed.
    """

    world: World
    read: Callable[[str], bytes | None]
    lag: tuple[float, float] = (0.0, 0.0)
    since: dict[str, float] = field(default_factory=dict)
    looked: dict[Process, float] = field(default_factory=dict)
    aside: dict[tuple[Process, str], float] = field(default_factory=dict)
    gone: dict[str, float] = field(default_factory=dict)
    _parts: dict[str, dict[str, float]] = field(default_factory=dict)
    _named: dict[tuple[str, str], float] = field(default_factory=dict)
    """A run and a key -> when the run named it first, whatever rots later."""

    def looks(self, process: Process, what: str, name: str) -> None:
        """An operator lists the runs, or takes the lease of a key under which it removes that: then
        it has to look again if it has not for 5 s. What begins after that look waits for it."""
        late = what == "create lease" and self.world.now - self.looked.get(process, 0.0) > 5.0
        if late or name.strip("/") == "runs":
            self.looked[process] = self.as_of()

    def as_of(self) -> float:
        """The moment whose records a listing shows."""
        began, until = self.lag
        return began if self.world.now < until else self.world.now

    def is_known(self, process: Process, key: str) -> bool:
        """Whether an operator has seen that a record names the key."""
        return self.since.get(key, self.world.now) < self.looked.get(process, 0.0)

    def was_found(self, process: Process, key: str) -> bool:
        """Whether a run named the key before an operator set its artifact aside, so that the run
        may have found it, and has to have it back."""
        return self.since.get(key, self.world.now) < self.aside.get((process, key), 0.0)

    def lost(self, run: str, key: str) -> bool:
        """Whether the artifact of a key was there when the run named it, and is gone since: a run
        finds none that had gone before. If no record says so any more, it is taken for true."""
        parts = (keys for part, keys in self._parts.items() if part.startswith(f"runs/{run}/"))
        said = any(key in keys for keys in parts)
        return self.gone.get(key, -1.0) >= (self._named[f"runs/{run}", key] if said else 0.0)

    def changed(self, name: str) -> None:
        """A record, or a part of one, is written or removed, or a whole run is."""
        if name.endswith("/run.json"):  # without it the run's other parts say nothing
            run = name.removesuffix("run.json")
            parts = {part for part in self._parts if part.startswith(run)} | {name}
        elif name in self._parts or "/stages/" in name:
            parts = {name}
        else:  # whatever was lost without a word is noticed, too
            parts = set(self._parts)
        for part in parts:
            run = "/".join(part.split("/")[:2])
            raw = self.read(part) if self.read(f"{run}/run.json") is not None else None
            said = json.loads(raw) if raw and raw != b"{" else {"stages": ()}
            stages = said["stages"] if "stages" in said else [said["stage"]]
            before, keys = self._parts.get(part, {}), [stage["key"] for stage in stages]
            self._parts[part] = {key: before.get(key, self.world.now) for key in keys if key}
            for key in self._parts[part]:
                self._named.setdefault((run, key), self.world.now)
        self.since = {}
        for keys_of in self._parts.values():
            for key, since in keys_of.items():
                self.since[key] = min(since, self.since.get(key, since))

    def spoil(self, name: str) -> None:
        """A record rots."""
        run = name.removesuffix("run.json")
        self._parts = {one: keys for one, keys in self._parts.items() if not one.startswith(run)}
