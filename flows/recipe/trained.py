"""Finds the artifact of one of a run's finished stages, for a command."""

from collections.abc import Sequence

from infra.store.store import Store
from schemas.artifact import Manifest
from schemas.base import InputError, StageFailed
from schemas.reports import RunRecord, StageRecord
from tasks.contract.kinds import training_kinds


def trained_stage(
    store: Store, record: RunRecord, stage: str | None
) -> tuple[StageRecord, Manifest]:
    """The record and the artifact of `stage`, or of the last trained stage.

    Raises:
        InputError: the run has no such model, or its artifact is gone.
        StageFailed: its artifact is damaged.
    """
    return finished_stage(store, record, stage, training_kinds(), "trained model")


def finished_stage(
    store: Store, record: RunRecord, stage: str | None, kinds: Sequence[str], what: str
) -> tuple[StageRecord, Manifest]:
    """The record and the artifact of `stage`, or of the last stage of these kinds. `what`: a word
    for such a stage's product.

    Raises:
        InputError: the run has no such stage, or its artifact is gone.
        StageFailed: its artifact is damaged.
    """
    found = {one.name: one for one in record.stages if one.kind in kinds and one.artifact}
    if not found:
        raise InputError(
            f"run {record.run_id!r} has no {what}: none of its stages of kind"
            f" {', '.join(kinds)} was finished."
        )
    if stage is not None and stage not in found:
        raise InputError(
            f"stage {stage!r} of run {record.run_id!r} has no {what}. Stages with one:"
            f" {', '.join(found)}."
        )
    chosen = found[stage] if stage else list(found.values())[-1]
    return chosen, sound_artifact(
        store, chosen.kind, chosen.key, f"the {what} of stage {chosen.name!r}"
    )


def sound_artifact(store: Store, kind: str, key: str | None, what: str) -> Manifest:
    """The manifest of an undamaged artifact. It only looks; the next run of the recipe sets damage
    aside.

    Raises:
        InputError: it is gone; the message calls it `what`.
        StageFailed: it is damaged.
    """
    manifest = store.lookup(kind, key) if key else None
    if manifest is None:
        raise InputError(f"{what} is no longer in the store; `lyceum run` makes it again.")
    if damage := store.verify(manifest):
        raise StageFailed(
            f"{what} is damaged ({damage[0]}); `lyceum run` with the same recipe makes it again."
        )
    return manifest
