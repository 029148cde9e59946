"""A reward in TRL's and Tunix's signature: what it is given, what it may give, and what is said of
one that is wrong."""

from pathlib import Path

import pytest

from schemas.base import InputError, StageFailed
from schemas.examples import Domain, Prompt
from tasks.reinforcement.rewarding import parse_rewards
from tasks.reinforcement.rollout import number_of
from tests.tasks.rewards.test_rewards import score

PROMPTS = [
    Prompt(id="a", prompt="1 + 1?", domain=Domain.MATH, answer="2", check="numeric", tolerance=0.1),
    Prompt(id="b", prompt="Name a fruit.", domain=Domain.GENERAL, check="none"),
]


def scored(source: str) -> list[float | None]:
    table = {"name": "function", "path": "mine.py:reward_fn", "source": source}
    found = score(parse_rewards([table], "rewards"), PROMPTS, ["two is 2", ""])
    return [number_of(value) for value in found.components["function"]]


TRL = '''
import re

def reward_fn(prompts, completions, answer, **kwargs):
    """TRL's example: 1 where the reference is in the completion, None where there is none."""
    assert prompts == ["1 + 1?", "Name a fruit."]
    found = [re.search(r"\\d+", text) for text in completions]
    return [None if not one else float(hit is not None and hit.group() == one)
            for one, hit in zip(answer, found)]
'''


def test_it_gets_texts_and_columns_and_gives_numbers_or_none() -> None:
    assert scored(TRL) == [1.0, None]
    columns = """
def reward_fn(completions, **columns):
    assert all(len(values) == 2 for values in columns.values())
    assert columns["domain"] == ["math", "general"] and columns["id"] == ["a", "b"]
    assert columns["tolerance"] == [0.1, None] and columns["check"] == ["numeric", "none"]
    assert "prompt" not in columns and columns["prompts"][0] == "1 + 1?"
    return [len(text) for text in completions]
"""
    assert scored(columns) == [8.0, 0.0]


def test_arrays_and_truth_values_are_numbers() -> None:
    array = "import numpy\ndef reward_fn(**_): return numpy.array([0.5, 1], numpy.float32)"
    assert scored(array) == [0.5, 1.0]
    assert scored("def reward_fn(**_): return [True, False]") == [1.0, 0.0]
    state = "from dataclasses import dataclass\n@dataclass\nclass One:\n    x: float = 2.0\n"
    assert scored(f"{state}def reward_fn(**_): return [One().x] * 2") == [2.0, 2.0]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def reward_fn(**_): return [1.0]", "returned 1 values for 2 completions"),
        ("def reward_fn(**_): return None", "returned None instead of a list of numbers"),
        ("def reward_fn(**_): return [1.0, 'x']", "value 1 .* is 'x'; return a finite number"),
        (
            "def reward_fn(**_): return [float('nan'), 1]",
            "value 0 .* is nan; return a finite number",
        ),
        ("def reward_fn(**_): return [1, float('inf')]", "value 1 .* is inf"),
        (
            "def half(x):\n    return 1 / x\ndef reward_fn(**_):\n    return [half(0)] * 2",
            "calling it raised ZeroDivisionError, line 2: division by zero",
        ),
        ("import sys\ndef reward_fn(**_):\n    sys.exit(3)", "raised SystemExit, line 3: 3"),
        ("def reward_fn(**_): raise ValueError('a\\nb')", "raised ValueError, line 1: a b"),
        (
            "import nowhere\ndef reward_fn(**_): ...",
            "loading it raised ModuleNotFoundError, line 1",
        ),
    ],
)
def test_what_is_wrong_fails_the_stage_in_one_line(source, message):
    with pytest.raises(
        StageFailed, match=f"reward function mine.py:reward_fn: .*{message}"
    ) as told:
        scored(source)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def reward(**_): ...", "has no function 'reward_fn' at its top level; it has: reward"),
        ("def reward_fn(:", "mine.py, line 1: not valid Python"),
        ("x = " + "(" * 9_999, "mine.py.*: not valid Python"),
        ("", "is run by `lyceum run` alone"),
        ("def reward_fn(texts): return texts", "asks for 'texts', and prompts have no such column"),
        ("def reward_fn(answers, **_): ...", "asks for 'answers', .* Did you mean 'answer'"),
        ("def reward_fn(*, suite, **_): ...", "asks for 'suite'"),  # of evaluations
        ("def reward_fn(prompts, completions, x=1): ...", r"add \*\*columns to its parameters"),
    ],
)
def test_what_nobody_can_run_is_bad_input(source: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        scored(source)


def test_a_function_that_is_wrapped_is_called_as_it_is() -> None:
    wrapped = "def reward_fn(texts): return [len(one) for one in texts]\n"
    later = "inner = reward_fn\nreward_fn = lambda completions, **_: inner(completions)"
    assert scored(wrapped + later) == [8.0, 0.0]
    adapt = "def adapt(f): return lambda completions, **_: f(completions)\n@adapt\n"
    assert scored(adapt + wrapped) == [8.0, 0.0]


def test_nothing_of_it_runs_before_it_is_prepared(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    source = f"open({str(marker)!r}, 'w')\ndef reward_fn(**_): return [0, 0]"
    table = {"name": "function", "path": "mine.py:reward_fn", "source": source}
    parse_rewards([table], "rewards")
    assert not marker.exists()
    scored(source)
    assert marker.exists()


def test_a_path_is_a_file_and_a_function() -> None:
    for path in ("mine.py", "mine:f", "mine.py:", "a.py:b.c", "a:b.py:f"):
        with pytest.raises(InputError, match="path"):
            parse_rewards([{"name": "function", "path": path}], "rewards")
