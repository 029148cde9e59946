"""Runs an engine and its HTTP server, each in a thread."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette

from tasks.serving.continuous_batching import Engine

LEAVING_SECONDS = 5
"""Seconds that open connections may take when the server ends."""

IDLE_SECONDS = 120
"""Seconds that an idle connection stays open, longer than clients keep theirs (httpx 5 s, aiohttp
15 s). The client must close first, otherwise a request that it sends meanwhile is lost."""


@contextmanager
def served(
    engine: Engine, application: Starlette, place: socket.socket
) -> Iterator[threading.Event]:
    """Answer at a bound socket while inside; yields an event that is set if the engine or the
    server ends by itself. At the end, unfinished answers get an error, and connections close.
    Raises the error that ended the engine or the server."""
    failures: list[BaseException] = []
    ended = threading.Event()
    http = uvicorn.Server(
        uvicorn.Config(
            application,
            log_level="warning",
            access_log=False,
            lifespan="off",
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=LEAVING_SECONDS,
        )
    )

    def worker(work: Callable[[], None]) -> threading.Thread:
        def watched() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
                failures.append(error)
            finally:
                ended.set()

        thread = threading.Thread(target=watched, daemon=True)
        thread.start()
        return thread

    place.listen(socket.SOMAXCONN)
    computing, talking = worker(engine.run), worker(lambda: http.run([place]))
    try:
        yield ended
    finally:
        engine.close()
        computing.join()
        http.should_exit = True
        talking.join()
        place.close()
    if failures:
        raise failures[0]
