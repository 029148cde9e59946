"""The Prefect API a run talks to: the one that is configured, a server that already listens on this machine, or a temporary one.

The temporary server is Prefect's own on the user's Prefect database, so its runs can be looked at later. It is not Prefect's "ephemeral
mode": that server shares our process group (Ctrl-C would end it before the run is recorded as cancelled), writes to our standard output and
survives a killed parent.
"""

import fcntl
import http.client
import os
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from flows import tied
from flows.supervision import kept_up
from infra.secrets import has_userinfo, mask
from schemas.base import InputError, StageFailed, Stopped

LOCAL_SERVER = "http://127.0.0.1:4200/api"
STARTUP_SECONDS = 300.0
"""A server's first start migrates its database: 10 s on two idle cores, several times that on a busy machine."""

QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
}
"""Environment of our process and the server: no telemetry, no advertisements; Prefect's logs go to its API, the terminal is ours."""


@contextmanager
def prefect_api(stop: threading.Event, say: Callable[[str], None]) -> Iterator[str]:
    """Make a Prefect API available to this process; yields its URL. `say` is told when the temporary server is started again.

    Raises:
        InputError: the configured API does not answer, or its URL holds a password.
        Stopped: `stop` was set before the temporary server was ready.
        StageFailed: the temporary server did not start; the message ends with its log.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    bypass_proxy()
    from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, get_current_settings, temporary_settings

    # Heartbeats serve automations on crashed runs; here they would cost a second per run, waiting for their thread to end.
    no_heartbeat = {PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
    configured = get_current_settings().api.url
    if configured is not None:
        problem = api_problem(configured)
        if problem:
            raise InputError(f"the Prefect API at {mask(configured)} (PREFECT_API_URL, or your Prefect profile) {problem}")
        with temporary_settings(no_heartbeat):
            yield configured
    elif answers(LOCAL_SERVER):
        with temporary_settings({PREFECT_API_URL: LOCAL_SERVER, **no_heartbeat}):
            yield LOCAL_SERVER
    else:
        with prefect_server(free_port(), ("--no-ui", "--no-scheduler", "--no-late-runs"), stop, say, gave_up=say) as url:
            with temporary_settings({PREFECT_API_URL: url, **no_heartbeat}):
                yield url


@contextmanager
def prefect_server(
    port: int, options: Sequence[str], stop: threading.Event, say: Callable[[str], None], gave_up: Callable[[str], None]
) -> Iterator[str]:
    """Run a Prefect server on 127.0.0.1 while inside; yields its API's URL. Raises Stopped or StageFailed.

    It is started again when it dies: `say` is told so, and `gave_up` when it does not stay up.
    """
    url = f"http://127.0.0.1:{port}/api"
    command = ("server", "start", "--host", "127.0.0.1", "--port", str(port), *options)
    # Without the latter two the UI asks port 4200, or the API that is configured here.
    environment = {**os.environ, **QUIET, "PREFECT_SERVER_API_PORT": str(port), "PREFECT_API_URL": url}
    with tempfile.TemporaryFile() as log:

        def start(stop: threading.Event) -> "subprocess.Popen[bytes]":
            with _starting_alone(stop):
                process = tied.start("prefect", *command, environment=environment, log=log)
                try:
                    _wait_until_ready(process, url, stop, log.fileno())
                except Stopped:
                    tied.stop(process)
                    raise
                except BaseException:
                    tied.kill(process)
                    raise
                return process

        with kept_up(start, lambda: answers(url), stop, say, gave_up):
            _KEPT_UP.add(url)
            yield url


_KEPT_UP = {LOCAL_SERVER}
"""URLs of servers that are started again when they die. `lyceum serve` sees to the one on the usual port."""


def startup_seconds(url: str) -> float | None:
    """How long it may take until a server that dies answers again; None for one that we do not start again."""
    return STARTUP_SECONDS if url in _KEPT_UP else None


def api_problem(url: str) -> str | None:
    """Why the API at a configured URL cannot be used, and what to do; None when it can."""
    if has_userinfo(url):
        return "holds a user name or password, which messages would show: set PREFECT_API_AUTH_STRING to user:password instead."
    return None if answers(url) else "does not answer; start it, or unset PREFECT_API_URL."


def answers(url: str) -> bool:
    """Whether a Prefect API is healthy at `url`."""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=2) as response:
            return bool(response.status == 200)
    except (OSError, http.client.HTTPException, ValueError):
        return False


def bypass_proxy() -> None:
    """Keep requests of this process and its children to this machine off a proxy that the environment names: it could not find us."""
    names = [name for name in (os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")).split(",") if name]
    if "*" not in names:
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys([*names, "127.0.0.1", "localhost"]))


def free_port() -> int:
    """A TCP port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _starting_alone(stop: threading.Event) -> Iterator[None]:
    """Servers that start at the same moment on a new database migrate it over each other and fail; so they start one after another."""
    from prefect.settings import get_current_settings

    home = get_current_settings().home
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lyceum-server-start.lock").open("w") as lock:
        while not _locked(lock):
            if stop.wait(0.1):
                raise Stopped
        yield


def _locked(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # given up when the file is closed, or its holder dies
    except BlockingIOError:
        return False
    return True


def _wait_until_ready(process: "subprocess.Popen[bytes]", url: str, stop: threading.Event, log: int) -> None:
    deadline = time.monotonic() + STARTUP_SECONDS
    while not answers(url):
        if stop.wait(0.1):
            raise Stopped
        if process.poll() is not None or time.monotonic() > deadline:
            tail = os.pread(log, 1 << 20, 0).decode("utf-8", "replace")[-2000:]
            raise StageFailed(f"the Prefect server did not start (exit code {process.poll()}). Its log ends:\n{mask(tail)}")
