"""Resolves a recipe's name or path to validated stages, and finds everything that can be wrong with
a recipe before anything runs.

A `ResolvedStage` holds what identifies a stage apart from its inputs' digests: kind, VERSION,
complete config, dependencies. Where a run executes (store, target, the data directory's path) never
enters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.recipe.table import RecipeTable, read_recipe
from infra.context import context
from schemas.artifact import stage_key
from schemas.base import InputError, StrictModel, nearest
from schemas.evaluation import HELDOUT
from schemas.recipe import Recipe, StageSpec
from tasks.contract.kind import Kind
from tasks.contract.kinds import kinds_producing, stage_kind, stage_kinds, training_kinds
from tasks.models.adapters import adapters_of, check_adapters
from tasks.models.model_source import check_model, extra_dependencies, window


@dataclass(frozen=True)
class ResolvedStage:
    """A stage whose config, inputs and dependencies are known to be valid.

    Attributes:
        inputs: input name -> name of the earlier stage that feeds it.
        config: the kind's Config, with `model` and `seed` filled from the recipe where the recipe's
            stage does not set them.
        dependencies: what else the stage's bytes depend on (see `schemas.artifact.stage_key`).
        missing: why these, and so the stage key, are unknown: data that nobody named. Only for a
            recipe that is just looked at.
    """

    name: str
    kind: str
    version: int
    config: StrictModel
    inputs: dict[str, str]
    dependencies: dict[str, str | int]
    missing: str = ""

    @property
    def config_json(self) -> dict[str, Any]:
        """The config as plain JSON, defaults included: what is hashed, and what the worker
        parses."""
        return self.config.model_dump(mode="json")

    @property
    def lengths(self) -> dict[str, int]:
        """The fields of the config that say how long a text may be -> tokens; they add up."""
        names = ("sequence_length", "prompt_length", "response_length")
        return {name: size for name in names if (size := getattr(self.config, name, 0))}

    def key(self, input_digests: Mapping[str, str]) -> str:
        """The stage key, given the digest of the artifact behind each input."""
        return stage_key(
            self.kind, self.version, self.dependencies, self.config_json, dict(input_digests)
        )


@dataclass(frozen=True)
class ResolvedRecipe:
    """A recipe with its overrides applied, and its stages in file order. `folders`: of the code
    that it names (`flows.recipe.code`)."""

    recipe: Recipe
    stages: tuple[ResolvedStage, ...]
    folders: tuple[Path, ...] = ()

    def stage(self, name: str) -> ResolvedStage:
        """The stage called `name`. Raises InputError with the valid names."""
        self.recipe.stage(name)
        return next(stage for stage in self.stages if stage.name == name)

    def base_model(self, stage: ResolvedStage) -> str:
        """The model with which the stage's chain of policies begins."""
        if "policy" in stage.inputs:
            return self.base_model(self.stage(stage.inputs["policy"]))
        return stage_kind(stage.kind).base_model(stage.config_json) or self.recipe.model

    def at_home(self, stage: ResolvedStage) -> bool:
        """Whether a stage runs on this machine whatever the target is: it is of a local kind of the
        settings, or its kind says so."""
        if stage.kind in context().settings.local_kinds:
            return True
        feeding = {name: self.stage(one).config_json for name, one in stage.inputs.items()}
        return stage_kind(stage.kind).at_home(stage.config_json, feeding)

    def foresee(self, data: Path | None) -> None:
        """Check, before anything is paid for, that no stage is bound to fail with this directory of
        `--data`. Raises InputError."""
        for stage in self.stages:
            if not any(self.stage(source).missing for source in stage.inputs.values()):
                feeding = {name: self.stage(one).config for name, one in stage.inputs.items()}
                try:
                    stage_kind(stage.kind).foresee(stage.config, feeding, data)
                except InputError as error:
                    where = f"recipe {self.recipe.name}, stages.{stage.name}.config"
                    raise InputError(f"{where}: {error}") from error


def resolve(
    recipe: str, overrides: Sequence[str] = (), data: Path | None = None, *, need_data: bool = True
) -> ResolvedRecipe:
    """Read a recipe, apply `--set` overrides, and validate every stage.

    Args:
        recipe: the name of a shipped recipe, or the path of a TOML file.
        overrides: `path=value` as `--set` takes them, e.g. `stages.grpo.config.steps=20`; or
            `tiny`.
        data: the directory of `--data`, for stages that read files from it.
        need_data: whether a recipe that reads from such a directory is wrong without one; if not,
            it is resolved all the same (`missing`).

    Raises:
        InputError: anything about the recipe, an override or the data is wrong, or
            LYCEUM_LOCAL_KINDS names a kind that does not exist.
    """
    table = read_recipe(recipe, data)
    table.change(overrides)
    return resolve_table(table, data, need_data=need_data)


def resolve_table(
    table: RecipeTable, data: Path | None, *, need_data: bool = True
) -> ResolvedRecipe:
    """Validate every stage of a recipe's table. Arguments and errors as of `resolve`."""
    recipe = table.recipe
    for kind in context().settings.local_kinds:
        if kind not in stage_kinds():
            valid = nearest(kind, stage_kinds())
            raise InputError(f"LYCEUM_LOCAL_KINDS: unknown stage kind {kind!r}.{valid}")
    if data is not None:
        _check_data(data)
    check_model(recipe.model)
    kinds = {stage.name: stage.kind for stage in recipe.stages}
    stages = []
    for spec in recipe.stages:
        with table.errors_at(spec):
            _check_inputs(spec, stage_kind(spec.kind), kinds)
            stages.append(_resolve_stage(spec, table.config(spec), data, need_data))
    resolved = ResolvedRecipe(recipe, tuple(stages), table.folders)
    for spec, stage in zip(recipe.stages, resolved.stages, strict=True):
        model = resolved.base_model(stage)
        longest, most = sum(stage.lengths.values()), window(model)
        if most is not None and longest > most:
            said = " + ".join(f"{name} {size}" for name, size in stage.lengths.items())
            with table.errors_at(spec):
                raise InputError(
                    f"{said}: {model} was made for texts of at most {most} tokens; lower them to"
                    " that, or take another model."
                )
    _check_gate(resolved, table.where)
    return resolved


def _resolve_stage(
    spec: StageSpec, config: StrictModel, data: Path | None, need_data: bool
) -> ResolvedStage:
    kind = stage_kind(spec.kind)
    written = config.model_dump(mode="json")
    extra, adapters = kind.extra_models(written), adapters_of(written)
    for model in filter(None, (getattr(config, "model", None), *extra)):
        check_model(model)
    if adapters:
        if "policy" in spec.inputs:
            raise InputError(
                "lora.adapters belong to the base model, and this stage begins with inputs.policy ="
                f" {spec.inputs['policy']!r}; leave one of them out."
            )
        check_adapters(config.lora, config.model)  # type: ignore[attr-defined]
    try:
        dependencies, missing = kind.dependencies(config, data), ""
    except InputError as error:
        if need_data or data is not None:
            raise
        dependencies, missing = {}, str(error)
    dependencies |= extra_dependencies((*extra, *adapters))
    return ResolvedStage(
        spec.name, spec.kind, kind.version, config, dict(spec.inputs), dependencies, missing
    )


def _check_inputs(spec: StageSpec, kind: Kind[Any], kinds: dict[str, str]) -> None:
    """Check that a stage of the right product feeds each input. Raises InputError."""
    feeding = {
        name: (spec.kind,) if slot.same_kind else kinds_producing(slot.product)
        for name, slot in kind.inputs.items()
    }
    for name, source in spec.inputs.items():
        if name not in kind.inputs:
            near = nearest(name, kind.inputs)
            raise InputError(f"kind {spec.kind!r} has no input {name!r}.{near}")
        if kinds[source] not in feeding[name]:
            given, wanted = f"inputs.{name} = {source!r}", " or ".join(feeding[name])
            raise InputError(f"{given} is of kind {kinds[source]!r}; this input takes {wanted}.")
    for name, slot in kind.inputs.items():
        if slot.required and name not in spec.inputs:
            wanted = f"<an earlier stage of kind {' or '.join(feeding[name])}>"
            raise InputError(f'input {name!r} is missing; add inputs = {{ {name} = "{wanted}" }}.')


def _check_gate(resolved: ResolvedRecipe, where: str) -> None:
    """Check that the last trained model is evaluated for each rule of `[gate]`. Raises
    InputError."""
    gate = resolved.recipe.gate
    if gate is None:
        return
    from flows.promotion.gate_rules import metric_of  # with numpy, which most commands do not need
    from tasks.evaluation.suite_prompts import parse_suites

    trained = [stage.name for stage in resolved.stages if stage.kind in training_kinds()]
    if not trained:
        raise InputError(
            f"recipe {where}, gate: no stage of kind {', '.join(training_kinds())} trains a model"
            " to be promoted; leave it out."
        )
    asked: dict[str, list[str]] = {}
    functions: dict[str, list[str]] = {}
    for stage in resolved.stages:
        evaluates = stage_kind(stage.kind).evaluation is not None
        if evaluates and stage.inputs.get("policy") == trained[-1]:
            suites = asked.setdefault(stage.kind, [])
            suites += [HELDOUT] if "prompts" in stage.inputs else []
            suites += [one.suite for one in parse_suites(stage.config_json["suites"], stage.kind)]
            own = [one.function for one in getattr(stage.config, "metrics", ())]
            functions.setdefault(stage.kind, []).extend(own)
    for name, rules in (("must_win", gate.must_win), ("must_not_lose", gate.must_not_lose)):
        for index, rule in enumerate(rules):
            try:
                metric_of(rule, asked, functions)
            except InputError as error:
                raise InputError(f"recipe {where}, gate.{name}.{index}: {error}") from error


def _check_data(data: Path) -> None:
    named = "name the directory that holds the recipe's data files."
    try:
        if not data.exists():
            place = "" if data.is_absolute() else f": {data.absolute()}"
            raise InputError(f"--data {data}: there is no such directory{place}.")
        if not data.is_dir():
            raise InputError(f"--data {data} is not a directory; {named}")
        if not any(data.iterdir()):
            raise InputError(f"--data {data} is empty; {named}")
    except OSError as error:
        raise InputError(f"--data {data} cannot be read: {error.strerror}.") from error
