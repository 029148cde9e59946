"""The results of a run, read from its record and its artifacts: stages with their files, and models
with their evaluations.

A run may be incomplete in any way (failed, cancelled, still running, artifacts removed since): what
is absent is None or empty here, never an error. Each artifact and file is read once, when somebody
asks for it, and the store does not change. Numbers are computed in `flows.runs.effects`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from infra.store.store import Store
from schemas.artifact import Manifest
from schemas.base import InputError, StrictModel, problem_text
from schemas.evaluation import EvalItem
from schemas.recipe import StageSpec
from schemas.reports import RunRecord, StageRecord
from tasks.contract.job import read_jsonl, read_rows
from tasks.contract.kind import Product
from tasks.contract.kinds import kinds_producing

ModelT = TypeVar("ModelT", bound=StrictModel)

BASE = "base"
"""The untrained model's name beside the stages that trained it further."""


@dataclass(frozen=True)
class StageOutput:
    """One stage of the recipe, and its record when it was reached.

    Files are fetched one by one: of a model's artifact in a bucket the weights stay there.
    """

    spec: StageSpec
    store: Store
    record: StageRecord | None = None

    @property
    def manifest(self) -> Manifest | None:
        """Its artifact's manifest, if the store still holds it intact."""
        return self._found[0]

    @property
    def problem(self) -> str | None:
        """Why an artifact that the record names is not used: it is gone, damaged, or another one
        took its place."""
        return self._found[1]

    @cached_property
    def _found(self) -> tuple[Manifest | None, str | None]:
        ref = self.record.artifact if self.record else None
        if ref is None:
            return None, None
        manifest = self.store.lookup(ref.kind, ref.key)
        if manifest is None:
            return None, "its artifact is no longer in the store"
        if manifest.digest != ref.digest:
            return None, "its artifact was replaced by one with other bytes since this run"
        if damage := self.store.verify(manifest):
            return None, f"its artifact is damaged: {damage[0]}"
        return manifest, None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def status(self) -> str:
        """cached, ran, failed, skipped, stopped, running when the run has not ended, or `not run`
        when it ended before the stage."""
        return self.record.outcome if self.record else "not run"

    @property
    def metrics(self) -> dict[str, Any]:
        if self.manifest:
            return self.manifest.metrics
        return self.record.metrics if self.record else {}

    def rows(self, file: str) -> list[dict[str, Any]]:
        """The JSON objects of one of the artifact's JSONL files; empty when there is no such
        file."""
        path = self.path(file)
        return list(read_rows(path)) if path else []

    def read(self, file: str, model: type[ModelT]) -> list[ModelT]:
        """The rows of one of the artifact's JSONL files as models; empty when there is no such
        file."""
        path = self.path(file)
        return read_jsonl(path, model) if path else []

    def json(self, file: str) -> Any:
        """The value in one of the artifact's JSON files; None when there is no such file."""
        path = self.path(file)
        return json.loads(path.read_text(encoding="utf-8")) if path else None

    def path(self, file: str) -> Path | None:
        """One of the artifact's files, or None when there is no artifact or it has no such file.
        Raises Damaged (`Store.local_dir`)."""
        if self.manifest is None or file not in (entry.path for entry in self.manifest.files):
            return None
        return self.store.local_dir(self.manifest, [file]) / file

    @cached_property
    def items(self) -> list[EvalItem]:
        """An evaluation's greedy answers; empty for other stages and where the artifact is absent.
        Raises InputError: another version's."""
        return self._answers("items.jsonl")

    @cached_property
    def samples(self) -> list[EvalItem]:
        """An evaluation's sampled answers; empty where it sampled none."""
        return self._answers("samples.jsonl")

    def _answers(self, file: str) -> list[EvalItem]:
        try:
            return self.read(file, EvalItem)
        except ValidationError as error:
            why = f"{error.errors()[0]['loc'][0]}: {problem_text(error.errors()[0])}"
            raise InputError(
                f"stage {self.name}: {file} was written by another version of Lyceum ({why}). Run"
                " its recipe again: what has not changed since is reused."
            ) from error


@dataclass(frozen=True)
class Model:
    """The base model or a trained stage, with its evaluations by kind (`reasoning_eval`,
    `safety_eval`), each kind's in file order. The model `base, 4 examples` has those that showed it
    so many worked examples.

    `parent` is the model that training started from; None for the base and for models that were
    shown examples.
    """

    name: str
    kind: str
    parent: str | None
    evaluations: dict[str, list[StageOutput]] = field(default_factory=dict)

    def items(self, kind: str) -> list[EvalItem]:
        """The greedy answers of all evaluations of a kind. Where two ask the same suite, the first
        in file order counts."""
        return [one for stage, new in self._asked(kind) for one in stage.items if one.suite in new]

    def samples(self, kind: str) -> list[EvalItem]:
        """The sampled answers to the same prompts, if any."""
        return [
            one for stage, new in self._asked(kind) for one in stage.samples if one.suite in new
        ]

    def _asked(self, kind: str) -> Iterator[tuple[StageOutput, set[str]]]:
        """The evaluations of a kind, each with the suites that none before it asks."""
        asked: set[str] = set()
        for stage in self.evaluations.get(kind, ()):
            new = {item.suite for item in stage.items} - asked
            asked |= new
            yield stage, new


@dataclass(frozen=True, eq=False)
class RunResults:
    """A run: its record and its stages in file order. No two are equal, so that
    `flows.runs.effects` can cache by run."""

    record: RunRecord
    stages: dict[str, StageOutput]

    def of_kind(self, kind: str) -> list[StageOutput]:
        return [stage for stage in self.stages.values() if stage.spec.kind == kind]

    def producing(self, *products: Product) -> list[StageOutput]:
        """The stages that leave one of these, in file order."""
        kinds = kinds_producing(*products)
        return [stage for stage in self.stages.values() if stage.spec.kind in kinds]

    def evaluations_of(self, model: str) -> list[StageOutput]:
        """A model's evaluations without worked examples, in file order: those that compare it with
        others. Reads no answers, which another version of Lyceum may have written in its own
        way."""
        found = self.producing(Product.ANSWERS)
        mine = [stage for stage in found if stage.spec.inputs.get("policy", BASE) == model]
        return [stage for stage in mine if not shots_of(stage)]

    @property
    def left_out(self) -> dict[str, str]:
        """Stages whose artifacts are gone or damaged, and why. Whoever shows the run has to say
        what is missing."""
        return {stage.name: stage.problem for stage in self.stages.values() if stage.problem}

    @property
    def audits(self) -> dict[str, Any]:
        """Stage -> its audit of rewards (`tasks.rehearsal.reward_audit`)."""
        found = {one.name: one.json("reward_audit.json") for one in self.stages.values()}
        return {name: audit for name, audit in found.items() if audit}

    @cached_property
    def models(self) -> dict[str, Model]:
        """The base model and every trained stage of the recipe, in file order."""
        models = {BASE: Model(BASE, BASE, None)}
        for stage in self.producing(Product.MODEL):
            policy = stage.spec.inputs.get("policy", BASE)
            models[stage.name] = Model(stage.name, stage.spec.kind, policy)
        for name, model in models.items():
            for stage in self.evaluations_of(name):
                if stage.items:
                    model.evaluations.setdefault(stage.spec.kind, []).append(stage)
        return models

    @cached_property
    def prompted(self) -> dict[str, Model]:
        """The models that were shown worked examples, by name (`base, 4 examples`), in file order,
        the base first."""
        found: dict[str, Model] = {}
        for name, model in self.models.items():
            for stage in self.producing(Product.ANSWERS):
                mine = stage.spec.inputs.get("policy", BASE) == name
                if mine and stage.items and (shots := shots_of(stage)):
                    called = f"{name}, {shots} example{'s' * (shots != 1)}"
                    shown = found.setdefault(called, Model(called, model.kind, None))
                    shown.evaluations.setdefault(stage.spec.kind, []).append(stage)
        return found

    def evaluated(self, kind: str) -> list[Model]:
        """The models that have an evaluation of this kind without worked examples, in file order,
        the base first."""
        return [model for model in self.models.values() if kind in model.evaluations]

    def shown(self, kind: str) -> list[Model]:
        """The columns of a table of this kind's evaluations: the base, models that were shown
        examples, trained models."""
        prompted = [model for model in self.prompted.values() if kind in model.evaluations]
        trained = self.evaluated(kind)
        first = [trained.pop(0)] if trained and trained[0].name == BASE else []
        return [*first, *prompted, *trained]

    def evaluated_ancestor(self, model: Model, kind: str) -> Model | None:
        """The nearest model that `model` was trained from and that has an evaluation of this
        kind."""
        parent = self.models.get(model.parent or "")
        if parent is None or kind in parent.evaluations:
            return parent
        return self.evaluated_ancestor(parent, kind)


def shots_of(stage: StageOutput) -> int:
    """How many worked examples an evaluation stage shows before each prompt; by its recipe where
    its artifact is gone."""
    return int((stage.manifest or stage.spec).config.get("shots") or 0)


def left_out_text(left_out: Mapping[str, str]) -> str:
    """One line for people."""
    return "; ".join(f"stage {name}: {why}" for name, why in left_out.items())


def left_out_of(runs: Iterable[RunResults]) -> dict[str, str]:
    """`RunResults.left_out` of several runs: `<run>/<stage>` -> why."""
    return {
        f"{run.record.run_id}/{name}": why for run in runs for name, why in run.left_out.items()
    }


def read_results(store: Store, record: RunRecord) -> RunResults:
    records = {stage.name: stage for stage in record.stages}
    specs = record.recipe.stages
    return RunResults(
        record, {spec.name: StageOutput(spec, store, records.get(spec.name)) for spec in specs}
    )
