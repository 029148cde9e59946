"""Chooses the Prefect API of a run: the configured one, that of the running `lyceum serve`, or a
temporary one.

We do not trust a server because it listens on this machine: it is used when the user names it, or
when it proves that it has the key of our `lyceum serve` (`flows.server.key`).

The temporary server is Prefect's own on the user's Prefect database, so that people can look at its
runs later. It is not Prefect's "ephemeral mode": that server shares our process group (Ctrl-C would
end it before the run is recorded as cancelled), writes to our standard output and survives a killed
parent.
"""

import fcntl
import http.client
import os
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TextIO

from flows.server import key, process_tree
from flows.server.key import Api, in_url
from flows.server.port import bound
from flows.server.supervision import supervised
from flows.server.unconfigured import is_unconfigured
from infra.secrets import has_userinfo, mask
from schemas.base import InputError, StageFailed, Stopped

SERVER_KEY = "PREFECT_SERVER_API_AUTH_STRING"

CLOSED = (401, 403)
"""The codes of an API that asks for a key, or for another one."""

STARTUP_SECONDS = 300.0
"""A server's first start migrates its database: 10 s on two idle cores, several times that on a
busy machine."""

QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
}
"""Environment of our process and the server: no telemetry, no advertisements; Prefect's logs go to
its API, the terminal is ours."""


TEMPORARY = {
    "PREFECT_SERVER_UI_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED": "false",
}
"""Settings that switch off what the server of a single run does not need."""


def running_api() -> Api | None:
    """The Prefect API that a run of this process is to use, if it runs: the configured one, or that
    of our `lyceum serve`.

    Raises InputError: the configured API does not answer, asks for a key that is not set, or its
    URL holds a password.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    bypass_proxy()
    if is_unconfigured():
        return None
    from prefect.settings import get_current_settings

    return usable_api() or key.ours(get_current_settings().home)


@contextmanager
def prefect_api(
    stop: threading.Event, say: Callable[[str], None], meanwhile: Callable[[], None] = lambda: None
) -> Iterator[Api]:
    """Make a Prefect API available to this process: the running one, or a temporary one. `say` is
    called when the temporary server is started again, `meanwhile` while it starts.

    Raises:
        InputError: see `running_api` and `prefect_server`.
        Stopped: `stop` was set before the temporary server was ready.
        StageFailed: the temporary server did not start; the message ends with its log.
    """
    with ExitStack() as stack:
        api = running_api()
        if api is None:
            api = stack.enter_context(
                prefect_server(free_port(), TEMPORARY, stop, say, gave_up=say, meanwhile=meanwhile)
            )
        stack.enter_context(reaching(api))
        yield api


@contextmanager
def reaching(api: Api) -> Iterator[None]:
    """Inside, Prefect's clients of this process reach an API. Its key is in no environment, so no
    job has it."""
    from prefect.settings import (
        PREFECT_API_AUTH_STRING,
        PREFECT_API_KEY,
        PREFECT_API_URL,
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
        temporary_settings,
    )

    # Heartbeats serve automations on crashed runs; here they would cost a second per run, waiting
    # for their thread to end.
    changes = {PREFECT_API_URL: api.url, PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
    # A key of Prefect Cloud is none of this server's business; to its websockets it would go first.
    with temporary_settings(
        changes | ({PREFECT_API_AUTH_STRING: api.key, PREFECT_API_KEY: None} if api.key else {})
    ):
        yield


@contextmanager
def prefect_server(
    port: int,
    options: Mapping[str, str],
    stop: threading.Event,
    say: Callable[[str], None],
    gave_up: Callable[[str], None],
    *,
    host: str = "127.0.0.1",
    front: str | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> Iterator[Api]:
    """Run a Prefect server of ours while inside, with a key of its own. It is started again when it
    dies.

    Args:
        options: Prefect's settings for it; with PREFECT_SERVER_API_AUTH_STRING the key is that one.
        say: is told of each restart.
        gave_up: is told when the server does not stay up.
        host: the address that it listens on.
        front: the origin of a TLS proxy in front of it, `https://NAME[:PORT]`.
        meanwhile: called while it starts, again at a restart.

    Raises:
        InputError: the Prefect home cannot be used.
        OSError: the port cannot be had.
        Stopped: `stop` was set before the server was ready.
        StageFailed: it did not start; the message ends with its log.
    """
    bypass_proxy()
    reached = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    api = Api(f"http://{in_url(reached)}:{port}/api", options.get(SERVER_KEY) or key.new_key())
    # The pages ask the API of the origin that they came from.
    own = {"PREFECT_SERVER_CORS_ALLOWED_ORIGINS": front or api.ui, "PREFECT_UI_API_URL": "/api"}
    own |= {"PREFECT_SERVER_API_PORT": str(port), SERVER_KEY: api.key or ""}
    environment = {**os.environ, **QUIET, **options, **own, **api.environment}
    arguments = (host, str(port), *([front] if front else []))
    with bound(host, port), tempfile.TemporaryFile() as log:

        def start(stop: threading.Event) -> "subprocess.Popen[bytes]":
            with _starting_alone(stop):
                process = process_tree.start(
                    "flows.server.guard", *arguments, environment=environment, log=log
                )
                try:
                    meanwhile()
                    _wait_until_ready(process, api, stop, log)
                except Stopped:
                    process_tree.stop(process)
                    raise
                except BaseException:
                    process_tree.kill(process)
                    raise
                return process

        with supervised(start, lambda: answers(api.url), stop, say, gave_up):
            yield api


def configured_api() -> Api | None:
    """The API that PREFECT_API_URL or the Prefect profile names; with its key, if it is our `lyceum
    serve`."""
    from prefect.settings import get_current_settings

    settings = get_current_settings()
    if settings.api.url is None:
        return None
    if settings.api.auth_string is not None:
        return Api(settings.api.url, settings.api.auth_string.get_secret_value())
    served = key.read(settings.home)
    if served is not None and key.same_server(settings.api.url, served) and key.proves(served):
        return served
    return Api(settings.api.url)


def usable_api() -> Api | None:
    """`configured_api`. Raises InputError as `running_api`."""
    api = configured_api()
    if api is not None and (problem := api_problem(api)):
        raise InputError(
            f"the Prefect API at {mask(api.url)} (PREFECT_API_URL, or your Prefect profile)"
            f" {problem}"
        )
    return api


def api_problem(api: Api) -> str | None:
    """Why a configured API cannot be used, and what to do; None when it can."""
    if has_userinfo(api.url):
        return (
            "holds a user name or password, which messages would show: set PREFECT_API_AUTH_STRING"
            " to user:password instead."
        )
    if not answers(api.url):
        return "does not answer; start it, or unset PREFECT_API_URL."
    from prefect.settings import get_current_settings

    headers = {"Authorization": f"Basic {key.as_header(api.key)}"} if api.key else {}
    if not api.key and (cloud := get_current_settings().api.key) is not None:
        headers = {"Authorization": f"Bearer {cloud.get_secret_value()}"}
    with suppress(OSError, http.client.HTTPException):  # whatever it is, it is not about the key
        if _code(api.url, "version", 5, headers) in CLOSED:
            return (
                "asks for a key; set PREFECT_API_AUTH_STRING to user:password (for Prefect Cloud:"
                " PREFECT_API_KEY), or unset PREFECT_API_URL."
            )
    return None


def answers(url: str) -> bool:
    """Whether a Prefect API is healthy at `url`. Prefect Cloud, and proxies before other APIs, ask
    for a key here, too, which is an answer."""
    try:
        return _code(url, "health", 2, {}) in (200, *CLOSED)
    except (OSError, http.client.HTTPException, ValueError):
        return False


def _code(url: str, path: str, seconds: float, headers: dict[str, str]) -> int:
    """The code with which an API answers. Trusts whom Prefect's own clients trust. Raises OSError,
    HTTPException or ValueError: it does not answer."""
    asked = urllib.request.Request(f"{url.rstrip('/')}/{path}", headers=headers)
    trust = None
    if asked.type == "https":
        from prefect.settings import get_current_settings

        settings = get_current_settings().api
        trust = ssl.create_default_context(cafile=settings.ssl_cert_file)
        if settings.tls_insecure_skip_verify:
            trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(asked, timeout=seconds, context=trust) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def bypass_proxy() -> None:
    """Send requests of this process and its children to this machine past the environment's proxy,
    which could not find us."""
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
    names = [*filter(None, given.split(",")), "127.0.0.1", "localhost"]
    if "*" not in names:
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys(names))


def free_port() -> int:
    """A TCP port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _starting_alone(stop: threading.Event) -> Iterator[None]:
    """Start servers one after another: at the same moment on a new database they would all migrate
    it, and fail."""
    with home_file("lyceum-server-start.lock") as lock:
        while not locked(lock):
            if stop.wait(0.1):
                raise Stopped
        yield


def home_file(name: str) -> TextIO:
    """Open a file of the Prefect home for writing. Raises InputError: that is no place for one."""
    from prefect.settings import get_current_settings

    home = get_current_settings().home
    try:
        home.mkdir(parents=True, exist_ok=True)
        return (home / name).open("w")
    except OSError as error:
        raise _unusable(home, error) from error


def locked(lock: TextIO) -> bool:
    """Whether this process has the lock of an open file of the Prefect home now, and nobody else.
    Raises InputError: there are no locks."""
    try:
        # given up when the file is closed, or its holder dies
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise _unusable(Path(lock.name).parent, error) from error
    return True


def _unusable(home: Path, error: OSError) -> InputError:
    return InputError(
        f"Prefect's home {home} cannot be used ({error.strerror}); set PREFECT_HOME to a directory"
        " that can be written to, on a disk with room."
    )


def _wait_until_ready(
    process: "subprocess.Popen[bytes]", api: Api, stop: threading.Event, log: IO[bytes]
) -> None:
    """Wait for our server, and no other that took the port meanwhile."""
    deadline = time.monotonic() + STARTUP_SECONDS
    while not key.proves(api):
        if stop.wait(0.1):
            raise Stopped
        code = process.poll()
        if code is not None or time.monotonic() > deadline:
            what = f"the Prefect server did not start (exit code {code})"
            if code is None:
                what = f"the Prefect server has not answered within {STARTUP_SECONDS:.0f} s"
            said = mask(process_tree.tail(log))
            raise StageFailed(f"{what}. Its log ends:\n{said}" if said.strip() else what)
