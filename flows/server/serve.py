"""`lyceum serve`: a Prefect server with its UI, the deployments, and a worker that runs them on
this machine. Ctrl-C stops all of it.

`python -m flows.server.serve` is the worker. Each run is a process of its own, tied to the worker:
whenever the worker ends, the run gets a SIGTERM, cancels its jobs and is recorded as cancelled.

Whoever can use the server can start runs, so it asks for a key, and answers its own pages only
(`flows.server`).
"""

import asyncio
import os
import platform
import re
import shlex
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from flows.cli.answer import say
from flows.cli.interrupt import interruptible
from flows.recipe.parameters import recipe_choices
from flows.server import key, process_tree
from flows.server.key import Api
from flows.server.port import bound, check_port
from flows.server.prefect_api import QUIET, SERVER_KEY, home_file, locked, prefect_server, reaching
from infra.context import context
from infra.secrets import mask
from infra.store.location import expanded
from schemas.base import InputError, StageFailed

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

POOL = "lyceum"
"""The work pool of `lyceum serve`. Each machine and Prefect home runs one of its workers only, so
that all runs there are its own."""

LOOK_SECONDS = 0.5
"""Seconds between the main process' looks at the other one."""

QUERY_SECONDS = "2"
"""Seconds between the worker's queries for runs to start."""


def serve(
    port: int, recipes: Path | None = None, host: str = "127.0.0.1", front: str | None = None
) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Args:
        recipes: a directory whose TOML files are offered in the form.
        host: the address that the server listens on; one that other machines reach needs `front`.
        front: the origin of a TLS proxy in front of it, `https://NAME[:PORT]`.

    Raises:
        InputError: the address or the Prefect home cannot be used, another `lyceum serve` works
            here, or the directory has no recipes.
        StageFailed: the worker ended by itself, and the message ends with its output; or the server
            does not stay up.
    """
    host = "127.0.0.1" if host == "localhost" else host
    front = _checked(port, host, front)
    offered = recipe_choices(recipes)  # refused before a server starts for it
    stop = threading.Event()
    gone: list[str] = []
    with (
        interruptible(stop),
        _alone() as home,
        _server(port, stop, gone.append, host, front) as api,
        tempfile.TemporaryFile() as log,
    ):
        page = _register(api, offered)
        environment = {"PREFECT_WORKER_QUERY_SECONDS": QUERY_SECONDS, **os.environ, **QUIET}
        for name in (SERVER_KEY, "PREFECT_API_KEY"):
            environment.pop(name, None)
        environment |= api.environment
        process = process_tree.start("flows.server.serve", environment=environment, log=log)
        try:
            file = key.write(home, api)
            say(
                f"Prefect UI: {front or api.ui}\nStart a run: {front or api.ui}{page}\nLet your"
                f" browser in, once, within {key.ENTRY_SECONDS // 60} minutes:"
                f" {_link(api, page, front)}\nThe login page takes {key.KEY} of {file}\nCtrl-C"
                " stops everything."
            )
            while not stop.wait(LOOK_SECONDS):
                if gone:
                    raise StageFailed(gone[0])
                if process.poll() is not None:
                    raise StageFailed(
                        f"the worker that runs flows ended with exit code {process.returncode}. It"
                        f" said:\n{mask(process_tree.tail(log))}"
                    )
            say(f"Stopping; runs have {process_tree.STOP_SECONDS:.0f} s to cancel their jobs ...")
        finally:
            (home / key.FILE).unlink(missing_ok=True)
            process_tree.stop(process)


def _checked(port: int, host: str, front: str | None) -> str | None:
    """Refuse an address that would expose the key; returns the front's origin as browsers write it.
    Raises InputError."""
    check_port(port)
    if front is None:
        if host not in key.LOOPBACK:
            raise InputError(
                f"--host {host} lets other machines ask, and without TLS everybody on the way reads"
                " the key, which starts runs on this machine: put a proxy that speaks TLS in front"
                " and name it, --behind-tls https://NAME."
            )
        return None
    origin = front.lower().rstrip("/")
    found = re.fullmatch(r"https://(?:[\w.-]+|\[[0-9a-f:.]+\])(?::(\d{1,5}))?", origin, re.ASCII)
    if found is None or int(found[1] or 443) >= 65536:
        raise InputError(
            f"--behind-tls {mask(front)} is not an origin; give the one that browsers see,"
            " https://NAME or https://NAME:PORT."
        )
    return origin.removesuffix(":443")


def _link(api: Api, page: str, front: str | None = None) -> str:
    """The address that admits one browser and then shows a page. Browsers do not send the part
    after `#`."""
    assert api.key is not None, "a server of ours has a key"
    return f"{front or api.ui}/lyceum/enter#{key.entry(api.key)}{page}"


@contextmanager
def _alone() -> Iterator[Path]:
    """Hold the lock of the only `lyceum serve` of this Prefect home, which it yields. Raises
    InputError."""
    with home_file("lyceum-serve.lock") as lock:
        home = Path(lock.name).parent
        if not locked(lock):
            running = key.ours(home)
            way = f" A new link into it: {_link(running, '/')}" if running else ""
            raise InputError(
                f"another `lyceum serve` works with {home}; stop it, or set PREFECT_HOME to another"
                f" directory.{way}"
            )
        yield home


def _server(
    port: int, stop: threading.Event, gave_up: Callable[[str], None], host: str, front: str | None
) -> AbstractContextManager[Api]:
    try:
        bound(host, port).close()
    except OSError as error:
        what = f"--port {port}" if host in key.LOOPBACK else f"--host {host} --port {port}"
        raise InputError(
            f"{what} cannot be used ({error.strerror}); give another port, e.g. --port {port + 1}."
        ) from error
    from prefect.settings import get_current_settings

    chosen = get_current_settings().server.api.auth_string
    options = {SERVER_KEY: chosen.get_secret_value()} if chosen else {}
    say("Starting the Prefect server ...")
    return prefect_server(port, options, stop, say, gave_up, host=host, front=front)


def _register(api: Api, recipes: Sequence[dict[str, Any]]) -> str:
    """Register the work pool and the deployments; returns the path of the page that starts a
    run. Raises StageFailed: the server refuses."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate

    from flows.server.deploy import POOL_TYPE, register

    store = context().settings.store
    if "://" not in store:
        store = str(expanded(store, "LYCEUM_STORE").absolute())
    try:
        with reaching(api), get_client(sync_client=True) as client:
            if POOL not in [pool.name for pool in client.read_work_pools()]:
                about = "Runs flows where `lyceum serve` is."
                client.create_work_pool(
                    WorkPoolCreate(
                        name=POOL, type=POOL_TYPE, base_job_template=template(), description=about
                    )
                )
            # it may be another version's
            client.update_work_pool(POOL, WorkPoolUpdate(base_job_template=template()))
            _end_what_is_left(client)
            pages = register(client, POOL, store, recipes, {})
    except httpx.HTTPError as error:
        raise StageFailed(f"the Prefect server refused: {mask(str(error))}") from error
    return f"/v2{pages['post-train/post-train']}/run"


def template() -> dict[str, Any]:
    """The work pool's template, which fixes how runs start: a run or a deployment can choose
    nothing.

    `env` is left out, not empty: Prefect adds a run's variables to a template's `env`, even where
    the template names no variable. A run has the environment of the worker.
    """
    return {
        "job_configuration": {
            "command": shlex.join(
                [sys.executable, "-m", "flows.server.process_tree", "flows.server.flow_process"]
            ),
            "working_dir": str(Path.cwd()),
            "stream_output": False,
        },
        "variables": {"type": "object", "properties": {}, "additionalProperties": False},
    }


def _end_what_is_left(client: "SyncPrefectClient") -> None:
    """Record runs of a worker that lost their process with the machine as crashed, or as cancelled
    where somebody had asked for that, and so those within a run whose process is gone: they would
    count as running for ever."""
    from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter
    from prefect.client.schemas.objects import StateType
    from prefect.client.schemas.sorting import FlowRunSort
    from prefect.states import Cancelled, Crashed

    ends = {StateType.PENDING: Crashed, StateType.RUNNING: Crashed, StateType.CANCELLING: Cancelled}
    runs = client.read_flow_runs(
        flow_run_filter=FlowRunFilter.model_validate(
            {"state": {"type": {"not_any_": [StateType.SCHEDULED]}}}
        ),
        work_pool_filter=WorkPoolFilter.model_validate({"name": {"any_": [POOL]}}),
        sort=FlowRunSort.START_TIME_DESC,  # the newest, of which the API gives some hundred
    )
    parents = {"any_": [run.id for run in runs]}
    within = {"state": {"type": {"any_": [*ends]}}, "parent_flow_run_id": parents}
    runs += client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate(within))
    why = "its process ended with `lyceum serve`; Retry continues it"
    for run in runs:
        if run.state_type and run.state_type in ends:
            client.set_flow_run_state(run.id, ends[run.state_type](message=why), force=True)


async def work() -> None:
    """Run the pool's scheduled runs until SIGTERM, which ends this process at once. Its runs notice
    that and stop by themselves; Prefect's worker would kill them halfway.
    """
    from prefect.workers.process import ProcessWorker

    # No limit of its own: a worker that has one falls over a run that is retried before the process
    # of the last attempt has ended.
    await ProcessWorker(work_pool_name=POOL, name=f"lyceum serve on {platform.node()}").start()


if __name__ == "__main__":
    asyncio.run(work())
