"""`lyceum serve`: a Prefect server with its UI, and a process that runs the flow when the UI asks for it. Ctrl-C stops all of it.

`python -m flows.serve` is that second process. The flow is found by module name, not by file: a file's directory would come first on the
import path, and `flows/` has names of its own.
"""

import asyncio
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flows import tied
from flows.interrupt import interruptible
from flows.prefect_api import QUIET, answers, bypass_proxy, prefect_server
from schemas.base import InputError, StageFailed

LOOK_SECONDS = 0.5
"""How often the main process looks whether the other one is still there."""


def serve(port: int) -> None:
    """Serve until Ctrl-C or SIGTERM. A Prefect server that already listens on the port is used and left running.

    Raises:
        InputError: something else listens on the port.
        StageFailed: the process that runs flows ended by itself; the message ends with its output.
    """
    stop = threading.Event()
    with interruptible(stop), _server(port, stop) as api, tempfile.TemporaryFile() as log:
        process = tied.start("flows.serve", environment={**os.environ, **QUIET, "PREFECT_API_URL": api}, log=log)
        try:
            sys.stderr.write(f"Prefect UI: {api.removesuffix('/api')} (deployment post-train/local). Ctrl-C stops everything.\n")
            while not stop.wait(LOOK_SECONDS):
                if process.poll() is not None:
                    tail = os.pread(log.fileno(), 1 << 20, 0).decode("utf-8", "replace")[-2000:]
                    raise StageFailed(f"the process that runs flows ended with exit code {process.returncode}. It said:\n{tail}")
        finally:
            tied.stop(process)


@contextmanager
def _server(port: int, stop: threading.Event) -> Iterator[str]:
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
    with prefect_server(port, (), stop) as started:
        yield started


async def run_deployments() -> None:
    """Wait for runs of the deployment and run each in a process of its own, until SIGTERM; then cancel those that run, and end."""
    from prefect.flows import EntrypointType
    from prefect.runner import Runner

    from flows.post_train import post_train

    runner = Runner(name="lyceum")
    deployment = await post_train.ato_deployment(
        "local", description="Runs a recipe on this machine.", entrypoint_type=EntrypointType.MODULE_PATH
    )
    await runner.aadd_deployment(deployment)
    running = asyncio.create_task(runner.start())
    while not (runner.started or running.done()):
        await asyncio.sleep(0.1)
    stopped = asyncio.Event()
    # The runner's own handler, put there by start(), ends this process and leaves the flow runs to be killed in mid-air.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await asyncio.wait({running, asyncio.create_task(stopped.wait())}, return_when=asyncio.FIRST_COMPLETED)
    if stopped.is_set():
        await runner.astop()
    await running


if __name__ == "__main__":
    asyncio.run(run_deployments())
