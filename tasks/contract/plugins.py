"""Find plugins by file name: adding one is adding a file, without a list to edit.

A family is a package whose files each end with one object, named after its class: `REWARD =
Reward(...)` in every file of `tasks/rewards/`. It is checked when the file is loaded, and describes
the plugin completely. Nothing here imports JAX; a plugin's file imports neither JAX nor anything
slow at its top level.
"""

import importlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args

from pydantic import ValidationError

from schemas.base import InputError, StrictModel, explain_validation, nearest

ConfigT = TypeVar("ConfigT", bound=StrictModel)
PluginT_co = TypeVar("PluginT_co", covariant=True)


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """The fields of every plugin.

    Attributes:
        version: part of the key of every stage that uses it; raise it when its results would
            change.
    """

    version: int

    def __post_init__(self) -> None:
        if type(self.version) is not int:
            raise TypeError(f"version is a whole number, not {self.version!r}")


@dataclass(frozen=True, kw_only=True)
class Configured(Plugin, Generic[ConfigT]):
    """A plugin that a recipe configures by a table, `{ name = "format", ... }`.

    Attributes:
        config: the class of the table. Its `name` is `Literal["<the file's name>"]`.
    """

    config: type[ConfigT]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.config, type) and issubclass(self.config, StrictModel)):
            raise TypeError(f"config is a class of StrictModel, not {self.config!r}")


class Family(Generic[PluginT_co]):
    """The plugins in a package's files.

    Args:
        package: e.g. `tasks.rewards`; files are found in its `__path__`.
        plugin: the class of the object that each file ends with; `Reward` is found as `REWARD`.
        what: the name of one in messages.
    """

    def __init__(self, package: str, plugin: type[PluginT_co], what: str = "") -> None:
        self.package, self.what = package, what or plugin.__name__.lower()
        self._plugin: Any = plugin

    def names(self) -> tuple[str, ...]:
        """The names of all plugins, which are their files'."""
        return _names(tuple(importlib.import_module(self.package).__path__))

    def __getitem__(self, name: str) -> PluginT_co:
        """The plugin of that name.

        Raises:
            InputError: there is none; lists the valid names.
            TypeError: its file does not end with the plugin.
        """
        if name not in self.names():
            raise InputError(f"unknown {self.what} {name!r}.{nearest(name, self.names())}")
        found: PluginT_co = _loaded(self.package, name, self._plugin)
        return found

    def parse(self: "Family[Configured[Any]]", table: dict[str, Any], where: str) -> Any:
        """The config in a plugin's table; `where`: the table's name in messages.

        Raises:
            InputError: no name, an unknown name, or a table that the plugin's config refuses.
        """
        name = table.get("name")
        if not isinstance(name, str):
            raise InputError(f"{where}: {table!r} needs a name, one of: {', '.join(self.names())}.")
        model = self[name].config
        try:
            return model.parse(table)
        except ValidationError as error:
            raise InputError(explain_validation(error, model, where)) from error

    def versions(self: "Family[Plugin]", names: Iterable[str]) -> dict[str, str | int]:
        """`{"rewards.format": 1}` for each named plugin: part of the stage key."""
        room = self.package.rpartition(".")[2]
        return {f"{room}.{name}": self[name].version for name in names}


@contextmanager
def naming(plugin: str) -> Iterator[None]:
    """Note on an error that leaves the block in which plugin it is, so that the stage's message
    says so."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in {plugin}")
        raise


@cache
def _names(places: Sequence[str]) -> tuple[str, ...]:
    files = (file for place in places for file in Path(place).glob("*.py"))
    return tuple(sorted({file.stem for file in files if not file.stem.startswith(("_", "."))}))


@cache
def _loaded(package: str, name: str, plugin: Any) -> Any:
    """The object that a file ends with. Raises TypeError, with the file's path and what is
    wrong."""
    file, wanted = f"{package.replace('.', '/')}/{name}.py", plugin.__name__
    try:
        module = importlib.import_module(f"{package}.{name}")
    except TypeError as error:
        raise TypeError(f"{file}: {error}") from error
    found = vars(module).get(wanted.upper())
    if not isinstance(found, plugin):
        what = "nothing" if found is None else f"a {type(found).__name__}"
        raise TypeError(
            f"{file}: it ends with {wanted.upper()} = {wanted}(...), and {what} is called so"
        )
    if isinstance(found, Configured) and get_args(found.config.model_fields["name"].annotation) != (
        name,
    ):
        raise TypeError(f'{file}: the name of its config is not Literal["{name}"]')
    return found
