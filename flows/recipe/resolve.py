"""From a recipe's name or path to validated stages: everything that can be wrong with a recipe is
found here, before anything runs.

A `ResolvedStage` holds what identifies a stage apart from its inputs' digests: kind, VERSION,
complete config, dependencies. Where a run executes (store, target, the data directory's path) never
enters.
"""

import importlib.resources
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flows.recipe.code import with_code
from flows.recipe.overrides import TINY, apply_override, order, set_value
from flows.recipe.tiny_data import KEY, replace_data
from schemas.artifact import stage_key
from schemas.base import InputError, StrictModel, explain_validation, nearest
from schemas.evaluation import HELDOUT
from schemas.recipe import (
    STAGE_NAME,
    Recipe,
    StageSpec,
    parse_recipe,
    recipe_from_table,
    recipe_table,
    recipe_text,
    with_defaults,
)
from tasks.contract.kind import Kind
from tasks.contract.kinds import kinds_producing, stage_kind, training_kinds
from tasks.contract.small import LAPTOP, Sizes
from tasks.models.adapters import adapters_of, check_adapters
from tasks.models.source import TINY as TINY_MODEL
from tasks.models.source import check_model, extra_dependencies


@dataclass(frozen=True)
class ResolvedStage:
    """A stage whose config, inputs and dependencies are known to be valid.

    Attributes:
        inputs: input name -> name of the earlier stage that feeds it.
        config: the kind's Config, with `model` and `seed` filled from the recipe where the recipe's
            stage does not set them.
        dependencies: what else decides the stage's bytes (see `schemas.artifact.stage_key`).
        missing: why these are not known, and so the stage key neither: data that nobody named. Only
            of a recipe that is just looked at.
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

    def key(self, input_digests: Mapping[str, str]) -> str:
        """The stage key, given the digest of the artifact behind each input."""
        return stage_key(
            self.kind, self.version, self.dependencies, self.config_json, dict(input_digests)
        )


@dataclass(frozen=True)
class ResolvedRecipe:
    """A recipe with its overrides applied, and its stages in file order. `folders`: where the code
    lies that it names (`flows.recipe.code`)."""

    recipe: Recipe
    stages: tuple[ResolvedStage, ...]
    folders: tuple[Path, ...] = ()

    def stage(self, name: str) -> ResolvedStage:
        """The stage called `name`. Raises InputError with the valid names."""
        self.recipe.stage(name)
        return next(stage for stage in self.stages if stage.name == name)

    def at_home(self, stage: ResolvedStage) -> bool:
        """Whether a stage runs on this machine whatever the target is."""
        given = {name: self.stage(source).config_json for name, source in stage.inputs.items()}
        return stage_kind(stage.kind).at_home(stage.config_json, given)


def resolve(
    recipe: str, overrides: Sequence[str] = (), data: Path | None = None, *, need_data: bool = True
) -> ResolvedRecipe:
    """Read a recipe, apply `--set` overrides, and validate every stage.

    Args:
        recipe: the name of a shipped recipe, or the path of a TOML file.
        overrides: `path=value` as `--set` takes them, e.g. `stages.grpo.config.steps=20`; or
            `tiny`.
        data: the directory of `--data`, for stages that read files from it.
        need_data: without such a directory, a recipe that reads from one is wrong; if not, it is
            resolved all the same (`missing`).

    Raises:
        InputError: anything about the recipe, an override or the data is wrong.
    """
    folders = folders_of(recipe, data)
    table, where, defaults = load_recipe_table(recipe, overrides, folders)
    loaded = recipe_from_table(table, where)
    return resolved_recipe(loaded, where, defaults, data, folders, need_data=need_data)


def resolved_recipe(
    loaded: Recipe,
    where: str,
    defaults: Collection[str],
    data: Path | None,
    folders: tuple[Path, ...],
    *,
    need_data: bool,
) -> ResolvedRecipe:
    """Validate every stage of a recipe made of what `load_recipe_table` gave. Raises as
    `resolve`."""
    if data is not None:
        _check_data(data)
    check_model(loaded.model)
    kinds = {stage.name: stage.kind for stage in loaded.stages}
    stages = []
    for spec in loaded.stages:
        with _said_at(_Place(spec, where, defaults, folders)) as place:
            stages.append(_resolve_stage(spec, loaded, kinds, data, place, need_data))
    resolved = ResolvedRecipe(loaded, tuple(stages), folders)
    _check_gate(resolved, where)
    return resolved


def shipped_recipes() -> dict[str, Recipe]:
    """The recipes that come with Lyceum, by name (`flows/recipes/<name>.toml`)."""
    return {name: parse_recipe(shipped_text(name), f"{name}.toml") for name in _shipped_names()}


def folders_of(recipe: str, data: Path | None) -> tuple[Path, ...]:
    """Where code that a recipe names may lie: beside its file, and in the data directory."""
    beside = () if recipe in _shipped_names() else (Path(recipe).absolute().parent,)
    return (*beside, *([data.absolute()] if data else []))


def load_recipe_table(
    recipe: str, overrides: Sequence[str], folders: tuple[Path, ...]
) -> tuple[dict[str, Any], str, Collection[str]]:
    """The recipe called or stored at `recipe`, with overrides applied. `folders`: where the code
    lies that it names (`folders_of`).

    Returns:
        it as a table, with the defaults in its stages and without `tiny`; what to call it in
        messages; and the kinds that have defaults in it.

    Raises:
        InputError: there is no such recipe, it is wrong, or an override is.
    """
    if recipe in _shipped_names():
        text, where = shipped_text(recipe), recipe
    elif STAGE_NAME.fullmatch(recipe) and not Path(recipe).exists():
        raise InputError(
            f"unknown recipe {recipe!r}.{nearest(recipe, _shipped_names())} Or give the path of a"
            " TOML file."
        )
    else:
        text, where = recipe_text(Path(recipe)), recipe
    file = recipe_table(text, where)
    # a recipe that is wrong by itself is reported before, and apart from, its overrides
    loaded = recipe_from_table(file, where)
    table, written = with_defaults(file, where), file["stages"]
    table.pop("tiny", None)
    for override in sorted(overrides, key=order):
        if override == TINY:
            if KEY in loaded.tiny:
                replace_data(table, loaded.tiny[KEY])
            make_small(table, where, file.get("defaults", {}), TINY_MODEL, LAPTOP, folders)
            for path, value in loaded.tiny.items():
                if path != KEY:
                    set_value(table, path, value, f"{path} (of [tiny])", written)
        else:
            apply_override(table, override, written)
    where = f"{where} (with --set {' '.join(overrides)})" if overrides else where
    return table, where, file.get("defaults", {})


def make_small(
    table: dict[str, Any],
    where: str,
    defaults: Collection[str],
    model: str,
    sizes: Sizes,
    folders: tuple[Path, ...],
) -> None:
    """Make a recipe's table one for a laptop, in place: another model, each stage by
    `Kind.small`."""
    table["model"] = model
    for stage in table["stages"].values():
        stage.get("config", {}).pop("model", None)
    recipe = recipe_from_table(table, where)
    for spec in recipe.stages:
        with _said_at(_Place(spec, where, defaults, folders)) as place:
            kind = stage_kind(spec.kind)
            config = _stage_config(kind.config, spec, recipe, place)
        before, after = (one.model_dump(mode="json") for one in (config, kind.small(config, sizes)))
        table["stages"][spec.name]["config"] = _changed(spec.config, before, after)


def _changed(
    written: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, Any]:
    """A table as it is written, with what has changed. TOML has no null: what is None is left
    out."""
    found = dict(written)
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if new is None:
            found.pop(name, None)
        elif isinstance(new, dict) and isinstance(found.get(name), dict):
            found[name] = _changed(found[name], old or {}, new)
        else:
            found[name] = _without_null(new)
    return found


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_null(item) for name, item in value.items() if item is not None}
    return [_without_null(item) for item in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class _Place:
    """Where a stage is written, for messages: also in the defaults of its kind, if the file has
    any. `folders`: where the code lies that it names."""

    spec: StageSpec
    where: str
    defaults: Collection[str]
    folders: tuple[Path, ...]

    @property
    def stage(self) -> str:
        return f"recipe {self.where}, stages.{self.spec.name}"

    @property
    def below(self) -> str:
        kind = self.spec.kind
        return f" (begins with defaults.{kind})" if kind in self.defaults else ""


@contextmanager
def _said_at(place: _Place) -> Iterator[_Place]:
    """Messages of errors begin with the place."""
    try:
        yield place
    except InputError as error:
        if str(error).startswith(place.stage):
            raise
        raise InputError(f"{place.stage}{place.below}: {error}") from error


def _resolve_stage(
    spec: StageSpec,
    recipe: Recipe,
    kinds: dict[str, str],
    data: Path | None,
    place: _Place,
    need_data: bool,
) -> ResolvedStage:
    kind = stage_kind(spec.kind)
    _check_inputs(spec, kind, kinds)
    config = _stage_config(kind.config, spec, recipe, place)
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
    dependencies, missing = _dependencies(kind, config, data, need_data)
    dependencies |= extra_dependencies((*extra, *adapters))
    return ResolvedStage(
        spec.name, spec.kind, kind.version, config, dict(spec.inputs), dependencies, missing
    )


def _dependencies(
    kind: Kind[Any], config: StrictModel, data: Path | None, need_data: bool
) -> tuple[dict[str, str | int], str]:
    """What else decides a stage's bytes, and why it is not known: see `ResolvedStage`."""
    try:
        return kind.dependencies(config, data), ""
    except InputError as error:
        if need_data or data is not None:
            raise
        return {}, str(error)


def _stage_config(
    model: type[StrictModel], spec: StageSpec, recipe: Recipe, place: _Place
) -> StrictModel:
    shared = {"model": recipe.model, "seed": recipe.seed}
    filled = {name: value for name, value in shared.items() if name in model.model_fields}
    try:
        return model.parse({**filled, **with_code(spec.config, place.folders)})
    except ValidationError as error:
        where = f"{place.stage}.config{place.below}"
        raise InputError(explain_validation(error, model, where)) from error


def _check_inputs(spec: StageSpec, kind: Kind[Any], kinds: dict[str, str]) -> None:
    """Whether each input is fed by a stage that leaves what it takes. Raises InputError."""
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
    """Whether each rule of `[gate]` is about something that the last trained model is asked. Raises
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
            raise InputError(f"--data {data}: there is no such directory.")
        if not data.is_dir():
            raise InputError(f"--data {data} is not a directory; {named}")
        if not any(data.iterdir()):
            raise InputError(f"--data {data} is empty; {named}")
    except OSError as error:
        raise InputError(f"--data {data} cannot be read: {error.strerror}.") from error


def _shipped_names() -> list[str]:
    files = importlib.resources.files("flows.recipes").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def shipped_text(name: str) -> str:
    """The file of a recipe that comes with Lyceum."""
    return (importlib.resources.files("flows.recipes") / f"{name}.toml").read_text(encoding="utf-8")
