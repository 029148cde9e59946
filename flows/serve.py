"""`lyceum serve`: a Prefect server with its UI, the deployments, and a worker that runs them on this machine. Ctrl-C stops all of it.

`python -m flows.serve` is the worker. Each run is a process of its own, tied to the worker: when the worker ends, however it ends, the run
gets a SIGTERM, cancels its jobs and is recorded as cancelled.
"""

import asyncio
import fcntl
import os
import platform
import shlex
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from flows import tied
from flows.interrupt import interruptible
from flows.prefect_api import QUIET, answers, bypass_proxy, prefect_server
from infra.settings import Settings
from schemas.base import InputError, StageFailed

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

POOL = "lyceum"
"""The work pool of `lyceum serve`. Only one of its workers runs on a machine and Prefect home, so that what it finds there is its own."""

LOOK_SECONDS = 0.5
"""How often the main process looks whether the other one is still there."""

QUERY_SECONDS = "2"
"""How often the worker asks for runs to start."""


def serve(port: int, recipes: Path | None = None) -> None:
    """Serve until Ctrl-C or SIGTERM. A Prefect server that already listens on the port is used and left running.

    Args:
        recipes: a directory whose TOML files are offered in the form.

    Raises:
        InputError: something else listens on the port, another `lyceum serve` works here, or the directory has no recipes.
        StageFailed: the worker ended by itself, and the message ends with its output; or the server does not stay up.
    """
    stop = threading.Event()
    gone: list[str] = []
    with interruptible(stop), _alone(), _server(port, stop, gone.append) as api, tempfile.TemporaryFile() as log:
        page = _register(api, recipes)
        environment = {"PREFECT_WORKER_QUERY_SECONDS": QUERY_SECONDS, **os.environ, **QUIET, "PREFECT_API_URL": api}
        process = tied.start("flows.serve", environment=environment, log=log)
        try:
            sys.stderr.write(f"Prefect UI: {api.removesuffix('/api')}\nStart a run: {page}\nCtrl-C stops everything.\n")
            while not stop.wait(LOOK_SECONDS):
                if gone:
                    raise StageFailed(gone[0])
                if process.poll() is not None:
                    tail = os.pread(log.fileno(), 1 << 20, 0).decode("utf-8", "replace")[-2000:]
                    raise StageFailed(f"the worker that runs flows ended with exit code {process.returncode}. It said:\n{tail}")
            sys.stderr.write(f"Stopping; runs have {tied.STOP_SECONDS:.0f} s to cancel their jobs ...\n")
        finally:
            tied.stop(process)


@contextmanager
def _alone() -> Iterator[None]:
    """Hold the right to be the one `lyceum serve` of this Prefect home. Raises InputError."""
    from prefect.settings import get_current_settings

    home = get_current_settings().home
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lyceum-serve.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # given up when the file is closed, or its holder dies
        except BlockingIOError as error:
            raise InputError(f"another `lyceum serve` works with {home}; stop it, or set PREFECT_HOME to another directory.") from error
        yield


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


@contextmanager
def _server(port: int, stop: threading.Event, gave_up: Callable[[str], None]) -> Iterator[str]:
    if not 0 < port < 65536:
        raise InputError(f"--port {port} is not a TCP port; give one from 1 to 65535.")
    bypass_proxy()
    url = f"http://127.0.0.1:{port}/api"
    if answers(url):
        yield url
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise InputError(f"--port {port} cannot be used ({error.strerror}); give another one, e.g. --port {port + 1}.") from error
    sys.stderr.write("Starting the Prefect server ...\n")
    with prefect_server(port, (), stop, _say, gave_up) as started:
        yield started


def _register(api: str, recipes: Path | None) -> str:
    """See to the work pool and the deployments; returns where a run is started."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.settings import PREFECT_API_URL, temporary_settings
    from prefect.workers.process import ProcessWorker

    from flows.deploy import POOL_TYPE, register

    store = Settings.from_environment().store
    command = shlex.join([sys.executable, "-m", "flows.tied", "flows.engine"])
    with temporary_settings({PREFECT_API_URL: api}), get_client(sync_client=True) as client:
        if POOL not in [pool.name for pool in client.read_work_pools()]:
            template = ProcessWorker.get_default_base_job_template()
            client.create_work_pool(
                WorkPoolCreate(name=POOL, type=POOL_TYPE, base_job_template=template, description="Runs flows where `lyceum serve` is.")
            )
        _crash_what_is_left(client)
        pages = register(
            client,
            POOL,
            store if "://" in store else str(Path(store).absolute()),
            recipes,
            {"command": command, "working_dir": str(Path.cwd()), "stream_output": False},
        )
    return f"{api.removesuffix('/api')}/v2{pages['post-train/post-train']}/run"


def _crash_what_is_left(client: "SyncPrefectClient") -> None:
    """Runs that a worker had going when the machine went down have no process any more. Nobody else says so: they would run for ever."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType, WorkPoolFilter, WorkPoolFilterName
    from prefect.client.schemas.objects import StateType
    from prefect.states import Crashed

    begun = FlowRunFilterStateType(any_=[StateType.PENDING, StateType.RUNNING, StateType.CANCELLING])
    for run in client.read_flow_runs(
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=begun)),
        work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL])),
    ):
        client.set_flow_run_state(run.id, Crashed(message="its process ended with `lyceum serve`; Retry continues it"), force=True)


async def work() -> None:
    """Run what is scheduled in the pool, until SIGTERM, which ends this process at once: its runs notice that, and stop by themselves.

    Nothing here stops them: Prefect's worker would kill them in mid-air.
    """
    from prefect.workers.process import ProcessWorker

    # No limit of its own: a worker that has one falls over a run that is retried before the process of the last attempt has ended.
    await ProcessWorker(work_pool_name=POOL, name=f"lyceum serve on {platform.node()}").start()


if __name__ == "__main__":
    asyncio.run(work())
