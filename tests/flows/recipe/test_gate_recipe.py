"""A recipe's gate: what it may ask is checked before anything runs, and it changes no stage."""

from pathlib import Path

import pytest

from flows.recipe.recipe_toml import recipe_toml
from flows.recipe.resolve import resolve
from schemas.base import InputError
from schemas.examples import Domain
from schemas.recipe import GateRule, GateSpec, MustNotLose, parse_recipe
from tests.fakes.recipe import EVALUATED, TINY, TRAINED

BASE = """
[stages.base_safety]
kind = "safety_eval"
inputs = { prompts = "rebalance" }
config = { prompt_length = 16, response_length = 16 }
"""
SAFETY = """
[stages.safety]
kind = "safety_eval"
inputs = { policy = "sft" }
config = { prompt_length = 16, response_length = 16, suites = [{ name = "xstest" }] }
"""
GATE = """
[[gate.must_win]]
metric = "exact_answer"
suite = "heldout"
domain = "summarization"
[[gate.must_not_lose]]
metric = "truncated_rate"
margin = 0.05
"""


@pytest.fixture
def recipe(tiny_recipe: Path) -> Path:
    tiny_recipe.write_text(TINY + TRAINED + EVALUATED + BASE)
    return tiny_recipe


def write(recipe: Path, text: str) -> str:
    recipe.write_text(recipe.read_text() + text)
    return str(recipe)


def test_a_gate_is_read_can_be_set_and_changes_no_stage(recipe: Path) -> None:
    plain = resolve(str(recipe))
    gated = resolve(write(recipe, GATE))
    assert plain.recipe.gate is None
    assert gated.recipe.gate == GateSpec(
        must_win=(GateRule(metric="exact_answer", suite="heldout", domain=Domain.SUMMARIZATION),),
        must_not_lose=(MustNotLose(metric="truncated_rate", margin=0.05),),
    )
    assert gated.stages == plain.stages, "so no stage key has changed"
    assert parse_recipe(recipe_toml(gated.recipe), "written.toml") == gated.recipe
    changes = ["gate.must_not_lose.0.margin=0.1", "gate.wins=any"]
    gate = resolve(str(recipe), changes).recipe.gate
    assert (gate.must_not_lose[0].margin, gate.wins) == (0.1, "any")


RATE, WIN, LOSE = "metric = 'format_rate'", "must_win = [{", "must_not_lose = [{"


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        (f"{WIN} metric = 'exact_anser' }}]", r"0: metric = 'exact_anser' .* 'exact_answer'\?"),
        (f"{WIN} {RATE}, domain = 'maths' }}]", r"gate.must_win.0.domain .* you mean 'math'\?"),
        (f"{WIN} metrik = 'x' }}]", r"unknown key 'gate.must_win.0.metrik'. .* mean 'metric'\?"),
        ("must_wim = []", r"unknown key 'gate.must_wim'. Did you mean 'must_win'\?"),
        (
            f"{WIN} {RATE} }}, {{ {RATE} }}]",
            "two entries of gate.must_win are about the same: form",
        ),
        (f"{LOSE} {RATE} }}]", "'gate.must_not_lose.0.margin' is missing"),
        (f"{LOSE} {RATE}, margin = 5.0 }}]", "margin = 5.0 is not valid"),
        ("wins = 'any'", "a gate without a rule lets every model pass"),
    ],
)
def test_a_gate_that_asks_for_what_is_not_there_or_lacks_a_part_is_refused(recipe, gate, message):
    with pytest.raises(InputError, match=message):
        resolve(write(recipe, f"[gate]\n{gate}\n"))


def test_suites_are_those_that_the_last_model_is_asked(recipe: Path) -> None:
    """A safety evaluation without held-out prompts; that of the base does not count."""
    write(recipe, SAFETY)
    gate = "\n[[gate.must_not_lose]]\nmetric = 'format_rate'\nmargin = 0.05\nsuite = "
    text = recipe.read_text()
    recipe.write_text(text + gate + "'xstest'\n")
    assert resolve(str(recipe), need_data=False).recipe.gate is not None
    recipe.write_text(text + gate.replace("format_rate", "safe_rate") + "'heldout'\n")
    with pytest.raises(InputError, match=r"suite = 'heldout' is none .* Valid: xstest\."):
        resolve(str(recipe), need_data=False)


def test_a_recipe_that_trains_nothing_has_no_gate(tiny_recipe: Path) -> None:
    with pytest.raises(InputError, match=r"no stage of kind .*sft.* trains a model.*leave it out"):
        resolve(write(tiny_recipe, GATE))
