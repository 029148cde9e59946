"""What the fakes of the clouds share: faults that strike some requests and let others pass."""

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Generic, TypeVar


class WrongFault(ValueError):
    """A test asked for a fault that does not exist."""


class Faults:
    """What shall go wrong with a fake from now on, as tests say it by the fake's `control`."""

    def __init__(self, control: Callable[..., Any]) -> None:
        self._control = control

    def add(self, action: str, **wish: Any) -> int:
        """Add a fault; returns its number, for `fired`. See the fake's `Fault` for the wishes, and
        its actions for what they mean."""
        return self._control("add_fault", action=action, **wish)

    def fired(self, fault: int) -> int:
        """How often a fault struck so far."""
        return self._control("fired", fault=fault)

    def clear(self) -> None:
        self._control("clear_faults")


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

    KNOWN: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Action -> its own parameters and their defaults."""

    def __post_init__(self) -> None:
        if self.action not in self.KNOWN:
            raise WrongFault(f"no fault {self.action!r}; there are {', '.join(self.KNOWN)}")
        if unknown := set(self.parameters) - set(self.KNOWN[self.action]):
            raise WrongFault(f"{self.action} has no {', '.join(unknown)}")
        self.parameters = {**self.KNOWN[self.action], **self.parameters}
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
        """What is no field of a fault is a parameter of its action. Raises WrongFault."""
        own = {one.name for one in fields(self._kind)}
        given = {name: value for name, value in wish.items() if name in own}
        parameters = {name: value for name, value in wish.items() if name not in own}
        fault = self._kind(**given, parameters=parameters)
        with self.lock:
            self._added.append(fault)
            self._faults[len(self._added)] = fault
            return len(self._added)

    def clear(self) -> None:
        with self.lock:
            self._faults.clear()

    def fired(self, number: int) -> int:
        """How often a fault struck, whether it is still there or not."""
        with self.lock:
            if not 0 < number <= len(self._added):
                raise WrongFault(f"no fault {number}")
            return self._added[number - 1].fired
