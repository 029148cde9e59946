"""Writes the resolved recipe of a run as TOML, including `--set` changes, so that a report can
reproduce it.

The inverse of `schemas.recipe.parse_recipe`: parsing the text gives an equal Recipe. The standard
library reads TOML but writes none.
"""

import json
from typing import Any

from schemas.recipe import Recipe


def recipe_toml(recipe: Recipe) -> str:
    """The recipe as TOML text, one table per stage, nested config tables inline."""
    lines = [f"{key} = {toml_value(getattr(recipe, key))}" for key in ("name", "model", "seed")]
    for stage in recipe.stages:
        lines += ["", f"[stages.{stage.name}]", f"kind = {toml_value(stage.kind)}"]
        if stage.inputs:
            lines.append(f"inputs = {toml_value(stage.inputs)}")
        if stage.config:
            lines.append(f"[stages.{stage.name}.config]")
            lines += [f"{_key(key)} = {toml_value(value)}" for key, value in stage.config.items()]
    if recipe.rehearsal:
        lines += ["", "[rehearsal]", f"allow = {toml_value(recipe.rehearsal.allow)}"]
    if recipe.gate:
        rules = recipe.gate.model_dump(mode="json", exclude_none=True)
        lines += ["", "[gate]", *(f"{key} = {toml_value(value)}" for key, value in rules.items())]
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """A TOML value: booleans, numbers, strings, arrays and inline tables. TOML has no null, so a
    recipe holds none."""
    if isinstance(value, dict):
        items = ", ".join(f"{_key(key)} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {items} }}" if items else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, str):
        # JSON's escapes are TOML's; TOML also forbids a raw DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise TypeError(f"{value!r} ({type(value).__name__}) cannot be written as TOML")


def _key(key: str) -> str:
    bare = key.replace("-", "").replace("_", "")
    return key if bare.isascii() and bare.isalnum() else toml_value(key)
