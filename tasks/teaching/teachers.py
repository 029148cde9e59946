"""The teachers that a recipe names: a table for each, whose `name` is a file in `tasks/teachers/`."""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from schemas.base import StrictModel
from tasks.contract.plugins import parse_plugin, plugin_module


def teachers_of(tables: Sequence[Mapping[str, Any]]) -> list[tuple[ModuleType, StrictModel]]:
    """Each teacher's module and config. Raises InputError: an unknown teacher, or a table that does not validate."""
    configs = [parse_plugin("teachers", dict(table), f"teachers.{index}", needs="teach") for index, table in enumerate(tables)]
    return [(plugin_module("teachers", table["name"]), config) for table, config in zip(tables, configs, strict=True)]


def asks_an_api(table: Mapping[str, Any]) -> bool:
    """Whether a teacher waits for the answers of an API."""
    return table["name"] == "openai_compatible" or bool(table.get("routing")) or any(map(asks_an_api, table.get("prompts", ())))
