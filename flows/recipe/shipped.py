"""The recipes that come with Lyceum: their purposes, data, endpoints, times and prices.

Each fact has one source: the purpose is the first paragraph of the recipe's file, data and
endpoints are those of its stages, and times and prices are the rows of `flows/recipes/takes.csv`,
which `benchmarks/recipe_plans.py` writes; docs/recipes.md shows the same rows.
"""

import csv
import importlib.resources
from collections.abc import Iterator
from itertools import takewhile
from typing import Any, Literal

from schemas.base import StrictModel
from schemas.recipe import Recipe, parse_recipe

RECIPES = importlib.resources.files("flows.recipes")
TAKES = RECIPES / "takes.csv"


def shipped_names() -> list[str]:
    """The names of the recipes that come with Lyceum (`flows/recipes/<name>.toml`)."""
    files = [file.name for file in RECIPES.iterdir()]
    return sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))


def shipped_text(name: str) -> str:
    """The file of a recipe that comes with Lyceum."""
    return (RECIPES / f"{name}.toml").read_text(encoding="utf-8")


def shipped_recipes() -> dict[str, Recipe]:
    return {name: parse_recipe(shipped_text(name), f"{name}.toml") for name in shipped_names()}


class Takes(StrictModel):
    """The time and cost of one recipe on one target.

    Attributes:
        by: `plan`: estimated by `lyceum plan`; `run`: measured.
        date: when.
        minutes, usd: at list prices, of the stages whose time is known.
        fits: whether every program fits the memory, and the whole run nine hours; empty of a run.
        most_gib, limit_gib: device memory of the program that needs most, and a device's own; empty
            if it was not recorded.
        without: stages of unknown time, separated by spaces.
        settings: what `--set` changes of the recipe, with spaces between; empty as it is shipped.
    """

    recipe: str
    target: str
    by: Literal["plan", "run"]
    date: str
    minutes: int
    usd: float
    fits: str = ""
    most_gib: str = ""
    limit_gib: str = ""
    without: str = ""
    settings: str = ""

    def told(self) -> dict[str, Any]:
        """The JSON of `lyceum recipes --json`."""
        known = self.model_dump(include={"target", "by", "date", "minutes", "usd"})
        return {**known, "without": self.without.split(), "settings": self.settings.split()}


def takes() -> list[Takes]:
    """Every row."""
    rows = csv.DictReader(TAKES.read_text(encoding="utf-8").splitlines())
    return [Takes.model_validate(row, strict=False) for row in rows]


def listed() -> list[dict[str, Any]]:
    """Every recipe, as `lyceum recipes --json` prints it."""
    rows = takes()
    return [
        {
            "name": name,
            "model": recipe.model,
            "stages": [stage.name for stage in recipe.stages],
            "purpose": purpose(shipped_text(name)),
            "data": data(recipe),
            "asks": asked(recipe),
            "takes": [row.told() for row in rows if row.recipe == name],
        }
        for name, recipe in shipped_recipes().items()
    ]


def purpose(text: str) -> str:
    """The first paragraph of a recipe file's comments."""
    paragraph = takewhile(lambda line: line.startswith("# "), text.splitlines())
    return " ".join(line.removeprefix("# ").strip() for line in paragraph)


def data(recipe: Recipe) -> list[str]:
    """The data of a recipe's stages: data sets of the hub, files below --data, problems that are
    drawn."""
    found = []
    for table in _tables([stage.config for stage in recipe.stages]):
        if isinstance(path := table.get("path"), str):
            first, hub, name = path.partition("hf://datasets/")
            published = "/".join(name.split("/")[:2])
            found.append(published if hub else f"{first.split('/')[0]} (--data)")
        elif table.get("name") == "procedural":
            found.append("made problems")
    return list(dict.fromkeys(found))


def asked(recipe: Recipe) -> list[str]:
    """The models behind an API that a recipe asks; each needs a key or a server."""
    tables = _tables([stage.config for stage in recipe.stages])
    models = [f"{one['model']} ({one['provider']})" for one in tables if "provider" in one]
    return list(dict.fromkeys(models))


def _tables(value: Any) -> Iterator[dict[str, Any]]:
    """Every table in a config, the outer ones first."""
    if isinstance(value, dict):
        yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        yield from _tables(one)
