"""Explains what a run would do, and why: which stages are cached, and how a stage differs from the
nearest artifact of its kind.

It only looks: it does not run, write or set aside anything.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from flows.recipe.resolve import ResolvedRecipe, ResolvedStage
from infra.store.store import Store
from schemas.artifact import Manifest
from tasks.contract.kinds import stage_kind

COMPARED = 100
"""The number of newest artifacts of its kind with which a stage is compared: a store may have tens
of thousands, each of which costs a request."""


@dataclass(frozen=True)
class Outlook:
    """The outlook for one stage.

    Attributes:
        key: the stage key, or None while an input's artifact does not exist yet (its digest is part
            of the key).
        manifest: the artifact that would be reused, or None when the stage would run.
        reason: why, in one line.
    """

    stage: ResolvedStage
    key: str | None
    manifest: Manifest | None
    reason: str


@dataclass(frozen=True)
class Difference:
    """One field of a stage's identity that differs from the nearest artifact; ABSENT where one side
    lacks the field."""

    field: str
    here: Any
    there: Any


def outlook(resolved: ResolvedRecipe, store: Store) -> list[Outlook]:
    """The outlook for each stage, in file order. A store that does not exist yet has no
    artifacts."""
    found: dict[str, Outlook] = {}
    for stage in resolved.stages:
        sources = {name: found[source].manifest for name, source in stage.inputs.items()}
        missing = sorted({stage.inputs[name] for name, made in sources.items() if made is None})
        if missing:
            found[stage.name] = Outlook(stage, None, None, f"waits for {', '.join(missing)}")
        elif stage.missing:
            found[stage.name] = Outlook(stage, None, None, stage.missing)
        else:
            made = {name: manifest.digest for name, manifest in sources.items() if manifest}
            found[stage.name] = _look(stage, stage.key(made), store)
    return list(found.values())


class Neighbours:
    """Compares stages with the newest artifacts of their kinds; each kind is read once."""

    def __init__(self, outlooks: Sequence[Outlook], store: Store) -> None:
        self._outlooks = {one.stage.name: one for one in outlooks}
        self._store = store
        self._kinds: dict[str, list[tuple[Manifest, dict[str, Any]]]] = {}

    def nearest(
        self, name: str, target: str | None = None
    ) -> tuple[Manifest, list[Difference]] | None:
        """A stage's own artifact; if it would run, the one with the fewest differing fields among
        the newest of its kind, and those fields. `target`: only among those made there.

        None when there is no artifact. A damaged one counts, too, and may have no differences.
        """
        one = self._outlooks[name]
        if one.manifest:
            return one.manifest, []
        here, compared = self._identity(one.stage), []
        for manifest, identity in self._of_kind(one.stage.kind):
            if target in (None, manifest.execution.get("target")):
                made = {name: ref.digest for name, ref in manifest.inputs.items()}
                there = identity | _inputs(made, one.stage)
                compared.append((manifest, list(differences_between(here, there))))
        return min(compared, key=lambda pair: len(pair[1]), default=None)

    def plans(self, resolved: ResolvedRecipe, target: str) -> list[dict[str, Any]]:
        """The stages for `lyceum plan --json`.

        `seconds` is 0 for a cached stage, otherwise the time of its nearest artifact, of a stage on
        devices where it would run; None when nothing that takes as long was ever run. `programs` is
        empty: a local target has no device memory that could overflow; for a TPU
        `flows.planning.stage_plans` adds them, with its times and costs.
        """
        return [
            self._plan(one, "local" if resolved.at_home(one.stage) else target)
            for one in self._outlooks.values()
        ]

    def _plan(self, one: Outlook, target: str) -> dict[str, Any]:
        there = target if stage_kind(one.stage.kind).devices(one.stage.config_json) else None
        near = None if one.manifest else self.nearest(one.stage.name, there)
        near = near if near and takes_as_long(near[1]) else None
        return {
            "name": one.stage.name,
            "kind": one.stage.kind,
            "cached": one.manifest is not None,
            "reason": one.reason,
            "programs": [],
            "seconds": 0.0 if one.manifest else near[0].execution.get("seconds") if near else None,
            "cost_usd": 0.0,
        }

    def _of_kind(self, kind: str) -> list[tuple[Manifest, dict[str, Any]]]:
        """The newest artifacts, each with its identity except its inputs, as one flat table."""
        if kind not in self._kinds:
            newest = self._store.artifacts(kind, COMPARED)
            self._kinds[kind] = [
                (made, _flat_identity(made.version, made.config, made.dependencies))
                for made in newest
            ]
        return self._kinds[kind]

    def _identity(self, stage: ResolvedStage) -> dict[str, Any]:
        """Everything that the stage key is made of, as one flat table; an input reads
        `inputs.policy (stage sft)`."""
        sources = {name: self._outlooks[one].manifest for name, one in stage.inputs.items()}
        made = {name: one.digest if one else "not made yet" for name, one in sources.items()}
        own = _flat_identity(stage.version, stage.config_json, stage.dependencies)
        return own | _inputs(made, stage)


def takes_as_long(differences: list[Difference]) -> bool:
    """Whether stages that differ in these fields take about as long: only inputs, versions, seeds
    and rates (a learning rate, a beta, a weight) differ, and no count, length, share or name."""
    return all(
        one.field.partition(".")[0] in ("VERSION", "inputs", "dependencies")
        or one.field.endswith("seed")
        or (
            isinstance(one.here, float)
            and isinstance(one.there, float)
            and not one.field.endswith(("epochs", "fraction"))
        )
        for one in differences
    )


def total(values: list[float | None]) -> float | None:
    """The sum, or None when a part of it is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _look(stage: ResolvedStage, key: str, store: Store) -> Outlook:
    manifest = store.lookup(stage.kind, key)
    if manifest is None:
        return Outlook(stage, key, None, "no artifact has this key")
    problems = store.verify(manifest)
    if problems:
        why = f"its artifact is damaged and will be computed again: {'; '.join(problems)}"
        return Outlook(stage, key, None, why)
    return Outlook(stage, key, manifest, "its artifact exists and verifies")


def _flat_identity(version: int, config: dict[str, Any], dependencies: Any) -> dict[str, Any]:
    return {"VERSION": version, **flat("config", config), **flat("dependencies", dependencies)}


def _inputs(digests: dict[str, str], stage: ResolvedStage) -> dict[str, str]:
    """Digests by input, each named with the stage that feeds it."""
    sources = {name: f" (stage {source})" for name, source in stage.inputs.items()}
    return {f"inputs.{name}{sources.get(name, '')}": digest for name, digest in digests.items()}


ABSENT = "(no such field)"


def flat(path: str, value: Any) -> dict[str, Any]:
    """Nested tables and lists as `{"config.rewards.0.weight": 1.0}`; an empty list stays a value.
    Without a path names begin with the table's own keys."""
    if not isinstance(value, (dict, list)) or not value:
        return {} if value == {} else {path: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    inside = (flat(f"{path}.{key}" if path else str(key), one).items() for key, one in items)
    return dict(chain.from_iterable(inside))


def differences_between(here: dict[str, Any], there: dict[str, Any]) -> Iterator[Difference]:
    """The fields of two identities that differ; one that is new and null does, too."""
    for field in [*here, *(field for field in there if field not in here)]:
        ours, theirs = here.get(field, ABSENT), there.get(field, ABSENT)
        if ours != theirs:
            yield Difference(field, ours, theirs)
