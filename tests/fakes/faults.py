"""What the fakes of the clouds share: faults that strike some requests and let others pass."""

import random
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar


class WrongFault(ValueError):
    """A test asked for a fault that does not exist."""


def complete(
    known: Mapping[str, Mapping[str, Any]], action: str, given: Mapping[str, Any]
) -> dict[str, Any]:
    """The parameters of an action, with the defaults of those that were not given. Raises
    WrongFault for an action or a parameter that is not `known`."""
    if action not in known:
        raise WrongFault(f"no fault {action!r}; there are {', '.join(known)}")
    if unknown := set(given) - set(known[action]):
        raise WrongFault(f"{action} has no {', '.join(unknown)}; it has {', '.join(known[action])}")
    return {**known[action], **given}


@dataclass
class Fault:
    """One kind of trouble.

    Attributes:
        skip: how many that it could strike pass before the first is struck.
        times: strikes at most so often; None for always.
        probability: of striking each, decided by a generator with the seed `seed`.
        fired: how often it struck so far.
    """

    action: str
    name: str | None = None
    skip: int = 0
    times: int | None = None
    probability: float = 1.0
    seed: int = 0
    parameters: dict[str, Any] = field(default_factory=dict)
    fired: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def hits(self) -> bool:
        """Whether what fits is struck; counts it."""
        if self.skip:
            self.skip -= 1
            return False
        if self.fired == self.times or self._random.random() >= self.probability:
            return False
        self.fired += 1
        return True


FaultT = TypeVar("FaultT", bound=Fault)


class FaultList(Generic[FaultT]):
    """The faults of a fake, by number, in the order in which they were added."""

    def __init__(self, kind: type[FaultT]) -> None:
        self.lock = threading.Lock()
        self._kind = kind
        self._added: list[FaultT] = []
        self._faults: dict[int, FaultT] = {}

    def __iter__(self) -> Iterator[FaultT]:
        return iter([*self._faults.values()])

    def add(self, wish: Mapping[str, Any]) -> int:
        """Raises WrongFault."""
        fault = self._kind(**wish)
        with self.lock:
            self._added.append(fault)
            self._faults[len(self._added)] = fault
            return len(self._added)

    def remove(self, number: int) -> None:
        with self.lock:
            self._faults.pop(number, None)

    def clear(self) -> None:
        with self.lock:
            self._faults.clear()

    def fired(self, number: int) -> int:
        """How often a fault struck, whether it is still there or not."""
        with self.lock:
            if not 0 < number <= len(self._added):
                raise WrongFault(f"no fault {number}")
            return self._added[number - 1].fired
