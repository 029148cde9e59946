"""The model that a command is about: the artifact of one of a run's trained stages."""

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
    models = {
        one.name: one
        for one in record.stages
        if one.kind in training_kinds() and one.artifact is not None
    }
    if not models:
        raise InputError(
            f"run {record.run_id!r} has no trained model: none of its stages of kind"
            f" {', '.join(training_kinds())} was finished."
        )
    if stage is not None and stage not in models:
        raise InputError(
            f"stage {stage!r} of run {record.run_id!r} has no model. Stages with a model:"
            f" {', '.join(models)}."
        )
    chosen = models[stage] if stage else list(models.values())[-1]
    return chosen, sound_artifact(
        store, chosen.kind, chosen.key, f"the model of stage {chosen.name!r}"
    )


def sound_artifact(store: Store, kind: str, key: str | None, what: str) -> Manifest:
    """The manifest of an artifact whose files are as they were written. Looks only: who runs the
    recipe again sets damage aside.

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
