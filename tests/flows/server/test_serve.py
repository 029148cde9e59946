"""What `lyceum serve` refuses, and what a run may not choose. The service itself:
tests/end_to_end/flows/server."""

import asyncio
import errno
import socket
import time
from contextlib import nullcontext
from threading import Event
from unittest.mock import Mock

import httpx
import pytest
from prefect.settings import PREFECT_HOME, temporary_settings

from flows.server import prefect_api, serve
from flows.server.deploy import _night
from flows.server.key import Api
from flows.server.prefect_api import free_port
from flows.server.serve import template
from schemas.base import InputError, StageFailed

CHOSEN = {
    "command": "/bin/sh -c 'touch /tmp/chosen'",
    "env": {"PYTHONPATH": "/tmp"},
    "working_dir": "/tmp",
    "env.LD_PRELOAD": "/tmp/x.so",
}


def test_a_run_chooses_neither_its_command_nor_its_environment() -> None:
    """Not even where the server lets its variables through; Prefect adds a run's `env` to one that
    a template fixes."""
    from prefect.workers.process import ProcessJobConfiguration

    made = ProcessJobConfiguration.from_template_and_values.__wrapped__  # type: ignore[attr-defined]
    given = {"base_job_template": template(), "values": CHOSEN, "client": object()}  # not asked
    configuration = asyncio.run(made(ProcessJobConfiguration, **given))
    assert configuration.command == template()["job_configuration"]["command"]
    assert str(configuration.working_dir) == template()["job_configuration"]["working_dir"]
    assert configuration.env == {}


@pytest.mark.parametrize(
    ("clock", "name", "zone"),
    [
        ("Europe/Berlin", "Europe/Berlin", "Europe/Berlin"),
        ("UTC", None, "UTC"),  # a container without a file that names it
        ("Asia/Tokyo", None, None),
        ("CET-1CEST,M3.5.0,M10.5.0/3", "UTC", None),
        ("Europe/London", "UTC", None),  # the same in winter
        ("UTC", "Mars/Olympus", None),
    ],
)
def test_nights_are_scheduled_by_the_clock_of_this_machine_or_not(clock, name, zone, monkeypatch):
    """Without a name, Prefect takes the zone for UTC."""
    monkeypatch.setattr("tzlocal.get_localzone_name", lambda: name)
    with monkeypatch.context() as patch:
        patch.setenv("TZ", clock)
        time.tzset()
        if zone is None:
            with pytest.raises(InputError, match="has no name that Prefect knows"):
                _night()
        else:
            [made] = _night()["schedules"]
            assert (made.schedule.timezone, made.active) == (zone, False)
    time.tzset()


def test_a_home_that_takes_no_files_or_locks_is_bad_input_with_the_way_out(monkeypatch, tmp_path):
    """It was `[Errno 30] Read-only file system: '/home/x/lyceum-serve.lock'`."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    with temporary_settings({PREFECT_HOME: tmp_path / "file"}):
        with pytest.raises(
            InputError, match=r"home .*file cannot be used \(File exists\); set PREF"
        ):
            serve.serve(4200)
        with (
            pytest.raises(InputError, match="set PREFECT_HOME to a directory"),
            prefect_api.prefect_server(free_port(), {}, Event(), print, print),
        ):
            pass
    none = Mock(side_effect=OSError(errno.ENOTSUP, "Operation not supported"))
    monkeypatch.setattr(prefect_api.fcntl, "flock", none)
    with (
        temporary_settings({PREFECT_HOME: tmp_path}),
        pytest.raises(InputError, match=r"cannot be used \(Operation not supported\)"),
    ):
        serve.serve(4200)


def test_a_server_that_does_not_start_says_why_without_the_code_it_passed(monkeypatch, tmp_path):
    """A full disk was twenty lines of SQLAlchemy's and no beginning."""
    log = (tmp_path / "log").open("w+b")
    log.write(b"""le "/x/engine/base.py", line 2381, in _handle
    raise error from e
  File "/x/core.py", line 193, in commit
           ^^^^^^^^
OperationalError: database or disk is full

ERROR:    Application startup failed. Exiting.
""")
    log.flush()
    monkeypatch.setattr(prefect_api.key, "proves", lambda api: False)
    with pytest.raises(StageFailed) as failed:
        prefect_api._wait_until_ready(Mock(), Api("http://127.0.0.1:4200/api"), Event(), log)
    said = str(failed.value).partition("ends:\n")[2].split("\n")
    assert said == [
        "OperationalError: database or disk is full",
        "ERROR:    Application startup failed. Exiting.",
        "",
    ]


def test_a_server_that_is_too_slow_is_told_from_one_that_ended(monkeypatch, tmp_path):
    """It was `did not start (exit code None)`."""
    monkeypatch.setattr(prefect_api.key, "proves", lambda api: False)
    monkeypatch.setattr(prefect_api, "STARTUP_SECONDS", 0.0)
    slow, log = Mock(poll=Mock(return_value=None)), (tmp_path / "log").open("w+b")
    with pytest.raises(StageFailed, match=r"has not answered within 0 s$"):
        prefect_api._wait_until_ready(slow, Api("http://127.0.0.1:4200/api"), Event(), log)


def test_a_disk_without_room_for_the_key_leaves_no_worker(monkeypatch, tmp_path):
    """It went on until Python let go of its standard input."""
    api, worker = Api("http://127.0.0.1:4200/api", "lyceum:k"), Mock()
    stopped = Mock()
    monkeypatch.setattr(serve, "_alone", lambda: nullcontext(tmp_path))
    monkeypatch.setattr(serve, "_server", lambda *given: nullcontext(api))
    monkeypatch.setattr(serve, "_register", lambda *given: "/")
    monkeypatch.setattr(serve.process_tree, "start", lambda *given, **more: worker)
    monkeypatch.setattr(serve.process_tree, "stop", stopped)
    monkeypatch.setattr(serve.key, "write", Mock(side_effect=OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space left"):
        serve.serve(4200)
    stopped.assert_called_once_with(worker)


def test_what_the_server_refuses_to_register_is_one_line(monkeypatch):
    """It was a traceback."""
    refusal = httpx.HTTPStatusError("422", request=Mock(), response=Mock())
    monkeypatch.setattr("prefect.client.orchestration.get_client", Mock(side_effect=refusal))
    with pytest.raises(StageFailed, match="the Prefect server refused: 422"):
        serve._register(Api("http://127.0.0.1:4200/api", "lyceum:k"), [])


@pytest.fixture
def refused(lyceum, tmp_path):
    """What `lyceum serve` says where it refuses to begin."""
    from prefect.settings import PREFECT_HOME, temporary_settings

    with temporary_settings({PREFECT_HOME: tmp_path}):
        yield lambda *arguments: lyceum("serve", *arguments, code=2).err


def test_a_port_that_something_else_listens_on_is_refused(refused):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert f"--port {port} cannot be used" in refused("--port", port)


NO_ORIGIN = "is not an origin; give the one that browsers see"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--host 0.0.0.0", "machines ask, and without TLS everybody on the way reads the key"),
        ("--host 192.0.2.1", "a proxy that speaks TLS in front and name it, --behind-tls https"),
        ("--behind-tls http://lyceum.example.org", NO_ORIGIN),
        ("--behind-tls https://lyceum.example.org/lyceum", NO_ORIGIN),
        ("--behind-tls https://[", NO_ORIGIN),
        ("--behind-tls https://a.org:99999", NO_ORIGIN),
        (
            "--behind-tls https://me:secret-pass@a.org",
            f"--behind-tls https://***@a.org {NO_ORIGIN}",
        ),
        ("--host 192.0.2.1 --behind-tls https://a.org", "192.0.2.1 --port 4200 cannot be used"),
        ("--port 99999", "is not a TCP port"),
        ("--recipes nowhere", "--recipes nowhere is not a directory with recipes (*.toml) in it"),
    ],
)
def test_what_is_refused_starts_nothing(arguments, message, refused):
    said = refused(*arguments.split())
    assert message in said
    assert said.count("\n") == 1
