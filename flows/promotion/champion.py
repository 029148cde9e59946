"""The champion of a recipe: which run's model is the one to use, as an atomic pointer in the store,
with its whole history.

It is a series of objects `champions/<recipe>/<number>.json`, created once and never changed; the
highest number counts. To change the champion is to create the next number. Of several writers
exactly one succeeds; the others read again and decide again. A listing that lags behind does no
harm: readers try the numbers above it by name, and nobody can create a number that exists. Readers
skip an entry that is damaged or removed.

A rollback is an entry of its own. It takes the champion's promotion back, like *undo*: after
promotions of A, B and C one rollback leads to B, a second one to A, and a third one is refused.
After A, B, rollback, C it leads from C to A, which C replaced; B was given up.
"""

import getpass
import logging
import os
import platform
import re
import time
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, ValidationError

from flows.runs.effects import METRICS
from flows.runs.record import read_run, record_name, run_status
from flows.runs.results import RunResults, left_out_text, read_results
from infra.store.store import Store, data_name
from schemas.artifact import ArtifactRef, Manifest
from schemas.base import InputError, Sealed, nearest
from schemas.reports import RunRecord, StageRecord
from tasks.contract.kinds import training_kinds

log = logging.getLogger("lyceum.champion")

_NUMBER = re.compile(r"(\d{6,})\.json")


class Champion(Sealed):
    """`champions/<recipe>/<number>.json`.

    Attributes:
        change: `promotion` of a run, or `rollback` to an earlier champion.
        run_id, stage, model: the run, its last trained stage, and that stage's artifact.
        weights: where the model's files lay when it was promoted: a name in the store, below which
            `model.safetensors` is.
        metrics: the model's rates in its run's evaluations, fractions of 1.
        at: seconds since the epoch.
        by: `user@host`, or `nightly`.
        replaces: the number of the entry that counted before; None for the first one.
        restores: of a rollback: the number of the entry that it returns to.
    """

    number: int = Field(ge=1)
    recipe: str
    change: Literal["promotion", "rollback"]
    run_id: str
    stage: str
    model: ArtifactRef
    weights: str
    metrics: dict[str, float]
    why: str
    by: str
    at: float
    replaces: int | None
    restores: int | None = None


def current(store: Store, recipe: str) -> Champion | None:
    """The champion of a recipe, None when there is none."""
    found = (_read(store, recipe, number) for number in reversed(numbers(store, recipe)))
    return next(filter(None, found), None)


def history(store: Store, recipe: str) -> list[Champion]:
    """Every entry that can be read, the oldest first."""
    return [entry for number in numbers(store, recipe) if (entry := _read(store, recipe, number))]


def line(entries: Sequence[Champion]) -> list[Champion]:
    """The champions that rollbacks lead back to, the current one last, given the history."""
    return _replay(entries)[0]


def withdrawn(entries: Sequence[Champion]) -> dict[str, Champion]:
    """Digest of each model that a rollback gave up -> that rollback; without models promoted again
    since."""
    return _replay(entries)[1]


def promote(
    store: Store, run: RunRecord, why: str, *, by: str, replacing: Champion | None
) -> Champion | None:
    """Make a run's model the champion of its recipe.

    Args:
        replacing: the champion that this was decided against.

    Returns:
        The new entry; None when another champion than `replacing` counts by now. Then nothing has
        changed: decide again.

    Raises:
        InputError: the run did not succeed, has no trained model, or an artifact of it is gone or
            damaged; or `lyceum gc` has dropped the run.
    """
    results = read_results(store, run)
    stage, manifest = _verified(results)
    dropped = InputError(f"run {run.run_id!r} was dropped meanwhile, and cannot be promoted.")
    if store.read_bytes(record_name(run.run_id)) is None:  # to verify a model takes minutes
        raise dropped
    entry = Champion(
        number=1,
        recipe=run.recipe.name,
        change="promotion",
        run_id=run.run_id,
        stage=stage.name,
        model=manifest.ref(),
        weights=data_name(manifest),
        metrics=_rates(results, stage.name),
        why=why,
        by=by,
        at=time.time(),
        replaces=None,
    )
    made = _append(store, entry, replacing)
    # `lyceum gc` removes the record and looks for an entry then: of both, one sees the other
    if made and store.read_bytes(record_name(run.run_id)) is None:
        store.remove(entry_name(made.recipe, made.number))
        raise dropped
    return made


def promote_by_hand(store: Store, run_id: str, why: str) -> Champion:
    """Make a run's model the champion without asking the gate. Raises InputError as `promote`, or
    if it is champion."""
    run = read_run(store, run_id)
    model = model_of(run)
    while True:
        before = current(store, run.recipe.name)
        if before is not None and before.model == model.artifact:
            raise InputError(
                f"the model of run {run_id!r} is the champion of recipe {before.recipe} already"
                f" (number {before.number})."
            )
        entry = promote(store, run, why, by=whoever(), replacing=before)
        if entry is not None:
            return entry


def rollback(store: Store, recipe: str, why: str) -> Champion:
    """Return to the champion before the current one, as the module's docstring says.

    Raises:
        InputError: there is none, its model is gone or damaged, or somebody else changed the
            champion in this moment.
    """
    entries = require_history(store, recipe)
    champions = line(entries)
    if len(champions) < 2:
        raise InputError(
            f"recipe {recipe}: before its champion, run {entries[-1].run_id}, there is none to roll"
            " back to. `lyceum promote RUN` makes another run's model the champion."
        )
    back = champions[-2]
    manifest = store.lookup(back.model.kind, back.model.key)
    same = manifest is not None and manifest.ref() == back.model
    problems = store.verify(manifest) if manifest and same else ["it is gone from the store"]
    if manifest is None or problems:
        raise InputError(
            f"recipe {recipe}: the champion before was run {back.run_id}, and the model of its"
            f" stage {back.stage} cannot be used: {problems[0]}. The champion stays as it is."
            " `lyceum promote RUN` makes another run's model the champion."
        )
    changes = {"change": "rollback", "restores": back.number, "weights": data_name(manifest)}
    said = {"why": why, "by": whoever(), "at": time.time()}
    entry = _append(store, back.model_copy(update=changes | said), entries[-1])
    if entry is None:
        raise InputError(
            f"recipe {recipe}: somebody else changed the champion in this moment. Look with"
            " --history, and decide again."
        )
    return entry


def require_history(store: Store, recipe: str) -> list[Champion]:
    """The history of a recipe that has a champion. Raises InputError naming the recipes that have
    one."""
    known = store.children("champions")
    entries = history(store, recipe) if recipe in known else []
    if not entries:
        raise InputError(
            f"recipe {recipe!r} has no champion in store {store.uri}; `lyceum promote RUN` makes a"
            f" run's model one.{nearest(recipe, known) if known else ''}"
        )
    return entries


def model_of(run: RunRecord) -> StageRecord:
    """The last trained stage of a run, whose model can be promoted. Raises InputError when the run
    did not succeed or has none."""
    status = run_status(run)
    if status != "succeeded":
        raise InputError(
            f"run {run.run_id!r} is no candidate: its status is {status}. Only a run that succeeded"
            " can be; `lyceum runs` lists them."
        )
    kinds = training_kinds()
    models = [stage for stage in run.stages if stage.kind in kinds and stage.artifact]
    if not models:
        said = f"run {run.run_id!r} has no trained model: its recipe has no stage of kind"
        raise InputError(f"{said} {', '.join(kinds)}.")
    return models[-1]


def protected(store: Store) -> dict[str, str]:
    """Id of each run whose record a champion needs -> why, and how to give it up."""
    needed: dict[str, str] = {}
    for recipe in store.children("champions"):
        entries = history(store, recipe)
        back = f"`lyceum promote --rollback {recipe}` may lead back to it. To give that up, remove"
        for entry in line(entries)[:-1]:
            needed[entry.run_id] = f"{back} {entry_name(recipe, entry.number)} first"
        champion = (
            f"it is the champion of recipe {recipe}. Promote another run, or roll back, first"
        )
        needed |= {entry.run_id: champion for entry in entries[-1:]}
    return needed


def whoever() -> str:
    """The current user, `user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    return f"{user}@{platform.node()}"


def entry_json(store: Store, entry: Champion) -> dict[str, Any]:
    """An entry as `lyceum promote --json` prints it, with `location`: where the model's files lie,
    a path or a `gs://` URI."""
    shown = entry.model_dump(mode="json", exclude={"checksum"})
    return {**shown, "location": store.location(entry.weights)}


def history_json(store: Store, recipe: str) -> dict[str, Any]:
    """The JSON of `lyceum promote --history`: all entries, the newest last, and the numbers that
    rollbacks would lead back to, the next one first. Raises InputError without a champion."""
    entries = require_history(store, recipe)
    return {
        "recipe": recipe,
        "store": store.uri,
        "history": [entry_json(store, entry) for entry in entries],
        "rollbacks": [entry.number for entry in reversed(line(entries)[:-1])],
    }


def _replay(entries: Sequence[Champion]) -> tuple[list[Champion], dict[str, Champion]]:
    champions: list[Champion] = []
    given_up: dict[str, Champion] = {}
    for entry in entries:
        if entry.change == "rollback" and entry.restores is not None:
            later = [one for one in champions if one.number > entry.restores]
            given_up |= {one.model.digest: entry for one in later}
            champions = [one for one in champions if one.number <= entry.restores]
        restored = champions and champions[-1].number == entry.restores  # otherwise it is damaged
        if entry.change == "promotion" or not restored:
            champions.append(entry)
        given_up.pop(entry.model.digest, None)
    return champions, given_up


def _append(store: Store, entry: Champion, replacing: Champion | None) -> Champion | None:
    """Write an entry as the next one, if `replacing` is still the newest; None when somebody else
    was faster."""
    known = numbers(store, entry.recipe)
    if current(store, entry.recipe) != replacing:
        return None
    number = known[-1] + 1 if known else 1
    place = {"number": number, "replaces": replacing.number if replacing else None}
    numbered = entry.model_copy(update=place).sealed()
    return numbered if store.create_json(entry_name(entry.recipe, number), numbered) else None


def numbers(store: Store, recipe: str, top: str = "champions") -> list[int]:
    """The numbers of all entries, readable or not, ascending."""
    matches = (_NUMBER.fullmatch(name) for name in store.children(f"{top}/{recipe}"))
    found = sorted(int(match[1]) for match in matches if match)
    following = found[-1] + 1 if found else 1
    while store.read_bytes(entry_name(recipe, following, top)) is not None:
        found.append(following)
        following += 1
    return found


def entry_name(recipe: str, number: int, top: str = "champions") -> str:
    return f"{top}/{recipe}/{number:06d}.json"


def _read(store: Store, recipe: str, number: int) -> Champion | None:
    """An entry; None when it is gone, or damaged, which is logged."""
    name = entry_name(recipe, number)
    if (raw := store.read_bytes(name)) is None:
        return None
    try:
        entry = Champion.model_validate_json(raw)
    except ValidationError:
        entry = None
    if entry is None or not entry.is_intact or (entry.recipe, entry.number) != (recipe, number):
        log.warning("store %s: %s is damaged and is passed over", store.uri, name)
        return None
    return entry


def _verified(results: RunResults) -> tuple[StageRecord, Manifest]:
    """The stage whose model is to be promoted, and its manifest. Every artifact of the run is
    verified. Raises InputError."""
    stage = model_of(results.record)
    manifest = results.stages[stage.name].manifest
    if results.left_out or manifest is None:
        raise InputError(
            f"run {results.record.run_id!r} cannot be promoted: {left_out_text(results.left_out)}."
            " Run the recipe again, which makes what is missing, and promote that run."
        )
    return stage, manifest


def _rates(results: RunResults, model: str) -> dict[str, float]:
    """The model's rates in its run's evaluations."""
    found = (
        (metric.name, stage.metrics.get(metric.name))
        for metric in METRICS
        for stage in reversed(results.evaluations_of(model))  # the first one counts
        if stage.spec.kind == metric.kind
    )
    return {name: rate for name, rate in found if rate is not None}
