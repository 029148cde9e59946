"""Signals become an event, wherever they arrive."""

import signal
import sys
import threading
from types import ModuleType

import pytest

from flows.cli import lyceum
from flows.cli.interrupt import interruptible
from tests.fakes.process import printed


def test_the_first_signal_sets_the_event_and_the_second_interrupts() -> None:
    stop = threading.Event()
    with interruptible(stop):
        signal.raise_signal(signal.SIGINT)
        assert stop.wait(10)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_signal_that_finds_the_event_locked_by_whoever_waits_for_it_does_not_hang() -> None:
    """`Event.wait` holds the event's lock for a moment each time; a handler that set the event
    itself would wait for that for ever."""
    code = """
import os, signal, threading
from flows.cli.interrupt import interruptible
class Locked(threading.Event):
    lock = threading.Lock()
    def set(self):
        with self.lock:
            super().set()
stop = Locked()
with interruptible(stop):
    with stop.lock:
        os.kill(os.getpid(), signal.SIGTERM)
        os.getpid()
    assert stop.wait(10)
"""
    printed(code)


def test_ctrl_c_while_the_command_is_imported_is_one_line(monkeypatch, capsys):
    class Interrupted(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "flows.cli.main", Interrupted("flows.cli.main"))
    assert lyceum() == 130
    assert capsys.readouterr().err == "lyceum: stopped before it began\n"
