"""`--set` changes one value of a recipe's table, before the table becomes a Recipe.

`defaults.KIND.x=5` sets x in each stage of that kind that leaves it open in the file;
`stages.NAME.config.x=5` overrides it for one stage. `tiny` is overridden by both.
"""

import copy
import re
from collections.abc import Mapping
from typing import Any, cast

from schemas.base import InputError, nearest
from schemas.recipe import Recipe, StageSpec
from schemas.toml import MOST_LEVELS, NotToml, require_utf_8, toml_table

TINY = "tiny"
"""The override that is a bare word: the recipe as it runs on a laptop; `--tiny` on the command
line."""


def order(override: str) -> int:
    """Sort overrides from general to specific, so that those of one stage win."""
    return 0 if override == TINY else 1 if override.lstrip().startswith("defaults.") else 2


def apply_override(table: dict[str, Any], override: str, written: Mapping[str, Any]) -> None:
    """Set one value in a recipe's table, in place: `stages.grpo.config.rewards.0.weight=0.5`.

    The path names a top-level key, a key below an existing stage, or one below the defaults of a
    kind; list elements are numbered from 0. It may also set keys of a config that the recipe leaves
    at their default; validating the stage checks that the config has them.

    Args:
        table: with the defaults in its stages (`schemas.recipe.with_defaults`).
        written: its stages as they are in the file.

    Raises:
        InputError: no UTF-8, no `=`, a value that is no TOML, or a path that leads nowhere.
    """
    require_utf_8(override, "--set")
    path, equals, text = override.partition("=")
    if not equals:
        raise _no_path(override)
    set_value(table, path.strip(), _override_value(text.strip(), override), override, written)


def set_value(
    table: dict[str, Any], path: str, value: Any, override: str, written: Mapping[str, Any]
) -> None:
    """Set the value at a path, in place; messages call it `override`. See `apply_override`."""
    parts = path.split(".")
    if len(parts) > MOST_LEVELS:
        raise InputError(
            f"--set {override!r}: nothing in a recipe lies deeper than {MOST_LEVELS} levels."
        )
    if not all(parts):
        raise _no_path(override)
    _check_override_path(table, parts, override)
    for place in _stages_that_take(parts, override, written) if parts[0] == "defaults" else [parts]:
        _assign(table, place, copy.deepcopy(value), override)


def _no_path(override: str) -> InputError:
    return InputError(
        f"--set {override!r} is not of the form path=value, e.g. --set stages.sft.config.steps=20."
    )


def _check_override_path(table: dict[str, Any], parts: list[str], override: str) -> None:
    """Check the levels of a recipe above a stage's config, whose keys are known."""
    known = ["defaults", *(key for key in Recipe.model_fields if key not in ("tiny", "rehearsal"))]
    levels: list[tuple[str, list[str]]] = [("recipe", known)]
    examples = {"stages": "stages.sft.config.steps=20", "defaults": "defaults.sft.steps=20"}
    if parts[0] in examples and len(parts) < 3:
        path, example = ".".join(parts), examples[parts[0]]
        raise InputError(
            f"--set {override!r}: {path} is a table; name a key in it, e.g. {example}."
        )
    if parts[0] == "stages":
        levels += [
            ("stages", list(table["stages"])),
            (".".join(parts[:2]), [key for key in StageSpec.model_fields if key != "name"]),
        ]
    elif parts[0] == "defaults":
        levels.append(("defaults", [stage["kind"] for stage in table["stages"].values()]))
    elif len(parts) > 1 and parts[0] in known and parts[0] != "gate":
        raise InputError(
            f"--set {override!r}: {parts[0]!r} has no keys below it. Keys lie below stages,"
            " defaults and gate."
        )
    for part, (level, valid) in zip(parts, levels, strict=False):
        if part not in valid:
            raise InputError(
                f"--set {override!r}: {level} has no key {part!r}.{nearest(part, {*valid})}"
            )


def _stages_that_take(
    parts: list[str], override: str, written: Mapping[str, Any]
) -> list[list[str]]:
    """The stages in which `defaults.KIND.x` sets x. Raises InputError: every stage of the kind sets
    x itself."""
    kind, rest = parts[1], parts[2:]
    places = {
        name: ["stages", name, "config", *rest] for name in written if written[name]["kind"] == kind
    }
    taking = [
        place for name, place in places.items() if not _says(written[name].get("config", {}), rest)
    ]
    if not taking:
        instead = ", ".join(map(".".join, places.values()))
        raise InputError(
            f"--set {override!r}: every stage of kind {kind} says this itself; set {instead}."
        )
    return taking


def _says(config: Any, path: list[str]) -> bool:
    """Whether a config has a value at the path, or one above it that is no table."""
    for part in path:
        if not isinstance(config, dict):
            return True
        if part not in config:
            return False
        config = config[part]
    return True


def _assign(here: Any, parts: list[str], value: Any, override: str) -> None:
    """Set the value at a path below `here`, creating missing tables."""
    for depth, part in enumerate(parts):
        above, place = ".".join(parts[:depth]), cast(Any, part)
        if isinstance(here, list):
            if part not in map(str, range(len(here))):
                raise InputError(
                    f"--set {override!r}: {above} is a list of {len(here)}; {part!r} is not an"
                    f" index below {len(here)}."
                )
            place = int(part)
        elif not isinstance(here, dict):
            raise InputError(
                f"--set {override!r}: {above} = {here!r} is a value, it has no key {part!r}."
            )
        if depth == len(parts) - 1:
            here[place] = value
        else:
            here = here[place] if isinstance(here, list) else here.setdefault(part, {})


def _override_value(text: str, override: str) -> Any:
    """A TOML value. Other text that looks like a plain word or path is a string, so that `--set
    model=gemma3-tiny` works."""
    try:
        table = toml_table(f"value = {text}", f"--set {override!r}")
    except NotToml as error:
        if re.fullmatch(r"[A-Za-z_./~][^\s\"'\[\]{}=,]*", text):
            return text
        raise InputError(
            f"--set {override!r}: {text!r} is no TOML value ({error.why}). Write a number, true,"
            " false, [1, 2], {a = 1} or 'text'."
        ) from error
    if len(table) > 1:
        raise InputError(f"--set {override!r}: it has several lines; give each value a --set.")
    return table["value"]
