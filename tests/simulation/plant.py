"""A guard of today's code that is taken away for as long as a context lasts."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from tests.simulation.plan import Plan, drawn

Without = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Plant:
    """A guard, what takes it away, and where histories are to be played.

    Attributes:
        needs: what a plan's words must have, or the guard has nothing to do in it; regular
            expressions.
        aim: histories of this plan are played, whose seeds make other courses of it; without, plans
            are drawn.
    """

    name: str
    without: Without
    target: str = "local"
    place: str = "directory"
    needs: tuple[str, ...] = ()
    aim: Plan | None = None

    def plan(self, seed: int) -> Plan:
        """The plan of a seed."""
        return drawn(seed, (self.target,)) if self.aim is None else replace(self.aim, seed=seed)

    def concerns(self, plan: Plan) -> bool:
        """Whether the guard may have something to do in a history."""
        said = "\n".join(plan.words())
        all_there = plan.place == self.place and all(re.search(one, said) for one in self.needs)
        return self.aim is not None or all_there


def replaced(owner: Any, name: str, new: Any) -> Without:
    """The attribute is another one."""
    return lambda: patch.object(owner, name, new)
