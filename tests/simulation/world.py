"""A scheduler of simulated processes: one thread of one of them runs at a time, in virtual time.

A thread is a greenlet. It gives way at each operation (a call of the store or the cloud, a system
call that changes the disk, a wait, a start), and who goes on is drawn from the seed. Time moves
only when nobody can go on. So a history is a function of its seed and of nothing else.

A process that is killed does nothing more: its threads unwind, and every operation that they try on
the way raises `Killed` again, without effect. One that is paused is not scheduled for a while, as a
laptop whose lid is shut, and does not know it afterwards.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from itertools import count
from threading import get_ident
from traceback import extract_tb
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

T = TypeVar("T")
EPOCH = 1_800_000_000.0
"""What clocks show when a history begins, seconds since the epoch."""

MOST_STEPS = 60_000
"""Of a history; one that takes more goes round in circles."""

LONGEST = 4000.0
"""Virtual seconds after which everything must have ended."""


BUSY = ("flow", "operator")
"""Roles of processes that come to an end by themselves."""


class Killed(BaseException):
    """The process of the thread that this is raised in was killed."""


class Endless(Exception):
    """A history that does not come to its end."""


class Late(BaseException):
    """One that takes too long here. No OSError, which Lyceum would take for the store's."""


@dataclass(eq=False)
class Process:
    """A simulated process.

    Attributes:
        name: in the history, `flow 1`; its first word is the process' role.
        machine: what `socket.gethostname` says.
        parent: who started it.
        code: how it ended, as `subprocess` has it; None while it lives.
        paused: until when it is not scheduled, virtual seconds.
        stopped: since when.
        offset, rate: of its clock: seconds beside the truth, and seconds a second.
        disturbed: when a fault has last struck it, or will have.
        seen: how many operations of each name it has begun.
        asked_to_stop: it was sent SIGTERM, and is a worker.
        on_signal: what a signal does: `stop` (Ctrl-C), `pause` (the deadline of `--hours`).
        errors: exceptions that left one of its threads.
    """

    name: str
    machine: str
    pid: int
    parent: "Process | None" = None
    code: int | None = None
    paused: float = 0.0
    stopped: float = 0.0
    offset: float = 0.0
    rate: float = 1.0
    disturbed: float = -1.0
    asked_to_stop: bool = False
    on_signal: dict[str, Callable[[], None]] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    threads: list["Thread"] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    ended: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.role = self.name.split()[0]

    @property
    def alive(self) -> bool:
        return self.code is None


@dataclass(eq=False)
class Thread:
    """A simulated thread: its greenlet, and whether it may go on."""

    process: Process
    name: str
    context: Context
    greenlet: Any = None
    ready: bool = False
    woken: bool = False
    naps: int = 0
    over: bool = False
    inside: int | None = None
    """So many system calls from here its process is killed."""


class World:
    """All processes of one history.

    Attributes:
        now: virtual seconds since the begin.
        lines: the history in words.
        current: the thread that runs.
        troubled: processes that a thread has left with an exception.
        numbers: for what must be told apart, or kept in order.
        busy: how many flows and operators live.
        over: nothing more is to happen.
    """

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.lines: list[str] = []
        self.current: Thread | None = None
        self.processes: list[Process] = []
        self.troubled: list[Process] = []
        self.busy = self.steps = 0
        self._still_until, self._dying, self.over = 0.0, False, False
        self._ident = get_ident()
        self._hub = getcurrent()
        self._ready: list[Thread] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers, self._pids = count(), count(101)

    # Processes and threads

    def process(
        self,
        name: str,
        machine: str,
        main: Callable[[], int | None],
        parent: Process | None = None,
        context: Context | None = None,
    ) -> Process:
        """Start a process, which ends with its main thread."""
        process = Process(name, machine, next(self._pids), parent)
        self.processes.append(process)
        self.busy += process.role in BUSY
        self.say(f"{name} starts on {machine}")

        def run() -> None:
            code = main()
            self.end(process, code or 0)

        self.thread(process, run, "main", context or copy_context())
        return process

    def thread(
        self, process: Process, target: Callable[[], None], name: str, context: Context
    ) -> Thread:
        """Start a thread of a process."""
        thread = Thread(process, name, context)

        def run() -> None:
            try:
                if process.alive:
                    target()
            except Killed:
                pass
            except BaseException as error:  # noqa: BLE001 (whatever it is, the history tells)
                process.errors.append(error)
                self.troubled.append(process)
                self.say(f"{process.name} ({name}) raises {type(error).__name__}: {error}")
                for frame in extract_tb(error.__traceback__)[-4:]:
                    self.say(f"    {frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.line}")
                if name == "main":
                    self.end(process, 1)
            thread.over = True

        thread.greenlet = greenlet(lambda: context.run(run), parent=self._hub)
        process.threads.append(thread)
        self.make_ready(thread)
        return thread

    def kill(self, process: Process, why: str = "is killed") -> None:
        """As SIGKILL does."""
        if process.alive:
            self.say(f"{process.name} {why}")
            self.end(process, -9)

    def end(self, process: Process, code: int) -> None:
        """A process ends: its other threads do nothing more."""
        if not process.alive:
            return
        process.code, process.paused, self._dying = code, 0.0, True
        self.busy -= process.role in BUSY
        for thread in process.threads:
            if not thread.over and thread is not self.current:
                self.make_ready(thread)
        for tell in process.ended:
            tell()

    def pause(self, process: Process, seconds: float) -> None:
        """Schedule nothing of a process for so long."""
        self.say(f"{process.name} stands still for {seconds:.0f} s")
        if process.paused <= self.now:
            process.stopped = self.now
        process.paused = process.disturbed = max(process.paused, self.now + seconds)
        self._still_until = max(self._still_until, process.paused)
        self.at(process.paused, lambda: None)

    def signal(self, process: Process, name: str) -> None:
        """A flow is asked for something, as soon as it is scheduled."""
        if process.alive and name in process.on_signal:
            self.thread(process, process.on_signal[name], name, copy_context())

    # What threads do

    def inside(self) -> bool:
        """Whether the caller is a simulated thread."""
        return self.current is not None and get_ident() == self._ident

    @property
    def thread_now(self) -> Thread:
        assert self.current is not None, "only simulated threads wait"
        return self.current

    def check(self) -> Thread:
        """The current thread. Raises Killed when its process is dead."""
        thread = self.current
        assert thread is not None, "only simulated threads wait"
        if thread.process.code is not None:
            raise Killed
        return thread

    def give_way(self) -> None:
        """Let others go first."""
        thread = self.check()
        self.make_ready(thread)
        self._switch(thread)

    def park(self, seconds: float | None = None) -> bool:
        """Wait until `make_ready`, or for so many seconds of the process' clock. Returns whether
        somebody woke it."""
        thread = self.check()
        thread.naps += 1
        nap = thread.naps
        thread.woken = True
        if seconds is not None:

            def over() -> None:
                if thread.naps == nap and not thread.ready and not thread.over:
                    thread.woken = False
                    self.make_ready(thread)

            self.at(self.now + max(0.0, seconds) / thread.process.rate, over)
        self._switch(thread)
        return thread.woken

    def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            self.give_way()
        process = self.check().process
        until = self.now + seconds / process.rate
        while self.now < until - 1e-9:
            self.park((until - self.now) * process.rate)

    def make_ready(self, thread: Thread) -> None:
        """A thread may go on."""
        if not thread.ready and not thread.over:
            thread.ready = True
            self._ready.append(thread)

    def _switch(self, thread: Thread) -> None:
        self._hub.switch()
        if thread.process.code is not None:
            raise Killed

    # Time

    def clock(self) -> float:
        """Seconds since the epoch, as the current process has it."""
        process = self.thread_now.process
        return EPOCH + self.now * process.rate + process.offset

    def monotonic(self) -> float:
        return 1000.0 + self.now * self.thread_now.process.rate

    def at(self, moment: float, act: Callable[[], None]) -> None:
        """Something happens by itself."""
        heapq.heappush(self._timers, (moment, next(self.numbers), act))

    def say(self, text: str) -> None:
        self.lines.append(f"{self.now:9.2f}  {text}")

    # The course of things

    def run(self, done: Callable[[], bool], failed: Callable[[Process], None]) -> None:
        """Until `done`, or `over`, or nothing can happen any more; `failed` is told of processes
        that an exception has left. Raises Endless."""
        draw, timers = self.random.random, self._timers
        while not self.over and not done():
            ready = self._ready
            if self.now < self._still_until:
                ready = [one for one in ready if one.process.paused <= self.now]
            if not ready:
                if not timers:
                    return
                moment, _, act = heapq.heappop(timers)
                if moment > self.now:
                    self.now = moment
                act()
                continue
            dead = [one for one in ready if one.process.code is not None] if self._dying else ()
            self._dying = bool(dead)
            self.step(dead[0] if dead else ready[int(draw() * len(ready))])
            while self.troubled:
                failed(self.troubled.pop())

    def step(self, thread: Thread) -> None:
        """One thread goes on until it gives way."""
        self.steps += 1
        if self.steps > MOST_STEPS or self.now > LONGEST:
            raise Endless(f"no end after {self.steps} steps and {self.now:.0f} virtual seconds")
        self._ready.remove(thread)
        thread.ready = False
        self.current = thread
        try:
            thread.greenlet.switch()
        finally:
            self.current = None

    def close(self) -> None:
        """Nothing of the history runs any more."""
        self.steps, self.now = 0, 0.0
        for process in self.processes:
            if process.alive:
                self.end(process, -9)
        for process in self.processes:
            for thread in process.threads:
                while not thread.over:
                    thread.naps += 1
                    self.make_ready(thread)
                    self.step(thread)
