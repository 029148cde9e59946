"""What the flows ask for, as Prefect's UI shows it: every parameter titled and described, with
choices where there are any.

Prefect's own schema of a flow drops titles and descriptions and lets unknown names through; `form`
makes one from the same signature.
"""

import inspect
from pathlib import Path
from typing import Annotated, Any

from prefect import Flow
from pydantic import ConfigDict, Field, create_model

from flows.recipe.resolve import shipped_recipes
from infra.store.files import given_path
from infra.targets import TARGETS
from schemas.base import InputError

Recipe = Annotated[
    str,
    Field(
        title="Recipe",
        description="What to train: one that comes with Lyceum, or a TOML file of your own.",
    ),
]
Target = Annotated[
    str,
    Field(
        title="Target",
        description="Where jobs run: on the machine that runs the flow, or on a TPU in the cloud.",
        json_schema_extra={"enum": list(TARGETS)},
    ),
]
StoreUri = Annotated[
    str,
    Field(
        title="Store",
        description="Where artifacts and runs are kept: a directory, or gs://bucket/prefix.",
    ),
]
Override = Annotated[str, Field(pattern=".+=.+|tiny")]
Overrides = Annotated[
    tuple[Override, ...],
    Field(
        title="Overrides",
        description=(
            "Values of the recipe to change, one per item, e.g. stages.grpo.config.steps=20. Or"
            " tiny: as it runs on a laptop."
        ),
    ),
]
Data = Annotated[
    str,
    Field(
        title="Data directory",
        description="Where the data files lie that the recipe reads; empty if it reads none.",
    ),
]
Force = Annotated[
    tuple[str, ...],
    Field(
        title="Run again",
        description="Names of stages to run again although they are cached, one per item, e.g. sft",
    ),
]


def form(flow: Flow[..., Any], store: str, recipes: Path | None = None) -> dict[str, Any]:
    """The JSON schema of a flow's parameters; the server refuses values that do not fit it, and
    unknown names.

    Args:
        store: what an empty store stands for, where the flow will run.
        recipes: a directory whose TOML files are offered beside the shipped recipes.

    Raises:
        InputError: the directory has no TOML files.
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
    schema["properties"]["recipe"]["anyOf"] = _recipe_choices(recipes)
    schema["properties"]["store"]["description"] += f" Empty: {store}"
    return schema


def _recipe_choices(recipes: Path | None) -> list[dict[str, Any]]:
    choices = [{"type": "string", "title": "Comes with Lyceum", "enum": list(shipped_recipes())}]
    if recipes is not None:
        files = sorted(str(path) for path in given_path(recipes, "--recipes").glob("*.toml"))
        if not files:
            raise InputError(f"--recipes {recipes} is not a directory with recipes (*.toml) in it.")
        choices.append({"type": "string", "title": f"From {recipes}", "enum": files})
    return [*choices, {"type": "string", "title": "Path of a TOML file"}]
