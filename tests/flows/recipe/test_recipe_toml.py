"""A recipe that is written as TOML reads back as the same recipe."""

import pytest

from flows.recipe.recipe_toml import recipe_toml
from schemas.recipe import Recipe, StageSpec, parse_recipe


@pytest.mark.parametrize(
    "value",
    [
        *(True, 0, -3, 1e-05, 1e22, 0.1),
        *("", 'a "quote" \\ slash', "line\nbreak\ttab \x00 \x1f \x7f", "ü 数 🙂 </script>"),
        *([], [1, [2, 3]], {}, [{"name": "format", "weight": 0.5}]),
        {"a.b": {"with space": [1.5]}, "ünï": False, "": 1},
    ],
)
def test_every_kind_of_value_survives(value: object) -> None:
    assert parse_recipe(written(value), "demo.toml").stages[0].config["x"] == value


def written(value: object) -> str:
    stage = StageSpec(name="distill", kind="distill", config={"x": value})
    return recipe_toml(Recipe(name="demo", model="m", stages=(stage,)))


def test_null_is_refused() -> None:
    with pytest.raises(TypeError, match="None"):
        written(None)
