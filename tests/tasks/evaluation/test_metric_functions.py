"""Metric functions: their values with the answers, their means, and names that are taken."""

from typing import Any

import pytest

from schemas.base import InputError, StageFailed
from schemas.evaluation import EvalItem
from schemas.examples import Domain
from tasks.contract.function import FunctionConfig
from tasks.evaluation.metric_functions import (
    check_names,
    function_metrics,
    load_functions,
    with_values,
)
from tasks.stages.reasoning_eval import Config

BREVITY = (
    "def brevity(completions, suite, **_):\n    return [-len(one) or None for one in completions]"
)


def function(source: str, name: str = "brevity") -> FunctionConfig:
    return FunctionConfig(name="function", path=f"mine.py:{name}", source=source)


def items(*completions: str) -> list[EvalItem]:
    known: dict[str, Any] = {"prompt": "?", "domain": Domain.MATH, "answer": "1"}
    known |= {"check": "numeric", "format": True, "exact": True}
    return [EvalItem(id=str(n), completion=one, **known) for n, one in enumerate(completions)]


def measured(*completions: str) -> list[EvalItem]:
    return with_values(load_functions([function(BREVITY)]), items(*completions))


def test_a_value_is_kept_with_its_answer_and_none_abstains() -> None:
    found = [item.measured for item in measured("ab", "", "abcd")]
    assert found == [{"brevity": value} for value in (-2.0, None, -4.0)]


def test_means_are_over_those_that_have_a_value_and_differences_over_pairs() -> None:
    """-2 and -4 have a mean of -3. Paired with -1 and an abstention: one pair, -1."""
    found = function_metrics(measured("ab", "", "abcd"), measured("a", "ab", ""), seed=0)
    brevity = found["functions"]["brevity"]
    assert (brevity["mean"], brevity["n"]) == (-3.0, 2)
    assert brevity["mean_low"] < -3 < brevity["mean_high"]
    assert (brevity["delta"], brevity["delta_p"]) == (-1.0, 1.0)
    alone = function_metrics(measured("", ""), None, seed=0)["functions"]["brevity"]
    assert alone == {"mean": None, "mean_low": None, "mean_high": None, "n": 0}
    assert function_metrics(items("a"), None, seed=0) == {}
    unpaired = function_metrics(measured("ab"), items("ab"), seed=0)["functions"]["brevity"]
    assert "delta" not in unpaired


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def brevity(**_): return [1.0]", "returned 1 values for 2 completions"),
        ("import nowhere\ndef brevity(**_): ...", "loading it raised ModuleNotFoundError"),
    ],
)
def test_what_is_wrong_fails_the_stage_in_one_line(source: str, message: str) -> None:
    with pytest.raises(StageFailed, match=f"metric function mine.py:brevity: .*{message}") as told:
        with_values(load_functions([function(source)]), items("a", "b"))
    assert "\n" not in str(told.value)


def test_a_name_is_free_and_a_metrics_own() -> None:
    check_names([function(BREVITY)])
    with pytest.raises(InputError, match=r"metrics\.1\.path: 'brevity' names another metric"):
        check_names([function(BREVITY), function(BREVITY)])
    taken = function("def safe_rate(**_): ...", "safe_rate")
    with pytest.raises(InputError, match="'safe_rate' names a rate of evaluations"):
        check_names([taken])


def test_a_table_says_that_it_is_a_function() -> None:
    """A table without a name would be read by nobody, nor asked consent for."""
    table = {"path": "mine.py:brevity", "source": BREVITY}
    sizes = {"model": "gemma3-tiny", "prompt_length": 8, "response_length": 8}
    with pytest.raises(ValueError, match="name"):
        Config.parse({**sizes, "metrics": [table]})
    assert Config.parse({**sizes, "metrics": [{**table, "name": "function"}]}).metrics
