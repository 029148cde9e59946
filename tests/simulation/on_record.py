"""Which artifacts the runs on record name."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation.world import World


@dataclass
class OnRecord:
    """The keys that runs on record name. A run without its `run.json` is none, whatever of it is
    still there.

    Args:
        read: the bytes of an object, without an operation.

    Attributes:
        since: key -> the moment from which on a record names it.
    """

    world: World
    read: Callable[[str], bytes | None]
    since: dict[str, float] = field(default_factory=dict)
    _parts: dict[str, set[str]] = field(default_factory=dict)

    def changed(self, name: str) -> None:
        """A record, or a part of one, is written or removed, or a whole run is."""
        known = name in self._parts or name.endswith("run.json") or "/stages/" in name
        for part in [name] if known else list(self._parts):
            run = "/".join(part.split("/")[:2])
            raw = self.read(part) if self.read(f"{run}/run.json") is not None else None
            said = json.loads(raw) if raw and raw != b"{" else {"stages": ()}
            stages = said["stages"] if "stages" in said else [said["stage"]]
            self._parts[part] = {stage["key"] for stage in stages if stage["key"]}
        named = set().union(*self._parts.values())
        self.since = {key: self.since.get(key, self.world.now) for key in sorted(named)}

    def spoil(self, name: str) -> None:
        """A record rots."""
        run = name.removesuffix("run.json")
        self._parts = {one: keys for one, keys in self._parts.items() if not one.startswith(run)}
