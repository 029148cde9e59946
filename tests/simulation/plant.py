"""A guard of today's code that is taken away for as long as a context lasts."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

Without = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Plant:
    """A guard, the file that has it, what takes it away, and where histories are to be played."""

    name: str
    where: str
    without: Without
    target: str = "local"
    place: str = "directory"


def replaced(owner: Any, name: str, new: Any) -> Without:
    """The attribute is another one."""
    return lambda: patch.object(owner, name, new)
