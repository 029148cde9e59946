"""The flows' parameters in Prefect's UI: each with a title, a description, and choices if there are
any.

Prefect's own schema of a flow drops titles and descriptions and lets unknown names through; `form`
makes one from the same signature.
"""

import inspect
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict, Field, create_model

from flows.recipe.shipped import shipped_names
from infra.store.location import given_path
from infra.targets import TARGETS
from schemas.base import InputError

if TYPE_CHECKING:
    from prefect import Flow


def _shown(title: str, description: str, **schema: Any) -> Any:
    return Field(title=title, description=description, json_schema_extra=schema or None)


_RECIPE = "What to train: one that comes with Lyceum, or a TOML file of your own."
_TARGET = "Where jobs run: on the machine that runs the flow, or on a TPU in the cloud."
_STORE = "Where artifacts and runs are kept: a directory, or gs://bucket/prefix."
_OVERRIDES = (
    "Values of the recipe to change, one per item, e.g. stages.grpo.config.steps=20. Or tiny: as it"
    " runs on a laptop."
)
_DATA = "Where the data files lie that the recipe reads; empty if it reads none."
_FORCE = "Names of stages to run again although they are cached, one per item, e.g. sft"

Recipe = Annotated[str, _shown("Recipe", _RECIPE)]
Target = Annotated[str, _shown("Target", _TARGET, enum=list(TARGETS))]
StoreUri = Annotated[str, _shown("Store", _STORE)]
Override = Annotated[str, Field(pattern="^tiny$|.=.")]
Overrides = Annotated[tuple[Override, ...], _shown("Overrides", _OVERRIDES)]
Data = Annotated[str, _shown("Data directory", _DATA)]
Force = Annotated[tuple[str, ...], _shown("Run again", _FORCE)]


def form(flow: "Flow[..., Any]", store: str, recipes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The JSON schema of a flow's parameters; the server refuses values that do not fit it, and
    unknown names.

    Args:
        store: the default store where the flow will run.
        recipes: the `recipe_choices`.
    """
    signature = inspect.signature(flow.fn, eval_str=True)
    fields: dict[str, Any] = {
        name: (one.annotation, one.default) for name, one in signature.parameters.items()
    }
    model = create_model("Parameters", __config__=ConfigDict(extra="forbid"), **fields)
    schema = model.model_json_schema(ref_template="#/definitions/{model}")
    schema["definitions"] = schema.pop("$defs", {})
    for position, field in enumerate(schema["properties"].values()):
        field["position"] = position
    del schema["properties"]["recipe"]["type"]
    # the UI shows a tab for each
    schema["properties"]["recipe"]["anyOf"] = [*recipes]
    schema["properties"]["store"]["description"] += f" Empty: {store}"
    return schema


def recipe_choices(recipes: Path | None) -> list[dict[str, Any]]:
    """The schemas of a recipe: shipped, of a directory, anywhere.

    Args:
        recipes: a directory whose TOML files are offered beside the shipped recipes.

    Raises:
        InputError: the directory has no TOML files.
    """
    choices = [{"type": "string", "title": "Comes with Lyceum", "enum": shipped_names()}]
    if recipes is not None:
        directory, files = given_path(recipes, "--recipes"), list[str]()
        with suppress(OSError):  # a name that no system takes
            files = sorted(map(str, directory.glob("*.toml")))
        if not files:
            raise InputError(f"--recipes {recipes} is not a directory with recipes (*.toml) in it.")
        choices.append({"type": "string", "title": f"From {recipes}", "enum": files})
    return [*choices, {"type": "string", "title": "Path of a TOML file"}]
