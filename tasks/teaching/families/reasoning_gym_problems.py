"""Problems from reasoning-gym (github.com/open-thought/reasoning-gym): it draws the problem, our
families phrase it and work it out.

reasoning-gym derives entry *i* of a data set from `Random(seed + i)`, for any *i*: an index drawn
from the family's own generator keeps a family a function of that generator alone.
"""

import random
import sys
import warnings
from functools import cache
from types import ModuleType
from typing import Any


@cache
def _dataset(name: str, config: tuple[tuple[str, Any], ...]) -> Any:
    # A solver of puzzles that we do not pose, which needs a C compiler to be installed:
    # pyproject.toml leaves it out.
    sys.modules.setdefault("pycosat", ModuleType("pycosat"))
    with warnings.catch_warnings():
        # cellpylib, which reasoning-gym imports, compares a literal with `is`
        warnings.simplefilter("ignore", SyntaxWarning)
        # takes seconds: not at the top of a module that the flow process imports
        import reasoning_gym
    return reasoning_gym.create_dataset(name, seed=0, size=1, **dict(config))


def gym_problem(rng: random.Random, dataset: str, **config: Any) -> dict[str, Any]:
    """A random entry of a reasoning-gym data set: its metadata, with the verified answer as
    `answer` and the text as `question`."""
    entry = _dataset(dataset, tuple(sorted(config.items())))[rng.randrange(2**31)]
    return {**entry["metadata"], "answer": entry["answer"], "question": entry["question"]}
