"""Champions in histories: what the gate finds, which is modelled as a coin, and what must hold
whoever promotes and rolls back."""

from typing import TYPE_CHECKING, Any

from flows.promotion.champion import Champion
from flows.promotion.gate import Gate, same_model
from flows.promotion.levels import Night, night_of
from schemas.reports import RunRecord
from tests.simulation.world import Process

if TYPE_CHECKING:
    from tests.simulation.laws import Laws


class Champions:
    """The champions of one history, and verdicts of its gate."""

    def __init__(self, laws: "Laws") -> None:
        self._laws = laws
        self._known: set[str] = set()
        self._passed: set[tuple[str, str | None]] = set()
        self._entries: list[tuple[str, bytes, Champion]] = []
        self._since: dict[str, float] = {}
        self._coins: dict[str, bool] = {}
        self._nights: list[str] = []

    def judged(self, store: Any, run: RunRecord, opponent: RunRecord | None) -> Gate:
        """As `flows.promotion.gate.gate`, by chance."""
        same = opponent is not None and same_model(run, opponent)
        against = opponent.run_id if opponent else None
        look = f"{run.run_id} against {against}"
        # who looks again finds the same
        passed = not same and self._coins.setdefault(look, self._laws.world.random.random() < 0.7)
        if passed:
            self._passed.add((run.run_id, against))
        night = None if same else night_of(store, run.recipe.name, run.run_id, look)
        return Gate(
            promote=passed, why="a coin", candidate=run.run_id, champion=against, night=night
        )

    def changed(self, process: Process, what: str, name: str, killed: bool) -> None:
        """An entry was created, or a night; of who was killed it may be another's, or not there. Or
        an entry was taken back by who made it, for its run was dropped in that moment."""
        if gone := self._laws.read(name) is None:
            self._known.discard(name)
            self._entries = [one for one in self._entries if one[0] != name]
            self.spoil()
        if gone or (killed and name in self._known):
            return
        self._known.add(name)
        (self._entered if what == "create champion" else self._night)(process, name)

    def _stands(self, process: Process, name: str, how: str, dropped: bool) -> None:
        if dropped and name in self._known and process.code == 0 and not self._laws.stormy:
            self._laws.break_("a champion has a run", how)

    def _night(self, process: Process, name: str) -> None:
        """The number of a night was taken: one after the other, for one comparison each."""
        night = Night.model_validate_json(self._laws.read(name) or b"")
        if night.number != len(self._nights) + 1 or night.look in self._nights[-1:]:
            how = f"{process.name} takes night {night.number} for {night.look}"
            self._laws.break_("a night is counted once", f"{how}, after {self._nights}")
        self._nights.append(night.look)

    def needed(self, key: str) -> float:
        """Since when the champion's model is of this key."""
        return self._since.get(key, float("inf"))

    def _current(self) -> Champion | None:
        """The newest that can be read."""
        spoiled = self._laws.spoiled
        return next((one for name, _, one in self._entries[::-1] if name not in spoiled), None)

    def spoil(self) -> None:
        """An entry may have rotted: what is champion now is so from now on."""
        now = self._current()
        key = now.model.key if now else ""
        self._since = {key: self._since.get(key, self._laws.world.now)}

    def _entered(self, process: Process, name: str) -> None:
        """An entry was created."""
        raw = self._laws.read(name) or b""
        entry = Champion.model_validate_json(raw)
        before = self._current()
        self._entries.append((name, raw, entry))
        self._since = {entry.model.key: self._laws.world.now}
        against = before.run_id if before else None
        how = f"{process.name} entered {entry.number}, {entry.change} of {entry.run_id}"
        last = self._entries[-2][2].number if self._entries[1:] else 0
        if entry.number != last + 1 or entry.replaces != (before and before.number):
            self._laws.break_("one champion after the other", how)
        if before is not None and entry.model == before.model:
            self._laws.break_("one champion after the other", f"{how}, which is champion already")
        if entry.by == "nightly" and (entry.run_id, against) not in self._passed:
            self._laws.break_("champions change by gate or by hand", how)
        if entry.by == "nightly" and f"{entry.run_id} against {against}" not in self._nights:
            self._laws.break_("a night is counted once", f"{how}, of which no night is on record")
        made = self._laws.committed.get((entry.model.kind, entry.model.key))
        dropped = lambda: self._laws.read(f"runs/{entry.run_id}/run.json") is None  # noqa: E731
        if dropped():  # in that moment: who has entered it takes it back, unless it is killed
            process.ended.append(lambda: self._stands(process, name, how, dropped()))
        elif made is None or made.ref() != entry.model:
            self._laws.break_("a champion has a model", how)
        for other, bytes_of, _ in self._entries:
            if other not in self._laws.spoiled and self._laws.read(other) != bytes_of:
                self._laws.break_("champions stay", f"{other} has other bytes")
