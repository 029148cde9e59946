"""Threads, locks, conditions and queues in virtual time: what `threading` and `queue` offer, as far
as Lyceum, `concurrent.futures` and Prefect's futures use it. Events, semaphores and pools are the
standard library's own: they are made of these."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextvars import copy_context
from queue import Empty
from typing import Any

from tests.simulation.world import Thread, World


class Lock:
    """A lock; with `again` its owner may take it again (RLock). Outside a history it never
    waits."""

    def __init__(self, world: World, again: bool = False) -> None:
        self._world, self._again = world, again
        self._owner: object = None
        self._depth = 0
        self._waiting: deque[Thread] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        world = self._world
        if not self._depth:  # as mostly
            self._owner, self._depth = world.current or "outside", 1
            return True
        me: object = world.current if world.inside() else "outside"
        while self._depth and not (self._again and self._owner is me):
            if not blocking or not world.inside():
                return not world.inside()
            thread = world.check()
            self._waiting.append(thread)
            if not world.park(None if timeout < 0 else timeout) and timeout >= 0:
                return False
        self._owner, self._depth = me, self._depth + 1
        return True

    def release(self) -> None:
        self._depth -= self._depth > 0
        if not self._depth:
            self._owner = None
            while self._waiting:
                self._world.make_ready(self._waiting.popleft())

    def locked(self) -> bool:
        return self._depth > 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()


class ProcessLock:
    """A lock of a module, of which each process has its own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._locks: dict[object, Lock] = {}

    def _mine(self) -> Lock:
        process = self._world.thread_now.process
        return self._locks.setdefault(process, Lock(self._world))

    def __enter__(self) -> bool:
        return self._mine().acquire()

    def __exit__(self, *exception: object) -> None:
        self._mine().release()


class Condition:
    def __init__(self, world: World, lock: Any = None) -> None:
        self._world = world
        self._lock = lock if lock is not None else Lock(world, again=True)
        self.acquire, self.release = self._lock.acquire, self._lock.release
        self._waiting: list[Thread] = []

    def __enter__(self) -> bool:
        return bool(self._lock.acquire())

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        if not self._world.inside():
            return True
        thread = self._world.check()
        if timeout is not None and timeout <= 0:
            return False  # pools ask so under a lock that all pools of this Python share
        self._waiting.append(thread)
        self._lock.release()
        try:
            return self._world.park(timeout)
        finally:
            if thread in self._waiting:
                self._waiting.remove(thread)
            if thread.process.alive:
                self._lock.acquire()

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        until = None if timeout is None else self._world.now + timeout
        while not predicate():
            left = None if until is None else until - self._world.now
            if left is not None and left <= 0:
                return predicate()
            self.wait(left)
        return True

    def notify(self, n: int = 1) -> None:
        for thread in self._waiting[:n]:
            self._waiting.remove(thread)
            self._world.make_ready(thread)

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Queue:
    """`queue.SimpleQueue`."""

    def __init__(self, world: World) -> None:
        self._items: deque[Any] = deque()
        self._filled = Condition(world)
        self._world = world

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._items.append(item)
        self._filled.notify()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        while not self._items:
            if not block or not self._world.inside():
                raise Empty
            with self._filled:
                if not self._filled.wait(timeout) and timeout is not None:
                    raise Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items


class SimulatedThread:
    """`threading.Thread`. It sees its process' context variables, as the process has one of
    each."""

    def __init__(
        self,
        world: World,
        target: Callable[..., object] | None = None,
        name: str = "thread",
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        daemon: bool | None = None,
    ) -> None:
        self._world, self._target, self.name = world, target, name or "thread"
        self._args, self._kwargs, self.daemon = tuple(args), dict(kwargs or {}), bool(daemon)
        self._thread: Thread | None = None
        self._ended = Condition(world)
        self._number = next(world.numbers)

    def __hash__(self) -> int:
        """By its number: a pool ends its threads in the order of a set of them."""
        return self._number

    def start(self) -> None:
        parent = self._world.check()
        self._thread = self._world.thread(parent.process, self._run, self.name, copy_context())

    def _run(self) -> None:
        try:
            if self._target is not None:
                self._target(*self._args, **self._kwargs)
        finally:
            self._target = None
            self._ended.notify_all()

    def is_alive(self) -> bool:
        return self._thread is not None and not self._thread.over and self._target is not None

    def join(self, timeout: float | None = None) -> None:
        if self._world.inside() and self.is_alive():
            with self._ended:
                self._ended.wait(timeout)
