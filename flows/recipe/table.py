"""A recipe's file as a table, which `--set`, `--tiny` and a rehearsal change before it becomes a
Recipe."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flows.recipe.code import with_code
from flows.recipe.overrides import TINY, apply_override, order, set_value
from flows.recipe.shipped import shipped_names, shipped_text
from infra.store.location import expanded
from schemas.base import InputError, StrictModel, explain_validation, nearest, without_nulls
from schemas.recipe import STAGE_NAME, Recipe, StageSpec, recipe_from_table, with_defaults
from schemas.toml import toml_table, toml_text
from tasks.contract.kinds import stage_kind
from tasks.contract.small import LAPTOP, Sizes
from tasks.models.model_source import TINY as TINY_MODEL

DATA, PROCEDURAL = "data", "procedural"
"""`data = "procedural"` in `[tiny]`: the procedural teacher draws all problems, so that nothing is
read from a hub, a bucket or a file."""

_PROCEDURAL_CONFIG: dict[str, Any] = {
    "teachers": [{"name": PROCEDURAL}],
    # problems of one template differ by a name or a number: that is what is taught
    "near_duplicates": False,
    "contamination": False,
}
"""The fields that replace a stage's own, if its config has them."""


@dataclass
class RecipeTable:
    """A recipe that can still change.

    Attributes:
        recipe: as it is now.
        values: the recipe's TOML, with the defaults in its stages and without `tiny`.
        where: its name in messages.
        folders: of the code that it names (`flows.recipe.code`).
        defaults: the kinds that have defaults in the file.
        written: its stages as they are in the file.
        tiny: settings of `--tiny` beside the sizes.
    """

    recipe: Recipe
    values: dict[str, Any]
    where: str
    folders: tuple[Path, ...]
    defaults: Collection[str]
    written: Mapping[str, Any]
    tiny: Mapping[str, Any]

    def parse(self) -> None:
        """Parse `values` into `recipe`. Raises InputError: a change made it wrong."""
        self.recipe = recipe_from_table(self.values, self.where)

    def change(self, overrides: Sequence[str]) -> None:
        """Apply overrides of `--set` (`flows.recipe.overrides`). Raises InputError: an override is
        wrong, or makes the recipe so."""
        for override in sorted(overrides, key=order):
            if override == TINY:
                self._make_tiny()
            else:
                apply_override(self.values, override, self.written)
        if overrides:
            self.where += f" (with --set {' '.join(overrides)})"
            self.parse()

    def _make_tiny(self) -> None:
        if DATA in self.tiny:
            self._replace_data(self.tiny[DATA])
        self.make_small(TINY_MODEL, LAPTOP)
        for path, value in self.tiny.items():
            if path != DATA:
                set_value(self.values, path, value, f"{path} (of [tiny])", self.written)

    def _replace_data(self, value: Any) -> None:
        """Leave out all data of others, including suites that read a file."""
        if value != PROCEDURAL:
            raise InputError(f"[tiny] {DATA} = {value!r}: the valid value is {PROCEDURAL!r}.")
        for stage in self.values["stages"].values():
            fields = stage_kind(stage["kind"]).config.model_fields
            config = stage.setdefault("config", {})
            config |= {name: new for name, new in _PROCEDURAL_CONFIG.items() if name in fields}
            if "suites" in config:
                config["suites"] = [suite for suite in config["suites"] if "path" not in suite]

    def make_small(self, model: str, sizes: Sizes) -> None:
        """Make it a recipe for a laptop: another model, and each stage by `Kind.small`."""
        self.values["model"] = model
        for stage in self.values["stages"].values():
            stage.get("config", {}).pop("model", None)
        self.parse()
        for spec in self.recipe.stages:
            with self.errors_at(spec):
                kind, config = stage_kind(spec.kind), self.config(spec)
            small = kind.small(config, sizes)
            before, after = (one.model_dump(mode="json") for one in (config, small))
            self.values["stages"][spec.name]["config"] = _changed(spec.config, before, after)
        self.parse()

    def config(self, spec: StageSpec) -> StrictModel:
        """A stage's config, `model` and `seed` filled from the recipe. Raises InputError."""
        config = stage_kind(spec.kind).config
        shared = {"model": self.recipe.model, "seed": self.recipe.seed}
        filled = {name: value for name, value in shared.items() if name in config.model_fields}
        try:
            return config.parse({**filled, **with_code(spec.config, self.folders)})
        except ValidationError as error:
            where = f"{self._place(spec)}.config{self._below(spec)}"
            raise InputError(explain_validation(error, config, where)) from error

    @contextmanager
    def errors_at(self, spec: StageSpec) -> Iterator[None]:
        """Prefix messages of errors inside with the stage's place in the file."""
        try:
            yield
        except InputError as error:
            if str(error).startswith(self._place(spec)):
                raise
            raise InputError(f"{self._place(spec)}{self._below(spec)}: {error}") from error

    def _place(self, spec: StageSpec) -> str:
        return f"recipe {self.where}, stages.{spec.name}"

    def _below(self, spec: StageSpec) -> str:
        return f" (begins with defaults.{spec.kind})" if spec.kind in self.defaults else ""


def read_recipe(recipe: str, data: Path | None) -> RecipeTable:
    """The recipe called or stored at `recipe`; `data` is the directory of `--data`.

    Raises:
        InputError: there is no such recipe, or it is wrong.
    """
    folders = (data.absolute(),) if data else ()
    if recipe in shipped_names():
        return parse_table(shipped_text(recipe), recipe, folders)
    path = expanded(recipe, "recipe")
    if STAGE_NAME.fullmatch(recipe) and not path.exists():
        file = path.with_suffix(".toml")
        meant = f" Did you mean {file}?" if file.is_file() else nearest(recipe, shipped_names())
        raise InputError(f"unknown recipe {recipe!r}.{meant} Or give the path of a TOML file.")
    return parse_table(toml_text(path, "recipe"), recipe, (path.absolute().parent, *folders))


def parse_table(text: str, where: str, folders: tuple[Path, ...] = ()) -> RecipeTable:
    """A recipe's text as a table. Raises InputError: the file itself is wrong, which is reported
    before its overrides are read."""
    file = toml_table(text, f"recipe {where}")
    recipe = recipe_from_table(file, where)
    values = with_defaults(file, where)
    values.pop("tiny", None)
    defaults, written, tiny = file.get("defaults", {}), file["stages"], recipe.tiny
    recipe = recipe.model_copy(update={"tiny": {}})
    return RecipeTable(recipe, values, where, folders, defaults, written, tiny)


def _changed(
    written: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, Any]:
    """A table as written, with its changes. It leaves out None, since TOML has no null."""
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
            found[name] = without_nulls(new)
    return found
