"""Signals become an event, wherever they arrive."""

import signal
import sys
import threading
from types import ModuleType
from unittest.mock import Mock

import pytest

from flows.cli import interrupt, lyceum
from flows.cli.interrupt import interruptible, suspendable
from tasks.running.watch import Watch
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


def test_pause_in_prefect_s_pages_pauses_the_jobs_and_later_stops_them(monkeypatch):
    """The run was shown as suspended, and its stage went on for hours."""
    flow, watch = Mock(), Watch()
    flow.flow_run_suspension_request.is_requested.return_value = False
    monkeypatch.setattr("prefect.context.FlowRunContext.get", lambda: flow)
    monkeypatch.setattr(interrupt, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(interrupt, "SAVE_SECONDS", 0.5)
    with suspendable(watch):
        assert not watch.pause.wait(0.1)
        flow.flow_run_suspension_request.is_requested.return_value = True
        assert watch.pause.wait(10)
        assert not watch.stop.is_set()
        assert watch.stop.wait(10)


def test_ctrl_c_while_the_command_is_imported_is_one_line(monkeypatch, capsys):
    class Interrupted(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "flows.cli.main", Interrupted("flows.cli.main"))
    assert lyceum() == 130
    assert capsys.readouterr().err == "lyceum: stopped before it began\n"
