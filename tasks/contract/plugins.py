"""Finding stage kinds, rewards and teachers by file name: adding one is adding a file, there is no list to edit.

Nothing here imports JAX; a plugin's module top level must not either.
"""

import importlib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from schemas.base import InputError, StrictModel, explain_validation, nearest

ROOT = Path(__file__).parents[1]


@cache
def stage_kinds() -> tuple[str, ...]:
    """Names of all stage kinds: the files in `tasks/stages/`."""
    return plugin_names("stages")


@cache
def plugin_names(family: str) -> tuple[str, ...]:
    """Names of all plugins of a family (`rewards`, `teachers`): the files in `tasks/<family>/`."""
    return tuple(sorted(path.stem for path in (ROOT / family).glob("*.py") if not path.stem.startswith("_")))


def stage_module(kind: str) -> ModuleType:
    """The module of a stage kind. Raises InputError with the valid kinds."""
    if kind not in stage_kinds():
        raise InputError(f"unknown stage kind {kind!r}.{nearest(kind, stage_kinds())}")
    return importlib.import_module(f"tasks.stages.{kind}")


def base_model_of(kind: str, config: Mapping[str, Any]) -> str | None:
    """The model that a stage with this config (as JSON) begins with if no policy is connected, or None: it reads no model."""
    module = stage_module(kind)
    return module.base_model(config) if hasattr(module, "base_model") else config.get("model")


def extra_models_of(kind: str, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Base models that a stage with this config (as JSON) loads beside the one it begins with: a judge's, a teacher's."""
    module = stage_module(kind)
    return tuple(module.extra_models(config)) if hasattr(module, "extra_models") else ()


def uses_devices(kind: str, config: Mapping[str, Any]) -> bool:
    """Whether a stage with this config (as JSON) computes with JAX."""
    module = stage_module(kind)
    return getattr(module, "USES_DEVICES", False) or (hasattr(module, "base_model") and module.base_model(config) is not None)


def stays_at_home(kind: str, config: Mapping[str, Any], inputs: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a stage runs on the flow's machine whatever the target is: the kind's `at_home` says so.

    Args:
        config: the stage's, as JSON.
        inputs: input name -> the config, as JSON, of the stage that feeds it.
    """
    module = stage_module(kind)
    return hasattr(module, "at_home") and module.at_home(config, inputs)


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
