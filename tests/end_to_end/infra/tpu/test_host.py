"""The agent on a TPU VM: what it tells the store while the job runs, when the machine is taken
away, and that it leaves none behind."""

import functools
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import infra.process
from infra.backend import JobHandle, pause_file
from infra.process import Worker
from infra.settings import Settings, TpuSettings
from infra.store.remote import host_status, log_chunk, read_log
from infra.store.store import Store, open_store
from infra.tpu import host as agent_module
from infra.tpu.api import ApiError
from infra.tpu.host import Agent, Log, Place, masked_lines
from infra.tpu.job_record import TpuRecord, record_name
from infra.tpu.problems import Problem
from infra.tpu.types import TpuType
from schemas.base import InputError
from schemas.job import JobSpec, JobStatus
from tests.fakes.gcs_emulator import Emulator
from tests.fakes.tpu_metadata import MetadataServer
from tests.fakes.vm import NAME, until
from tests.infra.test_local import LINES

SECRET = "hf_abcdefghijklmnop"


@pytest.fixture
def store(gcs_bucket: str) -> Store:
    return open_store(f"gs://{gcs_bucket}/lyceum")


# The agent in this process, whose worker is a few lines of Python


WORKER = f'{LINES}print("started", flush=True)\n'
SLEEP = "status('running', progress={'done': 1, 'total': 2}); time.sleep(60)"
POLITE = (
    "signal.signal(signal.SIGTERM, lambda *_: (status('succeeded', exit_code=0), os._exit(0)))\n"
    + SLEEP
)


def place(host: int, silence: float = 0.0, boot_log: Path = Path("/dev/null")) -> Place:
    return Place(key="k", attempt="1", host=host, resource=NAME, silence=silence, boot_log=boot_log)


class Desk:
    """A job in a store, a metadata server, and what the agent asked the API to remove."""

    def __init__(self, store: Store, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.removed: list[tuple[str, str, str, float]] = []
        self.refusals: list[Any] = []
        removed, refusals = self.removed, self.refusals
        self.store = store
        values = {"instance/preempted": "FALSE", "instance/maintenance-event": "NONE"}
        self.metadata = MetadataServer(values)
        given = {"stage": "s", "kind": "s", "target": "v5e-16", "config": {}}
        spec = JobSpec(key="k", attempt="1", store=store.uri, **given)
        self.store.create_json("work/k/1/job.json", spec)

        class Api:
            def __init__(self, kind: TpuType, settings: TpuSettings) -> None:
                self.kind, self.project = kind.name, settings.project

            def remove(self, name: str) -> bool:
                if refusals:
                    raise ApiError(Problem(refusals.pop(), "not now"))
                removed.append((self.kind, self.project, name, time.monotonic()))
                return True

        patch.setattr(agent_module, "TpuApi", Api)
        patch.setattr(agent_module, "DELETE_SECONDS", 0.01)
        patch.setenv("GCE_METADATA_HOST", self.metadata.address)

    def run(
        self, lines: str, host: int = 0, silence: float = 0.0, patience: float = 60.0
    ) -> JobStatus:
        """Run a worker to its end; returns the host's last word."""
        command = [sys.executable, "-c", WORKER + lines]
        self._patch.setattr(agent_module, "Worker", functools.partial(Worker, command=command))
        settings = Settings(
            heartbeat_seconds=0.05,
            stop_seconds=1.0,
            compile_cache="",
            store_seconds=patience / 2,
            judge_patience_seconds=patience / 2,
        )
        self.agent = Agent(place(host, silence), self.store, settings)
        self.agent.run()
        return self.store.read_json(host_status("k", "1", host), JobStatus)

    def when(self, words: str, then: Callable[[], object]) -> None:
        """Do something once the log that is sent has these words."""

        def look() -> None:
            until(lambda: words in read_log(self.store, "k", "1", 0, final=False)[0])
            then()

        threading.Thread(target=look, daemon=True).start()


@pytest.fixture
def desk(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    desk = Desk(store, monkeypatch)
    yield desk
    desk.metadata.stop()


@pytest.mark.parametrize(
    ("lines", "code", "lost", "words"),
    [
        ("status('failed', error='quota 9 > 5', exit_code=2)", 2, False, r"quota 9 > 5$"),
        (
            "print('last words', flush=True); os.kill(os.getpid(), 9)",
            1,
            True,
            r"(?s)the worker was killed by signal 9 .*memory ran out; .*log.txt:\n.*last words$",
        ),
        ("status('cancelled', error='cancelled', exit_code=130)", 1, True, "stopped from outside"),
    ],
)
def test_how_a_worker_ended_is_told(desk, lines, code, lost, words):
    """It says so itself, it was killed, somebody else stopped it."""
    status = desk.run(lines)
    assert (status.state, status.exit_code, status.lost) == ("failed", code, lost)
    assert re.search(words, status.error or "")


def test_a_machine_that_starts_no_worker_loses_the_job_to_another_one(desk, monkeypatch):
    """The startup script called that the job's failure, and the run ended."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    status = desk.run("")
    assert (status.state, status.lost) == ("failed", True)
    assert "cannot be begun here: [Errno 2] No such file" in (status.error or "")
    assert len(desk.removed) == 1


def test_a_worker_is_asked_to_pause_by_an_object_in_the_store_and_its_word_counts(desk):
    """A bucket that is away is not asked for it longer than a machine that is taken away lives."""
    desk.store.read_bytes = asked = Mock(wraps=desk.store.read_bytes)
    desk.when("started", lambda: desk.store.write_bytes(pause_file("k", "1"), b""))
    status = desk.run(
        "while not (here / 'pause').exists(): time.sleep(0.02)\n"
        "status('paused', error='after step 3', exit_code=130)"
    )
    assert (status.state, status.error, status.lost) == ("paused", "after step 3", False)
    patience = [one.args[1:] for one in asked.mock_calls if one.args[:1] == (pause_file("k", "1"),)]
    assert set(patience) == {(agent_module.WRITE_SECONDS,)}


@pytest.mark.parametrize(
    ("content", "message"), [(None, "job.json is missing"), (b"{}", "is no valid JobSpec")]
)
def test_a_job_that_cannot_be_read_is_told_and_the_machine_is_left_to_the_script(
    desk: Desk, content: bytes | None, message: str
) -> None:
    desk.store.remove("work/k/1/job.json")
    if content is not None:
        desk.store.write_bytes("work/k/1/job.json", content)
    with pytest.raises(InputError, match="nobody knows how to delete"):
        desk.run("pass")
    status = desk.store.read_json("work/k/1/status.json", JobStatus)
    assert (status.state, status.exit_code) == ("failed", 2)
    assert message in (status.error or "")


def test_an_outage_of_the_store_loses_neither_the_log_nor_the_last_word(
    desk: Desk, gcs: Emulator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It begins while the worker runs and ends when the worker is long gone."""
    lines = f"""
while not pathlib.Path("{tmp_path}/go").exists(): time.sleep(0.02)
for number in range(100): print(f"line {{number}}", flush=True)
status('failed', error='as it must', exit_code=1)
pathlib.Path("{tmp_path}/gone").touch()
"""

    def outage() -> None:
        fault = gcs.faults.add("status", code=503, name="lyceum/work/")
        (tmp_path / "go").touch()
        until((tmp_path / "gone").exists)
        until(lambda: gcs.faults.fired(fault) > 3)
        gcs.faults.clear()

    desk.when("started", outage)
    status = desk.run(lines)
    assert (status.state, status.error) == ("failed", "as it must")
    log = read_log(desk.store, "k", "1", 0, final=True)[0]
    assert log.splitlines() == ["started", *(f"line {number}" for number in range(100))]
    assert "does not answer (503 Service Unavailable)" in caplog.text


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ("preempted=TRUE", "is being preempted"),
        ("maintenance-event=TERMINATE_ON_HOST_MAINTENANCE", "taken away for maintenance"),
    ],
)
def test_a_machine_that_is_taken_away_stops_the_worker_and_the_job_is_lost(
    desk: Desk, event: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """At once: nobody is waited for, since the machine is going. Other events are told alone."""
    what, _, end = event.partition("=")
    harmless = "MIGRATE_ON_HOST_MAINTENANCE"

    def announce() -> None:
        if "maintenance" in what:
            desk.metadata[f"instance/{what}"] = harmless
            until(lambda: f"{what} is {harmless}" in caplog.text)
        desk.metadata[f"instance/{what}"] = end

    desk.when("started", announce)
    status = desk.run(SLEEP, silence=300.0)
    assert (status.state, status.exit_code, status.lost) == ("failed", 1, True)
    assert words in (status.error or "")
    assert len(desk.removed) == 1


STOPPED = SLEEP.replace("time.sleep(60)", "os.kill(os.getpid(), signal.SIGSTOP)")
BEATS = """
for beat in range(1200): status('running', progress={'done': 1, 'total': 2}); time.sleep(0.05)
"""
WORKS = """
for done in range(30): status('running', progress={'done': done, 'total': 30}); time.sleep(0.05)
status('succeeded')
"""


@pytest.mark.parametrize(
    ("limit", "lines", "host", "words"),
    [
        ("MUTE_SECONDS", STOPPED, 0, "gave no sign of life for"),
        ("MUTE_SECONDS", STOPPED, 1, "gave no sign of life for"),
        ("HANG_SECONDS", BEATS, 0, "made no progress and logged nothing for"),
    ],
)
def test_a_worker_that_hangs_loses_the_job_and_its_machine(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, limit: str, lines: str, host: int, words: str
) -> None:
    """Its machine reported on and on, and was paid for: with a flow or without."""
    monkeypatch.setattr(agent_module, limit, 1.0)
    status = desk.run(lines, host, patience=0.1)
    assert (status.state, status.exit_code, status.lost) == ("failed", 1, True)
    assert re.search(f"^the worker on this machine {words} [1-9] s; the job goes on", status.error)
    assert len(desk.removed) == 1


def test_a_worker_that_works_or_waits_as_its_settings_allow_does_not_hang(desk, monkeypatch):
    monkeypatch.setattr(agent_module, "HANG_SECONDS", 0.3)
    assert desk.run(WORKS, patience=0.1).state == "succeeded"
    waits = "time.sleep(1.5); status('succeeded')"
    assert desk.run(waits, patience=60.0).state == "succeeded"
    desk.store.write_json("work/k/1/status.json", JobStatus(state="succeeded", heartbeat=0.0))
    assert desk.run(waits, host=1, patience=0.1).state == "succeeded", "it waits for the first one"


def test_a_worker_that_cannot_even_be_killed_does_not_keep_its_machine(desk, monkeypatch):
    """One that is stuck in a driver: the agent waited for its end without end."""
    monkeypatch.setattr(infra.process, "KILL_SECONDS", 0.1)

    def wait(process: subprocess.Popen[bytes], timeout: float = 300.0) -> int:
        time.sleep(timeout)
        raise subprocess.TimeoutExpired("worker", timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    monkeypatch.setattr(subprocess.Popen, "poll", lambda process: None)
    desk.when("started", lambda: desk.agent.stop("the machine is being preempted"))
    status = desk.run(SLEEP)
    assert (status.state, status.lost, len(desk.removed)) == ("failed", True, 1)


def said(desk: Desk) -> JobStatus:
    return desk.store.read_json("work/k/1/status.json", JobStatus)


def test_a_worker_that_ends_well_in_the_last_moment_has_succeeded(desk: Desk) -> None:
    def stop() -> None:
        until(lambda: said(desk).progress.done)
        desk.agent.stop("the machine is being preempted")

    desk.when("started", stop)
    assert desk.run(POLITE).state == "succeeded"


@pytest.mark.parametrize(
    ("lines", "logs"), [("status('succeeded')", []), ("sys.exit(1)", ["1.log.txt"])]
)
def test_another_host_speaks_under_its_own_name_and_keeps_its_log_only_when_it_fails(
    desk: Desk, lines: str, logs: list[str]
) -> None:
    desk.store.write_json("work/k/1/status.json", JobStatus(state="succeeded", heartbeat=0.0))
    status = desk.run(lines, host=1)
    assert status.state == ("failed" if logs else "succeeded")
    assert [name for name in desk.store.children("work/k/1/hosts") if name != "1.json"] == logs
    assert "log" not in desk.store.children("work/k/1")
    assert len(desk.removed) == 1


def test_the_machine_is_deleted_after_a_while_however_often_the_api_does_not_answer(desk):
    desk.refusals += ["transient", "transient"]
    began = time.monotonic()
    desk.run("status('succeeded')", silence=0.5)
    [(kind, project, name, moment)] = desk.removed
    assert (kind, project, name) == ("v5e-16", "lyceum-test", NAME)
    assert moment - began > 0.5
    desk.refusals += ["permission"]
    with pytest.raises(ApiError, match="not now"):
        desk.run("status('succeeded')")


def test_a_machine_that_comes_after_its_job_has_ended_does_nothing_and_is_deleted_at_once(desk):
    """Its flow stood still within the request; another one saw to the end of the job meanwhile."""
    handle = JobHandle(desk.store.uri, "k", "1")
    about = {"resources": (NAME,), "target": "v5e-16", "tier": "spot", "run": "r"}
    record = TpuRecord(**about, usd_per_hour=1.0, requested=0.0, ended=1.0)
    desk.store.write_json(record_name(handle), record)
    began = time.monotonic()
    status = desk.run("status('succeeded')", silence=60.0)
    assert (status.state, status.lost, len(desk.removed)) == ("failed", True, 1)
    assert time.monotonic() - began < 30
    assert "started" not in (desk.store.read_bytes("work/k/1/log.txt") or b"").decode()


def test_a_host_leaves_the_machine_to_the_first_as_long_as_it_hears_of_it(desk: Desk) -> None:
    """A host that is done early must not delete the machine under one that boots, or still writes
    the artifact."""
    given = {"lines": "status('succeeded')", "host": 1, "silence": 1.0}
    done = threading.Thread(target=desk.run, kwargs=given, daemon=True)
    done.start()
    until(
        lambda: desk.store.read_json("work/k/1/hosts/1.json", JobStatus),
        lambda status: status and status.state == "succeeded",
    )
    done.join(1.5)
    assert desk.removed == []  # host 0 boots
    for beat in range(10):
        running = JobStatus(state="running", heartbeat=float(beat))
        desk.store.write_json("work/k/1/status.json", running)
        done.join(0.15)
        assert desk.removed == []
    began = time.monotonic()
    done.join(60)
    assert desk.removed[0][-1] - began > 0.5


# The log


def test_however_the_log_is_cut_its_masked_bytes_are_the_same(tmp_path, monkeypatch):
    """Sent in pieces, by an agent that started twice in between, the pieces are the whole."""
    monkeypatch.setenv("HF_TOKEN", SECRET)
    store, path = open_store(tmp_path / "store"), tmp_path / "raw.log"
    lines = [b"token:\n", b"abcdefghijkl\n", f"größe {SECRET} {SECRET}\n".encode()]
    lines = [*lines, b"password=0123456789\n", b"\xff\xfe\n", b"\n"] * 3
    whole = masked_lines(b"".join(lines))
    log, seen, offset = Log(store, place(0), path), "", 0
    for number, line in enumerate(lines):
        with path.open("ab") as file:
            file.write(line[:2])
            file.flush()
            log.ship() if number % 2 else None
            file.write(line[2:])
        if number % 5 == 4:
            log = Log(store, place(0), path)
        log.ship()
        new, offset = read_log(store, "k", "1", offset, final=False)
        seen += new
    assert seen.encode() == whole
    assert SECRET.encode() not in whole
    assert b"0123456789" not in whole
    offset = len(store.read_bytes(log_chunk("k", "1", 0)) or b"")
    log.keep(JobStatus(state="succeeded", heartbeat=0.0))
    assert read_log(store, "k", "1", offset, final=True)[0].encode() == whole[offset:]
    assert store.children("work/k/1") == ["log.txt"]
