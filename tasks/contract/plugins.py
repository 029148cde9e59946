"""Finding stage kinds, rewards and teachers by file name: adding one is adding a file, there is no list to edit.

Nothing here imports JAX; a plugin's module top level must not either.
"""

import importlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from schemas.base import InputError, StrictModel, explain_validation, nearest
from tasks.contract.kind import Evaluation, Kind, Product

ROOT = Path(__file__).parents[1]


@cache
def stage_kinds() -> tuple[str, ...]:
    """Names of all stage kinds: the files in `tasks/stages/`."""
    return plugin_names("stages")


@cache
def plugin_names(family: str) -> tuple[str, ...]:
    """Names of all plugins of a family (`rewards`, `teachers`): the files in `tasks/<family>/`."""
    return tuple(sorted(path.stem for path in (ROOT / family).glob("*.py") if not path.stem.startswith("_")))


@cache
def stage_kind(name: str) -> Kind[Any]:
    """A stage kind by its name. Raises InputError with the valid kinds."""
    if name not in stage_kinds():
        raise InputError(f"unknown stage kind {name!r}.{nearest(name, stage_kinds())}")
    kind = importlib.import_module(f"tasks.stages.{name}").KIND
    if not isinstance(kind, Kind):
        raise TypeError(f"tasks/stages/{name}.py: KIND is a {type(kind).__name__}, and not a Kind")
    return kind


@cache
def kinds_producing(*products: Product) -> tuple[str, ...]:
    """The names of all kinds that leave one of these products."""
    return tuple(name for name in stage_kinds() if stage_kind(name).produces in products)


def training_kinds() -> tuple[str, ...]:
    """The names of all kinds that leave a model."""
    return kinds_producing(Product.MODEL)


def evaluation_of(kind: str) -> Evaluation:
    """What is made of the answers of a kind that evaluates. Raises KeyError for another kind."""
    found = stage_kind(kind).evaluation
    if found is None:
        raise KeyError(f"stage kind {kind!r} evaluates nothing")
    return found


def plugin_module(family: str, name: str) -> ModuleType:
    """The module of a plugin. Raises InputError with the valid names."""
    if name not in plugin_names(family):
        raise InputError(f"unknown {family.removesuffix('s')} {name!r}.{nearest(name, plugin_names(family))}")
    return importlib.import_module(f"tasks.{family}.{name}")


def parse_plugin(family: str, table: dict[str, Any], where: str, needs: str = "") -> StrictModel:
    """Validate a plugin's table (`{name = "format", ...}`) against that plugin's Config, whose field `name` is its file name.

    Args:
        where: what to call the table in messages.
        needs: a function that the plugin must have.

    Raises:
        InputError: no name, an unknown name, a plugin without that function, or a config that does not validate.
    """
    name = table.get("name")
    if not isinstance(name, str):
        raise InputError(f"{where}: {table!r} needs a name, one of: {', '.join(plugin_names(family))}.")
    module = plugin_module(family, name)
    if needs and not hasattr(module, needs):
        able = [other for other in plugin_names(family) if hasattr(plugin_module(family, other), needs)]
        raise InputError(f"{where}: {family.removesuffix('s')} {name!r} has no {needs}. Valid: {', '.join(able)}.")
    model: type[StrictModel] = module.Config
    try:
        return model.parse(table)
    except ValidationError as error:
        raise InputError(explain_validation(error, model, where)) from error


def plugin_versions(family: str, names: Iterable[str]) -> dict[str, str | int]:
    """`{"rewards.format": 1}` for each named plugin: part of the stage key."""
    return {f"{family}.{name}": plugin_module(family, name).VERSION for name in names}
