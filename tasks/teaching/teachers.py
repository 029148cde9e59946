"""The teachers that a recipe names: a table for each, whose `name` is a file in
`tasks/teachers/`."""

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.contract.teacher import TEACHERS, Teacher


def teachers_of(tables: Sequence[Mapping[str, Any]]) -> list[tuple[Teacher[Any], Any]]:
    """Each teacher and its config. Raises InputError: an unknown teacher, or a table that does not
    validate."""
    configs = [
        TEACHERS.parse(dict(table), f"teachers.{index}") for index, table in enumerate(tables)
    ]
    return [(TEACHERS[config.name], config) for config in configs]


def asks_an_api(tables: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one of the teachers waits for the answers of an API."""
    return any(teacher.asks_an_api(config) for teacher, config in teachers_of(tables))
